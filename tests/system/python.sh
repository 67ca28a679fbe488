#!/usr/bin/env bash
# The Python package: its tests on a `nacre local` mount, with the GPU that is not there; its examples; the wheel, made and used without a
# network; the linter of its types, where that is installed.
# shellcheck source=lib.sh
source "$(dirname "$0")/lib.sh"
python=/usr/bin/python3 # Debian's, which has Debian's NumPy
[[ -x $python ]] && $python -c 'import numpy' 2>/dev/null || { echo "python: SKIPPED: needs python3 and python3-numpy" >&2; exit 77; }
begin python 600 900 --local 4 -- "$@"
package=$repository/python
export NACRE_LIBRARY=${NACRE_LIBRARY:-$bin/../api/libnacre.so.0}
[[ -e $NACRE_LIBRARY ]] || skip "no $NACRE_LIBRARY: build libnacre first"
export PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=error::ResourceWarning

server=$(cluster_pids | head -n 1)
[[ -n $server ]] || fail "no process serves $mount"

# tests_of MODULE…: all of them run, none is skipped but for PyTorch, which is or is not there.
tests_of() {
  (cd "$package" && NACRE_TEST_DIR=$here NACRE_TEST_SERVER_PID=$server $python -X dev -m unittest "$@" -v) >"$work/said" 2>&1 || {
    kill -CONT "$server"
    grep -v ' E libnacre ' "$work/said"
    return 1
  }
  grep -E '\.\.\. skipped' "$work/said" | grep -v 'PyTorch is' >"$work/skipped" || return 0
  cat "$work/skipped"
  return 1
}

examples() {
  local example
  for example in "$package"/examples/*.py; do
    PYTHONPATH=$package $python "$example" "$here" >"$work/said" || { cat "$work/said"; return 1; }
    grep -q '^done' "$work/said"
  done
}

# The text's own examples (docs/python.md) are what its readers type.
text_examples() {
  (cd "$here" && NACRE_TEST_DIR=$here PYTHONPATH=$package $python -m doctest -o ELLIPSIS "$repository/docs/python.md")
}

makes_wheel() {
  cp -r "$package" "$work/source" # setuptools leaves things there
  $python -m pip wheel --quiet --no-index --no-build-isolation --no-deps --wheel-dir "$work/wheel" "$work/source"
  $python -m pip install --quiet --no-index --no-deps --target "$work/installed" "$work"/wheel/nacre-*-py3-none-any.whl
}

uses_wheel() {
  printf 'from the wheel' >"$here/wheel"
  (cd / && PYTHONPATH=$work/installed $python -c '
import nacre, nacre.aio, nacre.safetensors, nacre.torch, os, sys
assert os.path.dirname(nacre.__file__) == sys.argv[2] + "/nacre", nacre.__file__
assert os.path.exists(sys.argv[2] + "/nacre/py.typed")
with nacre.open(sys.argv[1]) as file: assert file.read() == b"from the wheel"
' "$here/wheel" "$work/installed")
}

# The library beside the package, as whoever ships both in one directory has it; and none at all, in words.
finds_library() {
  cp "$NACRE_LIBRARY" "$work/installed/nacre/libnacre.so.0"
  (cd / && env -u NACRE_LIBRARY PYTHONPATH="$work/installed" $python -c 'import nacre; print(nacre.library_version())')
  rm "$work/installed/nacre/libnacre.so.0"
}

types() { (cd "$package" && mypy --cache-dir "$work/mypy" nacre); }

step "what needs no mount" env -u NACRE_TEST_DIR $python -m unittest discover -q -t "$package" -s "$package/tests" -p 'test_[mb]*.py'
export NACRE_CUDA_LIBRARY=$bin/libnacre-fake-cuda.so
[[ -e $NACRE_CUDA_LIBRARY ]] || skip "no build/bin/libnacre-fake-cuda.so: build nacre-fake-cuda first"
step "everything, on a mount" tests_of discover -t . -s tests
unset NACRE_CUDA_LIBRARY
step "the examples" examples
step "the text's examples" text_examples
if $python -c 'import setuptools, wheel, pip' 2>/dev/null; then
  step "a wheel is made without a network" makes_wheel
  step "and used" uses_wheel
  step "the library is found beside the package" finds_library
else
  note "no pip, setuptools and wheel: no wheel is made"
fi
if have mypy; then
  step "types" types
else
  note "no mypy: types are not checked"
fi
