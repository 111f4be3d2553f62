#!/bin/bash
# check_layers.test.sh - each rule of tools/check_layers fires on a breach, and none on a clean tree.
set -u

check=$PWD/tools/check_layers
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
n_failed=0

# Starts a clean tree.
fresh() {
    rm -rf "${tree:?}"/*
    mkdir -p "$tree"/src/{base,text,backend/cpu,backend/cuda,load,cache,model,engine} "$tree/include" "$tree/tests/x"
    for header in base/base text/text backend/backend load/load cache/cache model/model engine/engine; do
        echo '/* a header */' >"$tree/src/$header.h"
    done
    echo '/* public */' >"$tree/include/salvo.h"
    echo '/* private */' >"$tree/src/load/impl.h"
    put src/base/alloc.c 'void *f(void) { return malloc(1); }' 'char *g(void) { return getenv("X"); }'
    put src/load/ok.c '#include "base/base.h"' '#include "backend/backend.h"' '#include "impl.h"' '#include "load/load.h"' \
        '/* malloc(1) getenv("X") cudaMalloc typedef struct */' 'const char *s = "malloc(1) cudaFree"; // free(p)' \
        'void f(struct d *d) { d->free(d); d->table.free(d); sv_free(d); }'
    put src/engine/ok.c '#include "salvo.h"' '#include "model/model.h"'
    echo '/* its own header */' >"$tree/src/backend/cuda/cuda.h"
    put src/backend/cuda/ok.cu '#include <cuda_runtime.h>' '#include "backend/cuda/cuda.h"' '#include "backend/backend.h"' 'int x = cudaSuccess;'
}

# put FILE LINE...
put() {
    local file=$tree/$1
    shift
    { echo '/* what it owns */' && printf '%s\n' "$@"; } >"$file"
}

# expect RULE: the tree must be refused with it.
expect() {
    local out
    if out=$("$check" "$tree") || ! grep -q "\[$1\]" <<<"$out"; then
        echo "line ${BASH_LINENO[0]}: rule $1 did not fire: $out"
        n_failed=$((n_failed + 1))
    fi
    fresh
}

fresh
"$check" "$tree" || { echo 'a clean tree was refused'; exit 1; }

put src/load/a.c '#include "engine/engine.h"' && expect layer    # upward
put src/load/a.c '#include "cache/cache.h"' && expect layer      # sideways
put src/base/a.c '#include "text/text.h"' && expect layer
put src/load/a.c '#include "salvo.h"' && expect layer
put src/backend/cpu/a.c '#include "backend/cuda/cuda.h"' && expect layer
mkdir "$tree/src/extra" && expect layer
put src/model/a.c '#include "load/impl.h"' && expect front-header
put src/model/a.c '#include "backend/cpu/cpu.h"' && expect front-header
put src/model/a.c '#include "../load/load.h"' && expect include
put src/model/a.c '#include "impl.h"' && expect include
put src/model/a.c 'int x = cudaSuccess;' && expect device-name
put src/model/a.c 'void f(void) { hipMalloc(0, 1); }' && expect device-name
put src/model/a.c '#include <cuda_runtime.h>' && expect device-name
put src/model/a.cu 'int x;' && expect device-name
put src/model/a.cuh 'int x;' && expect device-name
put src/backend/cuda/a.cu 'void f(void) { x = malloc(1); }' && expect allocation
put src/backend/cuda/a.cu '#include "model/model.h"' && expect layer
put src/backend/cuda/a.cu '#include "backend/cpu/cpu.h"' && expect layer
for call in malloc calloc realloc free strdup mmap pthread_create; do
    put src/model/a.c "void f(void) { x = $call (1); }" && expect allocation
done
put src/model/a.c 'char *f(void) { return getenv("X"); }' && expect getenv
put src/model/a.c 'typedef struct x x;' && expect typedef
echo 'int no_comment;' >"$tree/src/model/a.c" && expect header-comment
mapfile -t lines < <(yes 'int x;' | head -n 1000)
put src/model/a.c "${lines[@]}" && expect file-length
put tests/x/test_a.c "${lines[@]}" && expect file-length
put include/salvo.h "${lines[@]:0:300}" && expect file-length
put src/model/a.c 'int f(void)' '{' "${lines[@]:0:149}" '}' && expect function-length
put src/model/a.c 'int f(void) {' "${lines[@]:0:149}" '}' && expect function-length

# At the limits all is well.
put src/model/a.c 'int f(void)' '{' "${lines[@]:0:148}" '}' "${lines[@]:0:848}"
"$check" "$tree" || { echo 'a file and function at the limit were refused'; n_failed=$((n_failed + 1)); }

[ "$n_failed" = 0 ]
