#!/usr/bin/env bash
# Installs the dependencies of examples/redis under target/: a venv with redis-py, and node-redis. Run by `make test`.
set -euo pipefail
cd "$(dirname "$0")/../../.."

PYTHON=8.1.0
# The last version that runs on Debian's node 18.
NODE=5.9.0
home=${CARGO_TARGET_DIR:-target}/client_interop
installed=$home/installed-$PYTHON-$NODE
[ ! -e "$installed" ] || exit 0

# Debian's python3 lacks the module that creates a venv.
python3 -c 'import ensurepip' 2>/dev/null || { apt-get update -q && apt-get install -y -q python3-venv; }
command -v npm >/dev/null || { apt-get update -q && apt-get install -y -q nodejs npm; }
rm -rf "$home"
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install -q "redis==$PYTHON"
npm install --silent --no-audit --no-fund --prefix "$home" "redis@$NODE"
# Written last, so that an interrupted installation is repeated.
touch "$installed"
