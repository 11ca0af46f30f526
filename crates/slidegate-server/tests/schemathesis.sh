#!/usr/bin/env bash
# Tests a running server against its own /v1/openapi.json with schemathesis: valid and invalid requests generated
# from the schema, and responses that must match it. `make fuzz-http` runs it.
set -euo pipefail
cd "$(dirname "$0")/../../.."

VERSION=4.32.5
# The number of requests that are generated for each operation. More are sent at night.
EXAMPLES=${MAX_EXAMPLES:-100}
target=${CARGO_TARGET_DIR:-target}
venv=$target/schemathesis-$VERSION

install() {
    # Debian's python3 lacks the module that creates a venv.
    python3 -c 'import ensurepip' 2>/dev/null || { apt-get update -q && apt-get install -y -q python3-venv; }
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q "schemathesis==$VERSION"
    # Written last, so that an interrupted installation is repeated.
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
    # The server may start later than the first look at its log.
    : >"$work/log"
    "$target/debug/slidegate" serve --policy examples/quickstart.yaml --http 127.0.0.1:0 --grpc none --admin 127.0.0.1:0 2>"$work/log" &
    server=$!
    for _ in $(seq 100); do
        url=$(sed -n 's/.*listening on \(http:[^ ]*\).*/\1/p' "$work/log")
        [ -z "$url" ] || return 0
        sleep 0.1
    done
    cat "$work/log" >&2
    return 1
}

# Starts a run in the background. The seed makes findings reproducible. There is no stateful phase, because no response
# refers to another request. Each run has its own folder, because schemathesis leaves files in the current one.
runs=()
fuzz() {
    local folder=$work/run${#runs[@]}
    mkdir "$folder"
    (cd "$folder" && "$run" --config-file "$work/schemathesis.toml" run "$document" --url "$url" --phases examples,coverage,fuzzing \
        --seed 20250 --checks all --request-timeout 10 "$@") >"$folder/output" 2>&1 &
    runs+=($!)
}

[ -e "$venv/installed" ] || install
# The same build as for the other tests.
cargo test -q --workspace --all-features --test integration --no-run
run=$(realpath "$venv/bin/st")
start

# 422: the idempotency key of an earlier example is used again for another request.
cat >"$work/schemathesis.toml" <<'EOF'
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "409", "422", "429", "5xx"]
EOF

# The document without named costs. No schema describes which names the rules of a policy charge, and others are rejected.
python3 - "$url/v1/openapi.json" >"$work/without_costs.json" <<'EOF'
import json
import sys
import urllib.request


def examples(node):
    """The request bodies in a part of the document."""
    if isinstance(node, dict):
        if "attributes" in node.get("value", {}):
            yield node["value"]
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from examples(child)


document = json.load(urllib.request.urlopen(sys.argv[1]))
for schema in document["components"]["schemas"].values():
    if schema.get("properties", {}).pop("costs", None) and schema.pop("anyOf", None):
        schema["required"].append("cost")
for example in examples(document["paths"]):
    example.pop("costs", None)
    example.setdefault("cost", 1)
print(json.dumps(document))
EOF

# The server's bounds count bytes, and JSON Schema counts characters. In ASCII they are equal. No schema describes which
# tokens of permits and reservations are valid.
document=$work/without_costs.json
fuzz --exclude-path-regex '^/v1/(auth|release|renew|settle)$' --max-examples "$EXAMPLES" --generation-codec ascii
document=$url/v1/openapi.json
# In Unicode, a text may exceed the server's bound but not the schema's: then a 400 is correct.
fuzz --exclude-path /v1/auth --max-examples "$EXAMPLES" --exclude-checks positive_data_acceptance
# This path accepts any method, including methods that OpenAPI 3.1 cannot describe.
fuzz --include-path /v1/auth --max-examples "$((EXAMPLES / 4))" --generation-codec ascii --exclude-checks unsupported_method

failed=
for index in "${!runs[@]}"; do
    wait "${runs[$index]}" || failed=1
    cat "$work/run$index/output"
done
[ -z "$failed" ]
kill -0 "$server" || { cat "$work/log" >&2; exit 1; }
! grep panicked "$work/log"
