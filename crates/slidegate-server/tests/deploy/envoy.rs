//! Checks the configurations for Envoy and Istio in `deploy/` and in the documentation.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::project_path;

/// Returns all YAML and Markdown files below a folder, or the file itself.
fn text_files(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        return entries.flat_map(|entry| text_files(&entry)).collect();
    }
    let extension = path.extension().and_then(|extension| extension.to_str());
    let is_text = matches!(extension, Some("yaml" | "yml" | "md"));
    is_text.then(|| path.to_owned()).into_iter().collect()
}

/// Returns the YAML texts of a file: the file itself, or the code blocks of a Markdown file.
fn yaml_texts(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    if path.extension().is_some_and(|extension| extension != "md") {
        return vec![text];
    }
    let blocks = text.split("\n```").skip(1).step_by(2);
    // The first line of a block is its language.
    blocks.filter_map(|block| block.split_once('\n')).map(|(_, yaml)| yaml.to_owned()).collect()
}

/// Returns the values of all fields with this name, at any depth.
fn values_of_field<'a>(value: &'a Value, name: &str) -> Vec<&'a Value> {
    let mut found = Vec::new();
    match value {
        Value::Object(fields) => {
            found.extend(fields.get(name));
            found.extend(fields.values().flat_map(|value| values_of_field(value, name)));
        }
        Value::Array(items) => {
            found.extend(items.iter().flat_map(|item| values_of_field(item, name)));
        }
        _ => {}
    }
    found
}

/// Without this number, a burst of calls on a new connection can exceed the number of calls that slidegate accepts.
#[test]
fn every_envoy_config_bounds_streams_to_slidegate() {
    let folders = ["deploy", "docs", "examples", "README.md"];
    let files: Vec<_> = folders.iter().flat_map(|path| text_files(&project_path(path))).collect();
    let mut complete_configs = 0;
    for file in files {
        for text in yaml_texts(&file) {
            let calls_slidegate =
                text.contains("rate_limit_service:") && text.contains("envoy_grpc:");
            if !calls_slidegate && !text.contains("http2_protocol_options") {
                continue;
            }
            let config: Value = serde_saphyr::from_str(&text)
                .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            let options = values_of_field(&config, "http2_protocol_options");
            assert!(!options.is_empty(), "{} has no http2_protocol_options", file.display());
            for options in options {
                assert_eq!(options["max_concurrent_streams"], 100, "{}", file.display());
            }
            complete_configs += usize::from(calls_slidegate);
        }
    }
    assert_eq!(complete_configs, 4, "the number of files with a rate limit filter has changed");
}
