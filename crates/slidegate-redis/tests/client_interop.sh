#!/usr/bin/env bash
# Installs what examples/redis needs, under target/: a venv with redis-py, and node-redis. `make test` runs it.
set -euo pipefail
cd "$(dirname "$0")/../../.."

PYTHON=8.1.0
# The last that runs on Debian's node 18.
NODE=5.9.0
home=${CARGO_TARGET_DIR:-target}/everybody
installed=$home/installed-$PYTHON-$NODE
[ ! -e "$installed" ] || exit 0

# Debian's python3 comes without what makes a venv.
python3 -c 'import ensurepip' 2>/dev/null || { apt-get update -q && apt-get install -y -q python3-venv; }
command -v npm >/dev/null || { apt-get update -q && apt-get install -y -q nodejs npm; }
rm -rf "$home"
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install -q "redis==$PYTHON"
npm install --silent --no-audit --no-fund --prefix "$home" "redis@$NODE"
# Last, so that what was broken off is done again.
touch "$installed"
