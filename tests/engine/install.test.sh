#!/bin/bash
# install.test.sh - what `make install` puts down can be built against: the program of docs/usage.md, by pkg-config.
# timeout: 120
set -u
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
build=$(dirname "${SALVO:-build/salvo}")
cuda=
! grep -q cuda "$build/backends.list" || cuda=CUDA=1

# Its own make: nothing of the one that runs the tests.
env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -s install B="$build" PREFIX="$tmp/usr" $cuda >"$tmp/log" 2>&1 || {
    cat "$tmp/log"
    exit 1
}
sed -n '/^```c$/,/^```$/{/^```/d;p}' docs/usage.md >"$tmp/answer.c"
[ -s "$tmp/answer.c" ] || { echo 'docs/usage.md has no program'; exit 1; }
export PKG_CONFIG_PATH=$tmp/usr/lib/pkgconfig
# shellcheck disable=SC2046
${CC:-cc} -std=c11 -Wall -Wextra -Werror -o "$tmp/answer" "$tmp/answer.c" $(pkg-config --cflags --libs salvo) || exit 1
pkg-config --modversion salvo | grep -qx '[0-9.]*' || exit 1

"$tmp/answer" >"$tmp/out" || exit 1
"$tmp/usr/bin/salvo" run -q --raw -m models/demo/target -d models/demo/draft -n 48 -p 'def fibonacci(n):' >"$tmp/same" || exit 1
echo >>"$tmp/out" # run ends with a new line
cmp "$tmp/out" "$tmp/same" || exit 1
# The same as C++.
if command -v ${CXX:-c++} >/dev/null; then
    # shellcheck disable=SC2046
    ${CXX:-c++} -std=c++11 -Wall -Wextra -Werror -o "$tmp/plus" -x c++ "$tmp/answer.c" -x none $(pkg-config --cflags --libs salvo) || exit 1
    "$tmp/plus" >"$tmp/out" || exit 1
    echo >>"$tmp/out"
    cmp "$tmp/out" "$tmp/same" || exit 1
else
    echo 'no C++ compiler here: salvo.h was not tried with it'
    [ -z "${SALVO_CI-}" ] || exit 1
fi
! "$tmp/answer" /nonexistent 2>"$tmp/err" >"$tmp/out" || exit 1
grep -q /nonexistent "$tmp/err" || exit 1
