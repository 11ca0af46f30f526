//! Envoy's rate limit service, of the server's own files, for a server and a caller that are tonic's.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    #[cfg(feature = "server")]
    messages()?;
    Ok(())
}

#[cfg(feature = "server")]
fn messages() -> Result<(), Box<dyn Error>> {
    const PROTO: &str = "../crates/slidegate-server/proto";

    println!("cargo:rerun-if-changed={PROTO}");
    let files = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], [PROTO])?;
    tonic_prost_build::configure().include_file("messages.rs").compile_fds(files)?;
    Ok(())
}
