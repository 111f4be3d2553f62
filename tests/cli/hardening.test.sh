#!/bin/bash
# hardening.test.sh - the program as it is built by default: position-independent, its tables of addresses read-only
# once it runs, its stack guarded and not executable, calls of the C library checked where sizes are known.
set -u

salvo=${SALVO:-build/salvo}
failed=0

# has WHAT TEXT PATTERN
has() {
    grep -qE "$3" <<<"$2" || { echo "$salvo: no $1"; failed=1; }
}

header=$(LC_ALL=C readelf -hW "$salvo") || exit 1
segments=$(LC_ALL=C readelf -lW "$salvo") || exit 1
dynamic=$(LC_ALL=C readelf -dW "$salvo") || exit 1
imports=$(LC_ALL=C nm -D --undefined-only "$salvo") || exit 1
has 'position-independent code' "$header" '^ *Type: +DYN '
has 'position-independent program' "$dynamic" 'FLAGS_1.* PIE'
has 'binding at start' "$dynamic" '(BIND_NOW|FLAGS_1.* NOW)'
has 'read-only relocations' "$segments" '^ *GNU_RELRO '
has 'stack without execute permission' "$segments" '^ *GNU_STACK .* RW +0x'
has 'stack protector' "$imports" ' __stack_chk_fail'
has 'checked calls of the C library' "$imports" ' __(memcpy|memmove|vsnprintf|snprintf|read|strcpy)_chk'
grep -qE '^ *LOAD .* RWE ' <<<"$segments" && { echo "$salvo: memory that is writable and executable"; failed=1; }
exit $failed
