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
    mkdir -p "$tree"/src/{base,token,backend/{cpu,gpu,cuda},grammar/{core,regex},load,cache,model,engine} \
        "$tree"/src/serve/{http,core,openai,anthropic} "$tree/include" "$tree/tests/x"
    for header in base/base token/token backend/device backend/ops load/load cache/cache model/model engine/engine; do
        echo '/* a header */' >"$tree/src/$header.h"
    done
    echo '/* public */' >"$tree/include/salvo.h"
    echo '/* private */' >"$tree/src/load/impl.h"
    put src/base/alloc.c 'void *f(void) { return malloc(1); }' 'char *g(void) { return getenv("X"); }'
    put src/load/ok.c '#include "base/base.h"' '#include "backend/ops.h"' '#include "impl.h"' '#include "load/load.h"' \
        '/* malloc(1) getenv("X") cudaMalloc typedef struct */' 'const char *s = "malloc(1) cudaFree"; // free(p)' \
        'void f(struct d *d) { d->free(d); d->table.free(d); sv_free(d); }'
    put src/engine/ok.c '#include "salvo.h"' '#include "model/model.h"'
    for header in serve http/http http/tls core/call core/write core/send core/out openai/openai openai/own; do
        echo '/* a header */' >"$tree/src/serve/$header.h"
    done
    put src/serve/core/ok.c '#include "serve/http/http.h"' '#include "serve/core/out.h"'
    put src/serve/openai/ok.c '#include "serve/core/call.h"' '#include "serve/http/http.h"' '#include "serve/openai/own.h"'
    put src/serve/ok.c '#include "serve/serve.h"' '#include "serve/core/send.h"' '#include "serve/openai/openai.h"'
    echo '/* its own header */' >"$tree/src/backend/cuda/cuda.h"
    put src/backend/gpu/ok.cu '#include "backend/cuda/cuda.h"' '__global__ void f(void);'
    put src/backend/cuda/ok.cu '#include <cuda_runtime.h>' '#include "backend/cuda/cuda.h"' '#include "backend/ops.h"' 'int x = cudaSuccess;'
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
put src/base/a.c '#include "token/token.h"' && expect layer
put src/load/a.c '#include "salvo.h"' && expect layer
put src/load/a.c '#include "salvo_tuning.h"' && expect layer
put src/backend/cpu/a.c '#include "backend/cuda/cuda.h"' && expect layer
put src/backend/gpu/a.cu '#include "backend/cpu/cpu.h"' && expect layer
mkdir "$tree/src/extra" && expect layer
# Within a folder: upward, sideways, into the seam's rooms, an unknown room.
put src/serve/http/a.c '#include "serve/core/call.h"' && expect layer
put src/serve/core/a.c '#include "serve/openai/openai.h"' && expect layer
put src/serve/core/a.c '#include "serve/serve.h"' && expect layer
put src/serve/anthropic/a.c '#include "serve/openai/openai.h"' && expect layer
put src/grammar/core/a.c '#include "grammar/regex/regex.h"' && expect layer
put src/backend/a.c '#include "backend/cpu/cpu.h"' && expect layer
mkdir "$tree/src/serve/extra" && expect layer
mkdir "$tree/src/model/extra" && expect layer
put src/serve/openai/a.c '#include "serve/core/out.h"' && expect front-header
put src/serve/openai/a.c '#include "serve/core/send.h"' && expect front-header
put src/serve/a.c '#include "serve/core/out.h"' && expect front-header
put src/serve/a.c '#include "serve/openai/own.h"' && expect front-header
put src/grammar/regex/a.c '#include "grammar/core/own.h"' && expect front-header
mkdir "$tree/src/cli" && put src/cli/a.c '#include "serve/core/call.h"' && expect front-header
put src/model/a.c '#include "load/impl.h"' && expect front-header
put src/model/a.c '#include "backend/cpu/cpu.h"' && expect front-header
echo '/* private */' >"$tree/src/backend/backends.h"
put src/model/a.c '#include "backend/backends.h"' && expect front-header
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
put src/model/a.h "${lines[@]:0:300}" && expect file-length
put src/serve/core/call.h "${lines[@]:0:200}" && expect file-length
put src/engine/engine.h "${lines[@]:0:200}" && expect file-length
put src/model/a.c 'int f(void)' '{' "${lines[@]:0:149}" '}' && expect function-length
put src/model/a.c 'int f(void) {' "${lines[@]:0:149}" '}' && expect function-length

# At the limits all is well.
put src/model/a.c 'int f(void)' '{' "${lines[@]:0:148}" '}' "${lines[@]:0:848}"
put src/model/a.h "${lines[@]:0:299}"
put src/engine/engine.h "${lines[@]:0:199}"
put src/base/unicode_table.h "${lines[@]:0:900}"
"$check" "$tree" || { echo 'a file and function at the limit were refused'; n_failed=$((n_failed + 1)); }

[ "$n_failed" = 0 ]
