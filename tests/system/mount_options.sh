#!/usr/bin/env bash
# Options of mount(8) and /etc/fstab are in effect afterwards, or refused with a message.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin mount_options 120 180 --own -- "$@"
export PATH=$bin:$PATH # where the helpers find their programs

address=$(awk -F'"' '/^mds/ { print $2 }' "$cluster/etc/client.1.toml")
other=$work/other
mkdir "$other"
helper=$repository/deploy/mount.fuse.nacre

flags_of() { awk -v at="$1" '$5 == at { print $6 }' /proc/self/mountinfo; }
has_flag() { [[ ,$(flags_of "$1"), == *,$2,* ]] || { echo "$1 is mounted $(flags_of "$1"), not $2"; return 1; }; }
mounted_with() { "$helper" "$address" "$other" -o "$1"; }

programs_of_others() {
  cp /usr/bin/id "$here/id"
  chmod 6755 "$here/id"
  mknod "$here/null" c 1 3
  chmod 666 "$here/null"
  sync -f "$here/id"
}

# Run by an ordinary user, who may not get the owner's rights.
as_nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }

nosuid_and_nodev() {
  mounted_with nosuid,nodev
  has_flag "$other" nosuid
  has_flag "$other" nodev
  fails grep -q euid=0 <<<"$(as_nobody "$other/${here##*/}/id")"
  fails cat "$other/${here##*/}/null"
  umount.fuse.nacre "$other"
}

noexec() {
  mounted_with noexec
  fails "$other/${here##*/}/id"
  umount.fuse.nacre "$other"
}

without_them() {
  mounted_with suid,dev,exec,noatime
  as_nobody "$other/${here##*/}/id" | grep -q euid=0
  cat "$other/${here##*/}/null"
}

# On the mount of the step before.
remounts() {
  "$helper" "$address" "$other" -o remount,ro,nosuid
  has_flag "$other" ro
  has_flag "$other" nosuid
  fails touch "$other/${here##*/}/file"
  "$helper" "$address" "$other" -o rw,remount,suid
  touch "$other/${here##*/}/file"
  as_nobody "$other/${here##*/}/id" | grep -q euid=0
  umount.fuse.nacre "$other"
}

refusals() {
  local option
  for option in strictatime lazytime sync dirsync remount,strictatime; do
    fails mounted_with "$option" >"$work/said" 2>&1
    grep -q "option '${option#remount,}' is not supported: ." "$work/said"
  done
  fails mounted_with nosiud >"$work/said" 2>&1
  grep -q "unknown option 'nosiud'" "$work/said"
  fails mountpoint -q "$other"
}

silent() {
  mounted_with ro >"$work/said" 2>&1
  [[ ! -s $work/said ]] || { cat "$work/said"; return 1; }
  fails touch "$other/file"
  umount.fuse.nacre "$other"
}

umount.fuse.nacre() { "$repository/deploy/umount.fuse.nacre" "$@"; }

step "programs with the rights of others" programs_of_others
step "nosuid and nodev" nosuid_and_nodev
step "noexec" noexec
step "suid, dev, exec and noatime" without_them
step "remount changes what the kernel looks after" remounts
step "what is not supported is refused in words" refusals
step "mounting says nothing" silent
