#!/bin/bash
# check_links.test.sh - tools/check_links accepts what exists and names what does not.
set -u

check=$PWD/tools/check_links
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
n_failed=0
mkdir -p "$tree"/docs/notes "$tree"/bench/results "$tree"/src
touch "$tree/bench/results/a-1.csv" "$tree/src/base.c"
printf '# One: two, `three`\n' >"$tree/docs/other.md"

# page FILE LINE: the tree has this page alone.
page() {
    rm -f "$tree"/*.md "$tree"/docs/page.md "$tree"/docs/notes/*.md
    printf '# Page\n\n%s\n' "$2" >"$tree/$1"
}

# accepts FILE LINE, refuses FILE LINE
accepts() {
    page "$1" "$2"
    "$check" "$tree" || { echo "refused in $1: $2"; n_failed=$((n_failed + 1)); }
}
refuses() {
    page "$1" "$2"
    local out
    if out=$("$check" "$tree") || ! grep -q "^$1:3: \[link\]" <<<"$out"; then
        echo "accepted in $1: $2"
        n_failed=$((n_failed + 1))
    fi
}

accepts docs/page.md '[x](other.md), [y](other.md#one-two-three), [z](#page), [w](https://example.org/gone)'
accepts docs/page.md '`a-1.csv`, `a-*.csv`, `bench/results/a-{1,1}.csv`, `src/base.c`, `src/base`, `base.c`, `build/salvo`'
accepts docs/notes/x.md '`src/was_there.c`, `was_there.c`, `a-1.csv`, [x](../other.md)'
refuses README.md '[x](other.md)'
refuses docs/page.md '[x](other.md#gone)'
refuses docs/page.md '[x](#gone)'
refuses docs/page.md '`src/gone.c`'
refuses docs/page.md '`gone.c`'
refuses docs/page.md '`gone.cuh`'
refuses docs/page.md '`gone.csv`'
refuses docs/page.md '`gone-*.csv`'
refuses docs/notes/x.md '`bench/results/gone.csv`'

if [ "$n_failed" -gt 0 ]; then exit 1; fi
