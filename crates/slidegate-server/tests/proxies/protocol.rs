//! Tests that compare the Protobuf messages in `proto/` with the message descriptors in the installed Envoy binary, to
//! detect fields that Envoy has added.

use std::fs;
use std::path::PathBuf;

use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};

use crate::proxies::installed_program;

/// Serialized protobuf descriptors of the files in `proto/`.
const SLIDEGATE_PROTO_DESCRIPTORS: &[u8] = include_bytes!("../../generated/descriptors.bin");

/// The `.proto` files whose messages are compared.
const COMPARED_PROTO_FILES: [&str; 2] = [
    "envoy/service/ratelimit/v3/rls.proto",
    "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
];

/// Messages and fields of Envoy that `proto/` omits on purpose.
const UNSUPPORTED_ENVOY_FIELDS: [&str; 4] = [
    // Quotas for a cache in Envoy. Its rate limit filter does not read them.
    "RateLimitResponse.DescriptorStatus.quota",
    "RateLimitResponse.Quota",
    "RateLimitResponse.quota",
    // Used only by the local rate limit filter.
    "LocalRateLimitDescriptor",
];

/// Finds and decodes the serialized descriptor of a `.proto` file in the bytes of a C++ binary.
fn find_file_descriptor(program: &[u8], file: &str) -> FileDescriptorProto {
    let mut prefix = vec![0x0a, u8::try_from(file.len()).unwrap()];
    prefix.extend(file.as_bytes());
    let start =
        memchr::memmem::find(program, &prefix).unwrap_or_else(|| panic!("no {file} in Envoy"));
    let bytes = &program[start..];
    FileDescriptorProto::decode(&bytes[..file_descriptor_byte_length(bytes)]).unwrap()
}

/// Returns the length in bytes of the serialized file descriptor at the start of `bytes`. All fields of a file
/// descriptor have numbers from 1 to 14. The descriptor ends before the first bytes that are not such a field.
fn file_descriptor_byte_length(bytes: &[u8]) -> usize {
    let mut end = 0;
    loop {
        let mut rest = &bytes[end..];
        let field = match prost::encoding::decode_key(&mut rest) {
            Ok((1..=14, wire_type)) => wire_type,
            _ => return end,
        };
        let skipped = match field {
            prost::encoding::WireType::LengthDelimited => {
                prost::encoding::decode_varint(&mut rest).ok().and_then(|len| {
                    let len = usize::try_from(len).ok()?;
                    rest = rest.get(len..)?;
                    Some(())
                })
            }
            prost::encoding::WireType::Varint => {
                prost::encoding::decode_varint(&mut rest).ok().map(drop)
            }
            _ => None,
        };
        if skipped.is_none() {
            return end;
        }
        end = bytes.len() - rest.len();
    }
}

/// Returns a description of each field of these messages and of nested messages: name, number, label and type.
fn list_message_fields(prefix: &str, messages: &[DescriptorProto]) -> Vec<String> {
    let mut all = Vec::new();
    for message in messages {
        let name = format!("{prefix}{}", message.name());
        for field in &message.field {
            let kind = match field.type_name() {
                "" => field.r#type().as_str_name(),
                type_name => type_name,
            };
            let repeated = field.label().as_str_name();
            all.push(format!("{name}.{} = {}: {repeated} {kind}", field.name(), field.number()));
        }
        all.extend(list_message_fields(&format!("{name}."), &message.nested_type));
    }
    all
}

/// Returns the path of the Envoy binary. The installed `bin/envoy` is only a script that starts this binary.
fn envoy_binary() -> PathBuf {
    let versions = fs::read_dir(installed_program("envoy/lib")).unwrap().flatten();
    let programs = versions.map(|python| python.path().join("site-packages/envoy/_bin/envoy"));
    programs.into_iter().find(|program| program.exists()).unwrap()
}

/// Returns `false` if [`UNSUPPORTED_ENVOY_FIELDS`] contains the field, or contains the message that has the field.
fn is_supported_field(field: &str) -> bool {
    !UNSUPPORTED_ENVOY_FIELDS.iter().any(|name| {
        field.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ') || rest.starts_with('.'))
    })
}

#[test]
fn proto_files_match_installed_envoy() {
    let program = fs::read(envoy_binary()).unwrap();
    let ours = FileDescriptorSet::decode(SLIDEGATE_PROTO_DESCRIPTORS).unwrap();
    for file in COMPARED_PROTO_FILES {
        let envoy_fields =
            list_message_fields("", &find_file_descriptor(&program, file).message_type);
        assert!(
            envoy_fields.iter().any(|field| field.contains("unit_multiplier = ")),
            "{envoy_fields:#?}"
        );
        let descriptor = ours.file.iter().find(|descriptor| descriptor.name() == file).unwrap();
        let own_fields = list_message_fields("", &descriptor.message_type);
        let missing: Vec<&String> = (envoy_fields.iter())
            .filter(|field| is_supported_field(field) && !own_fields.contains(field))
            .collect();
        assert!(
            missing.is_empty(),
            "{file} has new fields, or ours differ: {missing:#?}, {own_fields:#?}"
        );
    }
}
