//! Reads `limit_req_zone`: the attributes by which a zone counts, and its rate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nginx_lint_parser::ast::{Config, Directive};

use crate::policy::ratelimit_config::{Findings, SourcePosition};

/// The zones of all files by their names; `None` for a zone that is not converted.
pub type Zones = BTreeMap<String, Option<Zone>>;

/// A zone: the attributes by which its limits count, and their rate.
pub struct Zone {
    pub path: PathBuf,
    pub position: SourcePosition,
    /// The attributes in the `per` of the converted rules.
    pub per: Vec<String>,
    pub rate: Rate,
}

/// The rate of a zone: `max` units in a window of `1s` or `1m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub max: u64,
    pub window: &'static str,
}

/// Reads the zones of all files. A zone or a parameter that cannot be converted becomes a note.
pub fn read_zones(configs: &[(&Path, Config)], findings: &mut Findings) -> Zones {
    let mut zones = Zones::new();
    for (path, config) in configs {
        for directive in config.all_directives().filter(|other| other.is("limit_req_zone")) {
            let position = directive_position(directive);
            let mut arguments = directive.args.iter();
            let key = arguments.next().map_or("", |argument| trim_quotes(&argument.raw));
            let mut parameters = arguments.map(|argument| trim_quotes(&argument.raw));
            let value_of = |name: &str| parameters.clone().find_map(|text| text.strip_prefix(name));
            let (zone, rate) = (value_of("zone="), value_of("rate="));
            let Some(name) = zone.and_then(|zone| zone.split(':').next()) else {
                findings.push_note(path, position, "`limit_req_zone` has no `zone`");
                continue;
            };
            let is_known = |text: &str| text.starts_with("zone=") || text.starts_with("rate=");
            if let Some(other) = parameters.find(|text| !is_known(text)) {
                let message = format!("the parameter `{other}` was not converted");
                findings.push_note(path, position, message);
            }
            let zone = parse_zone_key(key).and_then(|per| {
                let rate = rate.and_then(parse_rate);
                let rate = rate.ok_or("its `rate` is not like `10r/s` or `30r/m`")?;
                Ok(Zone { path: path.to_path_buf(), position, per, rate })
            });
            if let Err(reason) = &zone {
                let message = format!("the zone `{name}` was not converted: {reason}");
                findings.push_note(path, position, message);
            }
            if let Ok(Zone { per, .. }) = &zone
                && per.len() > 1
                && per.iter().any(|attribute| attribute.contains('.'))
            {
                let message = format!(
                    "the zone `{name}` counts a request only if it has all of {}; nginx also counts it with some of them",
                    per.join(", ")
                );
                findings.push_note(path, position, message);
            }
            zones.insert(name.to_owned(), zone.ok());
        }
    }
    zones
}

/// Returns the line and column at which a directive begins.
pub fn directive_position(directive: &Directive) -> SourcePosition {
    let start = directive.name_span.start;
    SourcePosition { line: start.line as u64, column: start.column as u64 }
}

/// Removes the quotes of an argument.
pub fn trim_quotes(raw: &str) -> &str {
    raw.trim_matches(['"', '\''])
}

/// Parses `10r/s` or `30r/m`.
fn parse_rate(text: &str) -> Option<Rate> {
    let (max, window) = match text.strip_suffix("r/s") {
        Some(max) => (max, "1s"),
        None => (text.strip_suffix("r/m")?, "1m"),
    };
    let max = max.parse().ok().filter(|&max| max > 0)?;
    Some(Rate { max, window })
}

/// Returns the attributes for the variables in the key of a zone, such as `$binary_remote_addr$host`.
fn parse_zone_key(key: &str) -> Result<Vec<String>, String> {
    let mut per: Vec<String> = Vec::new();
    for text in key.split('$').skip(1) {
        let is_of_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
        let name = match text.strip_prefix('{') {
            Some(text) => text.split('}').next().unwrap_or_default(),
            None => &text[..text.find(|char| !is_of_name(char)).unwrap_or(text.len())],
        };
        let attribute = match name {
            "binary_remote_addr" | "remote_addr" | "realip_remote_addr" => "ip".to_owned(),
            "host" | "http_host" | "server_name" => "host".to_owned(),
            "uri" | "document_uri" | "request_uri" => "path".to_owned(),
            "request_method" => "method".to_owned(),
            _ => match name.split_once('_') {
                Some(("http", header)) => format!("header.{}", header.replace('_', "-")),
                _ => {
                    return Err(format!(
                        "slidegate has no attribute for `${name}`; send it in a header, and count by this header"
                    ));
                }
            },
        };
        if !per.contains(&attribute) {
            per.push(attribute);
        }
    }
    Ok(per)
}
