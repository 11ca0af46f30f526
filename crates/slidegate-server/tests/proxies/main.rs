//! Real proxies ask a real slidegate, configured by the very files of `deploy/`: nginx, Caddy, Traefik, HAProxy
//! and Envoy.
//! `proxies.sh` installs them; without one, its test fails.
//!
//! Clients are at 127.0.0.2 and above, which are not trusted, as 127.0.0.1 is.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

#[path = "../common/mod.rs"]
mod common;
mod curl;
mod envoy;
mod forward_auth;
mod hostile;
mod independent;
mod launch;
mod process;
mod protocol;
mod raw;
#[path = "../../../slidegate-redis/tests/server/mod.rs"]
mod servers;
mod upstream;

use std::path::{Path, PathBuf};

/// A file or a folder of the project.
fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap().join(path)
}

/// A program that `make test` installs.
fn installed(program: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../proxies").join(program);
    assert!(
        path.exists(),
        "no {program}: run crates/slidegate-server/tests/proxies.sh, as `make test` does"
    );
    path
}
