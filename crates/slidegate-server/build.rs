//! Makes types of the messages in `proto/`, without a compiler of Protocol Buffers on the machine.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};
use protox::prost::Message;

/// The service; what it imports follows.
const SERVICE: &str = "envoy/service/ratelimit/v3/rls.proto";

/// The folder of the files.
const FOLDER: &str = "proto";

/// The fields that are `string` in the published protocol, and `bytes` in ours.
const PUBLISHED_AS_STRING: [(&str, &[&str]); 2] =
    [("RateLimitRequest", &["domain"]), ("RateLimitDescriptor.Entry", &["key", "value"])];

/// Returns the files as Envoy publishes them, so that clients that use reflection write text. On the wire both types
/// are the same.
fn as_published(mut files: FileDescriptorSet) -> FileDescriptorSet {
    for file in &mut files.file {
        for message in &mut file.message_type {
            let name = message.name().to_owned();
            publish(&name, message);
            for nested in &mut message.nested_type {
                let name = format!("{name}.{}", nested.name());
                publish(&name, nested);
            }
        }
    }
    files
}

fn publish(name: &str, message: &mut DescriptorProto) {
    let Some((_, fields)) = PUBLISHED_AS_STRING.iter().find(|(own, _)| *own == name) else {
        return;
    };
    for field in message.field.iter_mut().filter(|field| fields.contains(&field.name())) {
        field.set_type(Type::String);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={FOLDER}");
    let files = protox::compile([SERVICE], [FOLDER])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // For reflection and for writing JSON.
    fs::write(out.join("descriptors.bin"), as_published(files.clone()).encode_to_vec())?;
    prost_build::Config::new().include_file("messages.rs").compile_fds(files)?;
    Ok(())
}
