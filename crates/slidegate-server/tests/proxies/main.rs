//! Tests of slidegate with real proxies, configured by the files of `deploy/`: nginx, Caddy, Traefik, HAProxy and
//! Envoy.
//!
//! `proxies.sh` installs the proxies; the tests of a missing proxy fail. Clients use the addresses from 127.0.0.2
//! upwards, which are not trusted, unlike 127.0.0.1.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod curl;
mod envoy;
mod forward_auth;
mod hostile;
mod launch;
mod process;
mod protocol;
mod published_protocol;
mod raw_client;
#[path = "../../../slidegate-redis/tests/server/mod.rs"]
mod servers;
mod upstream;

use std::path::{Path, PathBuf};

/// Returns the path of a file or folder of the project.
fn project_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap().join(path)
}

/// Returns the path of a program that `make test` installs.
fn installed_program(program: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../proxies").join(program);
    assert!(
        path.exists(),
        "no {program}: run crates/slidegate-server/tests/proxies.sh, as `make test` does"
    );
    path
}
