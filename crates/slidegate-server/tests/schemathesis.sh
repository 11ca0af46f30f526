#!/usr/bin/env bash
# Holds a running server against its own /v1/openapi.json with schemathesis: requests made from the
# schema, valid and invalid, and answers that must be as described. `make fuzz-http` runs it.
set -euo pipefail
cd "$(dirname "$0")/../../.."

VERSION=4.32.5
target=${CARGO_TARGET_DIR:-target}
venv=$target/schemathesis-$VERSION

install() {
    # Debian's python3 comes without what makes a venv.
    python3 -c 'import ensurepip' 2>/dev/null || { apt-get update -q && apt-get install -y -q python3-venv; }
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q "schemathesis==$VERSION"
    # Last, so that what was broken off is done again.
    touch "$venv/installed"
}

work=$(mktemp -d)
server=
stop() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap stop EXIT

start() {
    "$target/debug/slidegate" serve --policy examples/quickstart.yaml --http 127.0.0.1:0 --grpc none 2>"$work/log" &
    server=$!
    for _ in $(seq 100); do
        url=$(sed -n 's/.*listening on \(http:[^ ]*\).*/\1/p' "$work/log")
        [ -z "$url" ] || return 0
        sleep 0.1
    done
    cat "$work/log" >&2
    return 1
}

# By a seed, so that a finding comes back. No stateful phase: no answer leads to another question.
# Run from elsewhere, for it leaves files where it stands.
fuzz() {
    (cd "$work" && "$run" run "$url/v1/openapi.json" --phases examples,coverage,fuzzing \
        --seed 20250 --checks all --request-timeout 10 "$@")
}

[ -e "$venv/installed" ] || install
cargo build -q -p slidegate-server
run=$(realpath "$venv/bin/st")
start

# Bounds count bytes, and JSON Schema counts characters. They are the same in ASCII.
fuzz --exclude-path /v1/auth --max-examples 200 --generation-codec ascii
# In all of Unicode a text may be too long for us and not for the schema: then a 400 is right.
fuzz --exclude-path /v1/auth --max-examples 200 --exclude-checks positive_data_acceptance
# This path takes any method, also those that OpenAPI 3.1 has no word for.
fuzz --include-path /v1/auth --max-examples 50 --generation-codec ascii --exclude-checks unsupported_method

kill -0 "$server" || { cat "$work/log" >&2; exit 1; }
! grep panicked "$work/log"
