//! Compiles the messages and the service in `proto/` to Rust types, without an installed Protocol Buffers compiler.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};
use protox::prost::Message;

/// The file with the rate limit service. Its imports are compiled too.
const SERVICE: &str = "envoy/service/ratelimit/v3/rls.proto";

/// The folder with the `.proto` files.
const FOLDER: &str = "proto";

/// Fields that are `string` in the published protocol, and `bytes` in `proto/`.
const PUBLISHED_AS_STRING: [(&str, &[&str]); 2] =
    [("RateLimitRequest", &["domain"]), ("RateLimitDescriptor.Entry", &["key", "value"])];

/// Returns the descriptors with the field types that Envoy publishes, so that clients that use reflection send text.
/// Both types have the same encoding.
fn with_published_types(mut files: FileDescriptorSet) -> FileDescriptorSet {
    for file in &mut files.file {
        for message in &mut file.message_type {
            let name = message.name().to_owned();
            set_published_types(&name, message);
            for nested in &mut message.nested_type {
                let name = format!("{name}.{}", nested.name());
                set_published_types(&name, nested);
            }
        }
    }
    files
}

fn set_published_types(message_name: &str, message: &mut DescriptorProto) {
    let Some((_, fields)) = PUBLISHED_AS_STRING.iter().find(|(name, _)| *name == message_name)
    else {
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
    // For gRPC reflection and for messages as JSON.
    let published = with_published_types(files.clone());
    fs::write(out.join("descriptors.bin"), published.encode_to_vec())?;
    // Names and values of requests share the buffer of the message.
    let fields = PUBLISHED_AS_STRING
        .iter()
        .flat_map(|(message, fields)| fields.iter().map(move |field| format!("{message}.{field}")));
    fields
        .fold(tonic_prost_build::configure(), |config, field| config.bytes(field))
        .build_client(false)
        .include_file("messages.rs")
        .compile_fds(files)?;
    Ok(())
}
