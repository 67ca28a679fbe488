#!/usr/bin/env bash
# The systemd units and the Debian package: systemd finds nothing wrong with the units; mounts are ordered behind all servers; servers keep
# their files to themselves; a removal stops mounts before servers; the package has what Debian wants and starts nothing. (No systemd runs here:
# what it would do is read off the units. The package is made and looked at, not installed.)
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
begin units 300 300 --bare -- "$@"
have systemd-analyze || skip "no systemd-analyze here"
made=$(cd "$bin/.." && pwd)/deploy/systemd
[[ -f $made/nacre-mds.service ]] || skip "no $made: NACRE_BIN is not a build's"

units=$work/units
mkdir "$units"
for unit in "$made"/*; do sed "s,%BINDIR%,$bin," "$unit" >"$units/$(basename "$unit")"; done

# value UNIT KEY: all words of the key's lines
value() { sed -n "s/^$2=//p" "$units/$1" | tr '\n' ' '; }
has() { grep -qE -- "(^| )$3( |$)" <<<"$(value "$1" "$2")" || { echo "$1 has no $2=$3 but: $(value "$1" "$2")"; return 1; }; }

nothing_wrong() {
  local said
  mkdir "$work/empty"
  said=$(cd "$units" && SYSTEMD_UNIT_PATH=$units: systemd-analyze verify --man=no nacre-mds.service nacre-oss@a.service nacre-client@a.service \
    nacre-servers.target 2>&1 | grep -i nacre || true)
  [[ -z $said ]] || { echo "$said"; return 1; }
}

servers_before_mounts() {
  local server
  for server in nacre-mds.service nacre-oss@.service; do
    has "$server" Before nacre-servers.target
    has "$server" Wants nacre-servers.target # only what runs is ordered
  done
  has nacre-client@.service After nacre-servers.target
  has nacre-servers.target Before remote-fs-pre.target # for mounts of /etc/fstab
  has nacre-servers.target Wants remote-fs-pre.target
}

closed_to_others() {
  local server
  for server in nacre-mds.service nacre-oss@.service; do
    has "$server" UMask 0077
    has "$server" StateDirectoryMode 0700
  done
}

client_is_kept() {
  has nacre-client@.service OOMScoreAdjust -800
  has nacre-client@.service TimeoutStopSec '[0-9]+'
  value nacre-client@.service ExecStart | grep -q -- --make-mountpoint
}

# The scripts with commands that write down how they are called.
removal_stops_mounts_first() {
  local command
  mkdir -p "$work/fake" "$work/systemd"
  for command in systemctl umount; do
    printf '#!/bin/sh\necho %s "$@" >>%s/called\n' "$command" "$work" >"$work/fake/$command"
    chmod +x "$work/fake/$command"
  done
  sed "s,/run/systemd/system,$work/systemd," "$repository/deploy/package/prerm" >"$work/prerm"
  PATH=$work/fake:$PATH sh "$work/prerm" upgrade
  [[ ! -e $work/called ]]
  PATH=$work/fake:$PATH sh "$work/prerm" remove
  cat "$work/called"
  diff - <(sed 's/systemctl stop //' "$work/called") <<CALLS
nacre-client@*.service
umount -a -t fuse.nacre
nacre-servers.target
nacre-oss@*.service
nacre-mds.service
CALLS
}

# makes_package: with the programs of the build, as `cd build && cpack` does
makes_package() {
  local part
  for part in nacre nacre-mds nacre-oss nacre-client; do [[ -x $bin/$part ]] || { echo "build $part first"; return 1; }; done
  (cd "$bin/.." && cpack -B "$work/package") >"$work/cpack" 2>&1 || { cat "$work/cpack"; return 1; }
  mv "$work"/package/nacre_*.deb "$work/nacre.deb"
  dpkg-deb --contents "$work/nacre.deb" | awk '$1 !~ /^d/ {print $6}' | sed 's,^\.,,' >"$work/files"
}

# Its files below /etc are samples, which no unit reads, and dpkg keeps what an administrator makes of them.
starts_nothing() {
  grep '^/etc/' "$work/files" | sort >"$work/etc"
  dpkg-deb --info "$work/nacre.deb" conffiles | sort | diff - "$work/etc"
  [[ -z $(grep -v '\.toml\.sample$' "$work/etc") ]]
  (($(wc -l <"$work/etc") == 3))
  [[ -z $(dpkg-deb --info "$work/nacre.deb" postinst | grep -E 'systemctl.*(enable|start)') ]]
}

as_debian_wants() {
  dpkg-deb --field "$work/nacre.deb" Maintainer | grep -qE '^[^<]+ <[^@>]+@[^>]+>$'
  dpkg-deb --info "$work/nacre.deb" triggers | grep -qx 'activate-noawait ldconfig'
  grep -qx /usr/share/doc/nacre/changelog.gz "$work/files"
  [[ -z $(grep '^/usr/share/man/' "$work/files" | grep -v '\.gz$') ]]
  (($(grep -c '^/usr/share/man/' "$work/files") == $(find "$repository/docs/man" -type f | wc -l)))
  [[ $(dpkg-deb --field "$work/nacre.deb" Version) == "$(dpkg-parsechangelog -l "$repository/deploy/package/changelog" -S Version)" ]]
  have lintian || { note "no lintian here"; return 0; }
  lintian --allow-root --fail-on error,warning "$work/nacre.deb" || { lintian --allow-root --info "$work/nacre.deb"; return 1; }
}

step "systemd-analyze verify" nothing_wrong
step "servers are started before mounts, and stopped after them" servers_before_mounts
step "servers keep their files to themselves" closed_to_others
step "clients: bounded stop, spared by the OOM killer, mountpoint made" client_is_kept
step "the package's removal stops mounts before servers" removal_stops_mounts_first
step "the package is made" makes_package
step "the package starts nothing" starts_nothing
# The Python package has its modules, all of them and nothing else, and wants the libnacre that it was made with.
has_python_package() {
  local deb version
  deb=$(echo "$work"/package/python3-nacre_*_all.deb)
  version=$(dpkg-deb --field "$work/nacre.deb" Version)
  dpkg-deb --field "$deb" Depends | grep -qF "nacre (= $version)"
  diff <(dpkg-deb --contents "$deb" | awk '$1 !~ /^d/ {print $6}' | sed -n 's,^\./usr/lib/python3/dist-packages/,,p' | sort) \
    <(cd "$repository/python" && git ls-files nacre | sort)
  grep -qx "__version__ = \"$version\"" "$repository/python/nacre/__init__.py"
  ! grep -q dist-packages "$work/files"
}

step "the package is as Debian wants it" as_debian_wants
step "the package of the Python modules" has_python_package
