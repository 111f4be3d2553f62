#!/bin/bash
# setup.test.sh - tools/setup finds a compiler of several words where all is there, and says so where none is; it asks for no
# package when nothing is missing.
set -u
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
for name in apt-get sudo; do # neither installs anything here
    printf '#!/bin/sh\necho "%s $*" >>"%s"\nexit 1\n' $name "$tmp/called" >"$tmp/$name"
    chmod +x "$tmp/$name"
done
n_failed=0
try() { # CC WANT
    local code=0
    rm -f "$tmp/called"
    PATH=$tmp:$PATH CC=$1 tools/setup >"$tmp/out" 2>&1 || code=$?
    if [ "$((code != 0))" != "$2" ] || { [ "$2" = 0 ] && [ -e "$tmp/called" ]; }; then
        echo "CC='$1': exit code $code: $(cat "$tmp/out" "$tmp/called" 2>&1)"
        n_failed=1
    fi
}
try cc 0
try 'env cc' 0
try "$tmp/no-compiler" 1
try false 1
exit $n_failed
