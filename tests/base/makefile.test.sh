#!/bin/bash
# makefile.test.sh - the Makefile compiles again what would come out otherwise, and nothing else: in a small tree of its own.
# timeout: 120
set -u
export LC_ALL=C
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/tools" "$tmp/src/base" "$tmp/src/backend/cpu" "$tmp/src/cli" "$tmp/tests/cli" "$tmp/bench"
cp Makefile "$tmp/"
printf '#!/bin/sh\n' >"$tmp/tools/setup"
# The compiler: before and after a compilation it does what a test has put into a file.
cat >"$tmp/cc" <<'END'
#!/bin/bash
case " $* " in
*" -c "*obj*) ;;
*) exec cc "$@" ;;
esac
dir=$(dirname "$0")
cc "$@" && { [ ! -e "$dir/meanwhile" ] || . "$dir/meanwhile"; }
END
chmod +x "$tmp/tools/setup" "$tmp/cc"
cd "$tmp" || exit 1

echo '#define ANSWER 1' >src/base/a.h
printf '#include "base/a.h"\nint a(void);\nint a(void) { return ANSWER; }\n' >src/base/a.c
echo 'int b(void); int b(void) { return 0; }' >src/base/b.c
echo 'int c(void); int c(void) { return 0; }' >src/backend/cpu/c_avx2.c
echo 'int more(void); int more(void) { return 7; }' >src/cli/more.c
printf 'int a(void);\nint more(void);\nint main(void) { return a() + more() - 7; }\n' >src/cli/main.c
printf 'int more(void);\nint main(void) { return more() != 7; }\n' >tests/cli/test_more.c
echo 'int helper(void); int helper(void) { return 0; }' >tests/helper.c

built() { # ARGS... -> names of what was compiled and linked
    env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS -u CFLAGS -u CPPFLAGS make B=b CC=./cc "$@" all >log 2>&1 || {
        cat log
        return 1
    }
    sed -n 's/^  \(cc\|link\) *b\///p' log | sort | tr '\n' ' '
}
expect() { # WHAT WANT ARGS...
    local what=$1 want=$2 got
    shift 2
    got=$(built "$@") || { echo "$what: $got"; exit 1; }
    [ "$got" = "$want" ] || { echo "$what: made '$got', not '$want'"; exit 1; }
}
avx2=src/backend/cpu/c_avx2
echo 'int x;' | cc -mavx2 -mfma -mf16c -x c -c -o /dev/null - 2>/dev/null || avx2=
all="salvo ${avx2:+$avx2 }src/base/a src/base/b src/cli/main src/cli/more "
all=$(echo "$all" | tr ' ' '\n' | sed '/^$/d' | sort | tr '\n' ' ')

expect 'first build' "$all"
expect 'nothing changed' ''
touch Makefile
expect 'the Makefile touched' ''
expect 'other CFLAGS' "$all" CFLAGS=-DOTHER
expect 'the same CFLAGS' '' CFLAGS=-DOTHER
expect 'without them' "$all"
expect 'flags that make and shell read otherwise' "$all" CFLAGS="-DODD='\"a\$\$b \\n\"'"
expect 'the same of them' '' CFLAGS="-DODD='\"a\$\$b \\n\"'"
expect 'back' "$all"
[ -z "$avx2" ] || expect 'flags of some files' "salvo $avx2 " AVX2_FLAGS='-mavx2 -mfma -mf16c -DMORE'
[ -z "$avx2" ] || expect 'back' "salvo $avx2 "
expect 'linked otherwise' 'salvo ' LDFLAGS=-Wl,-O1
expect 'back' 'salvo '
touch src/base/a.h
expect 'a header' 'salvo src/base/a '

# A source that changes while it is compiled: the object is of the old one, and must be made again.
touch src/base/a.c
cat >meanwhile <<'END'
rm "$dir/meanwhile"
sleep 0.05
echo '#define ANSWER 0' >"$dir/src/base/a.h"
sleep 0.05
while [ "$1" != -o ]; do shift; done
touch "$2" # as if the compiler had written it only now
END
expect 'a header that changes meanwhile' 'salvo src/base/a '
! ./b/salvo || { echo 'the header was read too late for this test'; exit 1; }
expect 'after that' 'salvo src/base/a '
./b/salvo || { echo 'the program has the old header'; exit 1; }

# A compilation that ends behind the compiler leaves the old object, which nobody may take for one of the new flags.
echo 'exit 1' >meanwhile
! built CFLAGS=-DOTHER >/dev/null || { echo 'a compiler that failed was believed'; exit 1; }
rm meanwhile
expect 'after a failed one' "$all" CFLAGS=-DOTHER
[ -z "$(find b -name '*.at' -o -name '*.o.*')" ] || { find b; echo 'left over'; exit 1; }

# Unit tests reach every file of the program but its main.
env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -s B=b CC=./cc CFLAGS=-DOTHER TEST_LDLIBS= b/tests/cli/test_more >log 2>&1 &&
    ./b/tests/cli/test_more || {
    cat log
    echo 'a test of a file of src/cli'
    exit 1
}

# A test is made again before it runs, also where one case of it is named.
for named in cli/test_more "cli/test_more/a_case cli/test_more/another" test_more; do
    env -u MAKEFLAGS -u MAKELEVEL -u MFLAGS make -n B=b CC=./cc CFLAGS=-DOTHER T="$named" tests >log 2>&1
    grep -q 'tests/cli/test_more' log || { cat log; echo "$named is not made"; exit 1; }
done
