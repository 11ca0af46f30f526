//! Reads the settings of the limits of a place: `limit_req`, `limit_req_status` and `limit_req_dry_run`.

use std::path::Path;

use nginx_lint_parser::ast::Directive;

use super::zone::{Zones, directive_position, trim_quotes};
use crate::policy::ratelimit_config::Findings;

/// A limit of a place, which is a `server` or a `location`: one `limit_req` with the settings that apply to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneLimit {
    pub zone: String,
    pub burst: u64,
    /// Whether the limit denies nothing, because of `limit_req_dry_run on`.
    pub observes: bool,
    /// The status of a denial; `None` for 429, the default of a policy.
    pub deny_status: Option<u16>,
}

/// The settings of a place, which the places within it inherit.
#[derive(Clone, Default)]
pub struct InheritedSettings {
    /// The name of the zone, and the burst, of each `limit_req`.
    pub limits: Vec<(String, u64)>,
    observes: bool,
    deny_status: Option<u16>,
}

impl InheritedSettings {
    /// Returns the limits of a place that has these settings.
    pub fn zone_limits(&self) -> Vec<ZoneLimit> {
        let limit = |(zone, burst): &(String, u64)| ZoneLimit {
            zone: zone.clone(),
            burst: *burst,
            observes: self.observes,
            deny_status: self.deny_status,
        };
        self.limits.iter().map(limit).collect()
    }
}

/// Reads the settings of places.
pub struct SettingsReader<'r> {
    zones: &'r Zones,
    pub findings: &'r mut Findings,
}

impl<'r> SettingsReader<'r> {
    pub fn new(zones: &'r Zones, findings: &'r mut Findings) -> Self {
        Self { zones, findings }
    }

    /// Returns the settings of a place: the settings of the place around it, changed by the directives of the place.
    pub fn read_settings(
        &mut self,
        path: &Path,
        directives: &[&Directive],
        outer: &InheritedSettings,
    ) -> InheritedSettings {
        let mut settings = outer.clone();
        if directives.iter().any(|directive| directive.is("limit_req")) {
            settings.limits.clear();
        }
        self.add_settings(path, directives, &mut settings);
        settings
    }

    /// Changes settings by directives.
    pub fn add_settings(
        &mut self,
        path: &Path,
        directives: &[&Directive],
        settings: &mut InheritedSettings,
    ) {
        for directive in directives {
            match &*directive.name {
                "limit_req" => settings.limits.extend(self.read_limit_req(path, directive)),
                "limit_req_dry_run" => settings.observes = directive.first_arg_is("on"),
                "limit_req_status" => {
                    let status = directive.args.first().and_then(|status| status.raw.parse().ok());
                    settings.deny_status = status.filter(|&status| status != 429);
                }
                "limit_conn" => {
                    let message = "`limit_conn` was not converted: slidegate does not learn from nginx when a request ends; keep it";
                    self.findings.push_note(path, directive_position(directive), message);
                }
                _ => {}
            }
        }
    }

    /// Returns the zone and the burst of a `limit_req`; `None` if its zone is not converted.
    fn read_limit_req(&mut self, path: &Path, directive: &Directive) -> Option<(String, u64)> {
        let position = directive_position(directive);
        let (mut zone, mut burst, mut delays) = (None, 0, true);
        for argument in &directive.args {
            let text = trim_quotes(&argument.raw);
            match text.split_once('=') {
                Some(("zone", name)) => zone = Some(name),
                Some(("burst", units)) if units.parse::<u64>().is_ok() => {
                    burst = units.parse().unwrap_or_default();
                }
                Some(("delay", _)) => {}
                None if text == "nodelay" => delays = false,
                _ => {
                    let message = format!("the parameter `{text}` was not converted");
                    self.findings.push_note(path, position, message);
                }
            }
        }
        let zone = zone?;
        match self.zones.get(zone) {
            None => {
                let message =
                    format!("`limit_req` was not converted: no file defines its zone `{zone}`");
                self.findings.push_note(path, position, message);
                return None;
            }
            Some(None) => return None,
            Some(Some(_)) => {}
        }
        if delays && burst > 0 {
            let message = if burst == 1 {
                format!(
                    "nginx delays the request of the burst of `{zone}`; slidegate admits it at once"
                )
            } else {
                format!(
                    "nginx delays requests of the burst of `{zone}`; slidegate admits all {burst} at once"
                )
            };
            self.findings.push_note(path, position, message);
        }
        Some((zone.to_owned(), burst))
    }
}
