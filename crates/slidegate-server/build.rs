//! Makes types of the messages in `proto/`, without a compiler of Protocol Buffers on the machine.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use protox::prost::Message;

/// The service; what it imports follows.
const SERVICE: &str = "envoy/service/ratelimit/v3/rls.proto";

/// The folder of the files.
const FOLDER: &str = "proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={FOLDER}");
    let files = protox::compile([SERVICE], [FOLDER])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // What reflection tells, and by which JSON is read.
    fs::write(out.join("descriptors.bin"), files.encode_to_vec())?;
    prost_build::Config::new().include_file("messages.rs").compile_fds(files)?;
    Ok(())
}
