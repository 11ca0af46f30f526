//! Generates Rust code for the messages of Envoy's rate limit service, and a tonic service for them, from the proto
//! files of slidegate's server.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "server")]
    generate_rate_limit_protobuf_code()?;
    Ok(())
}

#[cfg(feature = "server")]
fn generate_rate_limit_protobuf_code() -> Result<(), Box<dyn Error>> {
    const PROTO_FOLDER: &str = "../crates/slidegate-server/proto";

    println!("cargo:rerun-if-changed={PROTO_FOLDER}");
    let files = protox::compile(["envoy/service/ratelimit/v3/rls.proto"], [PROTO_FOLDER])?;
    tonic_prost_build::configure().include_file("messages.rs").compile_fds(files)?;
    Ok(())
}
