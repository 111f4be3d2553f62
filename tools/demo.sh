#!/bin/sh
# demo.sh - plain decoding beside DFlash on the pair that ships with the project.
#
# Called by `make demo` with the program in $SALVO; arguments go to `salvo demo`. Must not: do what the
# program can do itself.
set -eu

cd "$(dirname "$0")/.."
salvo=${SALVO:-build/salvo}
if [ ! -x "$salvo" ]; then
    echo "$salvo is not built: run make first" >&2
    exit 1
fi
if [ ! -e models/demo/target/config.json ] || [ ! -e models/demo/draft/config.json ]; then
    echo "models/demo is missing: the checkout is not complete" >&2
    exit 1
fi
exec "$salvo" demo "$@"
