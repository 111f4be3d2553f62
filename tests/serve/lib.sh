# lib.sh - what the scripts here share: a server on a free port, requests with curl, comparisons that say what they saw.
#
# Sourced by tests/serve/*.test.sh. The program is $SALVO. A script ends with `finish`. JSON is read with `field`.
set -u

salvo=${SALVO:-build/salvo}
[ -x "$salvo" ] || { echo "$salvo is not built"; exit 1; }
salvo=$(realpath "$salvo")
demo=$PWD/models/demo
pair=(-m "$demo/target" -d "$demo/draft")
tiny=$PWD/tests/golden/tiny
tmp=$(mktemp -d)
servers=()
trap 'kill -9 "${servers[@]}" 2>/dev/null; rm -rf "$tmp"' EXIT
n_failed=0

# need COMMAND...: skips the script when one is missing.
need() {
    local c
    for c; do
        command -v "$c" >/dev/null || { echo "skipped: no $c here"; exit 77; }
    done
}

# fail TEXT...: counts, names the caller's line, goes on.
fail() {
    echo "line ${BASH_LINENO[${#BASH_LINENO[@]} - 2]}: $*"
    n_failed=$((n_failed + 1))
}
equal() {
    [ "$1" = "$2" ] || fail "'$1' is not '$2'"
}
holds() {
    [[ $1 == *"$2"* ]] || fail "'$2' is not in: $1"
}

# serve ARG...: starts a server with $pair, the demo pair if the script says nothing, on a free port; sets $url, $server
# and $log, waits until it is ready.
serve() {
    log=$tmp/log.${#servers[@]}
    "$salvo" serve "${pair[@]}" -p 0 "$@" 2>"$log" >/dev/null &
    server=$!
    servers+=("$server")
    local i
    for i in $(seq 600); do
        grep -q ' ready \|"event":"ready"' "$log" && break
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    url=$(grep -o 'https\?://[][0-9.:]*' "$log" | head -n 1)
    [ "$i" != 600 ] && kill -0 "$server" 2>/dev/null || { cat "$log"; fail "the server did not start"; finish; }
}
# stop: SIGTERM, and the exit code.
stop() {
    kill -TERM "$server"
    wait "$server"
}

# post PATH BODY [curl options]: sets $body and $status.
post() {
    local path=$1 data=$2
    shift 2
    status=$(curl -s -m 60 -o "$tmp/body" -w '%{http_code}' -H 'Content-Type: application/json' --data-binary "$data" "$@" "$url$path")
    body=$(cat "$tmp/body")
}
get() {
    local path=$1
    shift
    status=$(curl -s -m 60 -o "$tmp/body" -w '%{http_code}' "$@" "$url$path")
    body=$(cat "$tmp/body")
}
# field NAME JSON: the first value of that name, as written.
field() {
    perl -e 'my ($n, $t) = @ARGV; print $1 if $t =~ /"\Q$n\E":\s*("(?:[^"\\]|\\.)*"|[^,}\]]+)/' "$1" "$2"
}
# metric NAME [curl options]: its value.
metric() {
    local name=$1
    shift
    curl -s -m 20 "$@" "$url/metrics" | awk -v n="$name" '$1 == n { print $2 }'
}

# What has to come is waited for, a minute at most.
# degrades: waits until /health says that a replica has failed; sets $body.
degrades() {
    local i
    for i in $(seq 600); do
        get /health
        [[ $body == *degraded* ]] && return
        sleep 0.1
    done
    fail "no replica has failed: $body"
}
# becomes NAME WANT [curl options]: a metric has this value.
becomes() {
    local name=$1 want=$2 i
    shift 2
    for i in $(seq 600); do
        [ "$(metric "$name" "$@")" = "$want" ] && return
        sleep 0.1
    done
    fail "$name is $(metric "$name" "$@"), not $want"
}
# await TEXT: the log has these words.
await() {
    local i
    for i in $(seq 600); do
        grep -q "$1" "$log" && return
        sleep 0.1
    done
    fail "'$1' is not in: $(tail -n 5 "$log")"
}
# filled FILE: there is something in it.
filled() {
    local i
    for i in $(seq 1200); do
        [ -s "$1" ] && return
        sleep 0.05
    done
    fail "${1##*/} is empty"
}

finish() {
    [ "$n_failed" = 0 ] || exit 1
    exit 0
}
