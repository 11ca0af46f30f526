//! Reads `limit_req_zone`: the attributes by which a zone counts, and its rate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nginx_lint_parser::ast::{Config, Directive};

use super::key::{Variables, ZoneKey};
use crate::policy::ratelimit_config::{Findings, SourcePosition};

/// The zones of all files by their names; `None` for a zone that is not converted.
pub type Zones = BTreeMap<String, Option<Zone>>;

/// A zone: the attributes by which its limits count, and their rate.
pub struct Zone {
    pub path: PathBuf,
    pub position: SourcePosition,
    pub key: ZoneKey,
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
    let variables = Variables::from_configs(configs);
    let mut zones = Zones::new();
    for (path, config) in configs {
        for directive in config.all_directives().filter(|other| other.is("limit_req_zone")) {
            if let Some((name, zone)) = read_zone(path, directive, &variables, findings) {
                zones.insert(name, zone);
            }
        }
    }
    zones
}

/// Reads one `limit_req_zone`. Returns the name of the zone, and the zone if it is converted.
fn read_zone(
    path: &Path,
    directive: &Directive,
    variables: &Variables,
    findings: &mut Findings,
) -> Option<(String, Option<Zone>)> {
    let position = directive_position(directive);
    let words = read_words(directive);
    let (key, parameters) = words.split_first()?;
    let value_of = |name: &str| parameters.iter().find_map(|text| text.strip_prefix(name));
    let Some(name) = value_of("zone=").and_then(|zone| zone.split(':').next()) else {
        findings.push_note(path, position, "`limit_req_zone` has no `zone`");
        return None;
    };
    let is_known = |text: &str| text.starts_with("zone=") || text.starts_with("rate=");
    if let Some(other) = parameters.iter().find(|text| !is_known(text)) {
        let message = format!("the parameter `{other}` was not converted");
        findings.push_note(path, position, message);
    }
    let zone = variables.read_zone_key(key).and_then(|key| {
        let rate = value_of("rate=").and_then(parse_rate);
        let rate = rate.ok_or("its `rate` is not like `10r/s` or `30r/m`")?;
        Ok(Zone { path: path.to_path_buf(), position, key, rate })
    });
    match &zone {
        Ok(zone) => {
            note_key_differences(name, zone, findings);
            if key.contains("server_name") {
                let message = format!(
                    "the zone `{name}` counts by `$server_name`, which nginx sets; the policy counts by the host that the client sends: let nginx reject unknown hosts"
                );
                findings.push_note(path, position, message);
            }
        }
        Err(reason) => {
            let message = format!("the zone `{name}` was not converted: {reason}");
            findings.push_note(path, position, message);
        }
    }
    Some((name.to_owned(), zone.ok()))
}

/// Adds notes about requests that nginx counts, but not the policy, or the other way round.
fn note_key_differences(name: &str, zone: &Zone, findings: &mut Findings) {
    let ZoneKey { per, filter } = &zone.key;
    if per.len() > 1 && per.iter().any(|attribute| attribute.contains('.')) {
        let message = format!(
            "the zone `{name}` counts a request only if it has all of {}; nginx also counts it with some of them",
            per.join(", ")
        );
        findings.push_note(&zone.path, zone.position, message);
    }
    if let Some(filter) = filter
        && filter.is_case_sensitive()
    {
        let message = format!(
            "the zone `{name}` depends on values of {}: nginx ignores their case, and the policy does not",
            filter.attribute
        );
        findings.push_note(&zone.path, zone.position, message);
    }
}

/// Returns the line and column at which a directive begins.
pub fn directive_position(directive: &Directive) -> SourcePosition {
    let start = directive.name_span.start;
    SourcePosition { line: start.line as u64, column: start.column as u64 }
}

/// Returns the arguments of a directive without quotes. The parser splits `$host$uri`, which is one argument in nginx.
pub fn read_words(directive: &Directive) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut end = None;
    for argument in &directive.args {
        let text = trim_quotes(&argument.raw);
        match words.last_mut() {
            Some(word) if end == Some(argument.span.start.offset) => word.push_str(text),
            _ => words.push(text.to_owned()),
        }
        end = Some(argument.span.end.offset);
    }
    words
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
