//! Converts the limits of nginx, `limit_req_zone` and `limit_req`, to a policy.
//!
//! A place of a configuration is a `server` or a `location`. It has the limits of its own `limit_req` lines; a place
//! without such lines inherits the limits of the place around it. A rule applies to the outermost places that have its
//! limit. Overrides of the rule switch it off for inner places that do not have the limit, and on again for places
//! within these that have it. A condition on the host selects the servers: see `hosts`. A condition on another
//! attribute excludes requests that a zone does not count, because their key is empty: see `key`.
//!
//! Comments above the policy list each directive that was not converted, and each difference.
//!
//! Source: the documentation and the code of `ngx_http_limit_req_module`.

mod condition;
mod geo;
mod hosts;
mod key;
mod rule;
mod servers;
mod settings;
#[cfg(test)]
mod tests;
mod zone;

use std::path::Path;

use nginx_lint_parser::ast::Config;
use nginx_lint_parser::parse_string;
use serde::Serialize;
use serde_saphyr::{FlowMap, FlowSeq};
use slidegate::Policy;

use self::hosts::note_address_differences;
use self::rule::{ConvertedRule, convert_limit};
use self::servers::{DUMPED_FILE_COMMENT, Server, ServerReader, note_includes_in_servers};
use self::settings::ZoneLimit;
use self::zone::{Zones, directive_position, read_zones};
use crate::policy::FileText;
use crate::policy::ratelimit_config::{Conversion, Finding, Findings, format_policy_file};

/// The maximum depth of nested blocks. The parser needs stack space for each level.
const MAX_NESTING_DEPTH: usize = 100;

/// Converts files of nginx to a policy.
///
/// # Errors
/// Returns a text with a position for a file that cannot be parsed or is nested too deeply, and a text if the files
/// limit nothing.
pub fn convert(files: &[FileText]) -> Result<Conversion, String> {
    let mut configs = Vec::new();
    for FileText { path, text } in files {
        if nesting_depth(text) > MAX_NESTING_DEPTH {
            return Err(format!("{}: blocks are nested too deeply", path.display()));
        }
        let config = parse_string(text).map_err(|error| format!("{}: {error}", path.display()))?;
        configs.push((path.as_path(), config));
    }
    let mut findings = Findings::default();
    let zones = read_zones(&configs, &mut findings);
    note_includes(files, &configs, &mut findings);
    let mut reader = ServerReader::new(&zones, &mut findings);
    reader.read_files(&configs);
    let servers = reader.servers;
    note_address_differences(&servers, &mut findings);
    let rules = convert_zones(&zones, &servers, &mut findings);
    let file_order =
        |note: &Finding| (files.iter().position(|file| file.path == note.path), note.position);
    findings.notes.sort_by_key(file_order);
    if rules.is_empty() {
        let notes = findings.notes.iter().map(|note| format!("{note}\n"));
        return Err(format!(
            "{}no limit was converted; name all files of the configuration, or the output of `nginx -T`",
            notes.collect::<String>()
        ));
    }
    // nginx decodes and merges the slashes of a path before it selects a location.
    let normalize = PrintedNormalize { path: FlowSeq(["encoded_slash", "double_slash"]) };
    let normalize = rules.iter().any(ConvertedRule::uses_path).then_some(FlowMap(normalize));
    // It counts each IPv6 address, whereas a policy counts each /64 network by default.
    let defaults = FlowMap(PrintedDefaults { ipv6_prefix: 128 });
    let policy = PrintedPolicy { version: 1, normalize, defaults, rules };
    let notes = findings.notes;
    let text = format_policy_file(files, &notes, &policy);
    match Policy::from_yaml(&text) {
        Ok(policy) => Ok(Conversion { policy, text, notes }),
        Err(errors) => Err(format!("the converted policy is invalid: {errors}")),
    }
}

/// Converts the limits of all zones to rules, with a note for each zone that has several rules.
fn convert_zones(zones: &Zones, servers: &[Server], findings: &mut Findings) -> Vec<ConvertedRule> {
    let mut rules: Vec<ConvertedRule> = Vec::new();
    for (name, zone) in zones {
        let Some(zone) = zone else { continue };
        let first = rules.len();
        for limit in distinct_zone_limits(servers, name) {
            rules.extend(convert_limit(zone, &limit, servers));
        }
        for (nth, rule) in rules[first..].iter_mut().enumerate().skip(1) {
            rule.name = format!("{name}-{}", nth + 1);
        }
        if rules.len() > first + 1 {
            let message = format!(
                "the zone `{name}` has several rules, because its limits differ between places: each rule has counters of its own, which nginx shares"
            );
            findings.push_note(&zone.path, zone.position, message);
        }
    }
    rules
}

/// The converted policy, as it is printed.
#[derive(Serialize)]
struct PrintedPolicy {
    version: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    normalize: Option<FlowMap<PrintedNormalize>>,
    defaults: FlowMap<PrintedDefaults>,
    rules: Vec<ConvertedRule>,
}

#[derive(Serialize)]
struct PrintedNormalize {
    path: FlowSeq<[&'static str; 2]>,
}

#[derive(Serialize)]
struct PrintedDefaults {
    ipv6_prefix: u8,
}

/// Returns the depth of the nested blocks of a file. Braces in comments and quotes count too.
fn nesting_depth(text: &str) -> usize {
    let mut depth: usize = 0;
    let depths = text.bytes().map(|byte| {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth
    });
    depths.max().unwrap_or_default()
}

/// Adds a note for each `include`, because the files that it names are not read.
fn note_includes(files: &[FileText], configs: &[(&Path, Config)], findings: &mut Findings) {
    // The output of `nginx -T` contains the included files, each below a comment with this text.
    if files.iter().any(|file| file.text.contains(DUMPED_FILE_COMMENT)) {
        return note_includes_in_servers(configs, findings);
    }
    for (path, config) in configs {
        for include in config.all_directives().filter(|directive| directive.is("include")) {
            let names = include.args.first().map_or("", |names| &names.raw);
            let message = format!(
                "`include {names}` was not read: name its files too, or convert the output of `nginx -T`"
            );
            findings.push_note(path, directive_position(include), message);
        }
    }
}

/// Returns all distinct limits that the places of all servers have in a zone.
fn distinct_zone_limits(servers: &[Server], zone: &str) -> Vec<ZoneLimit> {
    let mut limits = Vec::new();
    for limit in servers.iter().flat_map(Server::limits) {
        if limit.zone == zone && !limits.contains(limit) {
            limits.push(limit.clone());
        }
    }
    limits
}
