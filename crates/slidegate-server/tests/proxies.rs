//! Tests of slidegate with real proxies: nginx, Caddy, Traefik, HAProxy and Envoy. The proxies use the configuration
//! files in `deploy/`.
//!
//! `proxies.sh` installs the proxies. If a proxy is missing, its tests fail. Clients use the addresses from 127.0.0.2
//! upwards. Unlike 127.0.0.1, these addresses are not trusted as proxies.

mod bursts;
mod curl;
mod envoy;
mod failing_slidegate;
mod forward_auth;
mod hostile;
mod istio;
mod launch;
mod nginx_and_envoy;
mod process;
mod protocol;
mod published_protocol;
mod raw_client;
mod upstream;

use std::path::{Path, PathBuf};

/// Returns the path of a program that `make test` installs. Panics if the program is missing.
fn installed_program(program: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../proxies").join(program);
    assert!(
        path.exists(),
        "no {program}: run crates/slidegate-server/tests/proxies.sh, as `make test` does"
    );
    path
}
