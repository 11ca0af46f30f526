//! The files in `generated/` are compiled from `proto/`, and from the types of a policy. They are stored, so that a
//! build of the server does not compile the 34 crates that generate them. `UPDATE_SNAPSHOTS=1` writes them again.

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs};

use prost::Message;
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};

/// The folder of this crate.
const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// The file with the rate limit service. Its imports are compiled too.
const SERVICE: &str = "envoy/service/ratelimit/v3/rls.proto";

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

/// Compiles `proto/` to Rust types and a set of descriptors in a folder, and writes the JSON Schema of policies.
fn compile(out: &Path) {
    fs::create_dir_all(out).unwrap();
    let schema = serde_json::to_string_pretty(&slidegate::policy::file::schema()).unwrap();
    fs::write(out.join("policy.schema.json"), schema + "\n").unwrap();
    let files = protox::compile([SERVICE], [Path::new(CRATE).join("proto")]).unwrap();
    // For gRPC reflection and for messages as JSON.
    let published = with_published_types(files.clone());
    fs::write(out.join("descriptors.bin"), published.encode_to_vec()).unwrap();
    // Names and values of requests share the buffer of the message.
    let fields = PUBLISHED_AS_STRING
        .iter()
        .flat_map(|(message, fields)| fields.iter().map(move |field| format!("{message}.{field}")));
    fields
        .fold(tonic_prost_build::configure(), |config, field| config.bytes(field))
        .build_client(false)
        .out_dir(out)
        .include_file("messages.rs")
        .compile_fds(files)
        .unwrap();
}

/// Returns the content of each file in a folder, by its name.
fn read_folder(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap());
    files
        .map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap()))
        .collect()
}

#[test]
fn generated_files_match_their_sources() {
    let stored = Path::new(CRATE).join("generated");
    if env::var_os("UPDATE_SNAPSHOTS").is_some() {
        compile(&stored);
    }
    let compiled = Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated");
    compile(&compiled);
    let (stored, compiled) = (read_folder(&stored), read_folder(&compiled));
    assert!(stored.keys().eq(compiled.keys()), "{:?}", stored.keys());
    for (name, content) in &compiled {
        assert!(
            stored[name] == *content,
            "generated/{name} differs from its source: run the test with UPDATE_SNAPSHOTS=1"
        );
    }
}
