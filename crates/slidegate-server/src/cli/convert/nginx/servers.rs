//! Reads the servers and locations of nginx, and the limits of each.

use std::path::Path;

use nginx_lint_parser::ast::{Block, Config, Directive};

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

/// A `server`, with its locations.
pub struct Server {
    /// The values of `host` that the server has. Empty if it has no `server_name` that could be converted: its rules
    /// then have no condition on `host`.
    pub hosts: Vec<String>,
    /// The server itself, whose paths begin with the empty text, and its locations.
    pub places: Vec<ServerOrLocation>,
}

/// The paths of a server or of a location, and its limits.
pub struct ServerOrLocation {
    path: String,
    /// Whether the place is only this path (`location = /path`), and not all paths that begin with it.
    is_exact: bool,
    pub limits: Vec<ZoneLimit>,
}

/// The paths of a server to which a limit applies.
#[derive(Debug, PartialEq, Eq)]
pub struct LimitedPaths {
    /// The conditions on `path`, one of which must match; `None` for all paths.
    pub paths: Option<Vec<String>>,
    /// Conditions on paths within `paths`, the most specific first, each with whether the limit applies to the path.
    pub exceptions: Vec<(String, bool)>,
}

impl ServerOrLocation {
    /// Returns the place for a server itself, which contains the places of its locations.
    fn for_server(settings: &InheritedSettings) -> Self {
        Self { path: String::new(), is_exact: false, limits: settings.zone_limits() }
    }

    /// Returns whether all paths of the place are paths of `outer`, which is another place.
    fn is_within(&self, outer: &Self) -> bool {
        let is_longer = self.path.len() > outer.path.len() || self.is_exact;
        !outer.is_exact && is_longer && self.path.starts_with(&outer.path)
    }

    /// Returns the condition on `path` of the place.
    fn path_condition(&self) -> String {
        if self.is_exact { self.path.clone() } else { format!("{}*", self.path) }
    }
}

impl Server {
    /// Returns the paths to which a limit applies; `None` if there are none.
    pub fn limited_paths(&self, limit: &ZoneLimit) -> Option<LimitedPaths> {
        let has_limit = |place: &ServerOrLocation| place.limits.contains(limit);
        let mut places: Vec<&ServerOrLocation> = self.places.iter().collect();
        // As in nginx, an exact path comes first, and then the longest beginning.
        places.sort_by_key(|place| (!place.is_exact, std::cmp::Reverse(place.path.len())));
        let (mut paths, mut exceptions) = (Vec::new(), Vec::new());
        for (nth, place) in places.iter().enumerate() {
            let mut around = places[nth + 1..].iter().filter(|outer| place.is_within(outer));
            let nearest = around.clone().next();
            let is_limited = has_limit(place);
            if !around.any(|outer| has_limit(outer)) {
                if is_limited {
                    paths.push(place);
                }
            } else if nearest.is_some_and(|nearest| has_limit(nearest) != is_limited) {
                exceptions.push((place.path_condition(), is_limited));
            }
        }
        // Every path begins with `/`, so the place `/` contains all paths.
        let is_everything =
            |place: &&ServerOrLocation| !place.is_exact && matches!(&*place.path, "" | "/");
        let conditions = if paths.iter().any(|place| is_everything(place)) {
            None
        } else {
            Some(paths.iter().map(|place| place.path_condition()).collect())
        };
        (!paths.is_empty()).then_some(LimitedPaths { paths: conditions, exceptions })
    }
}

/// Returns the directives in the block of a directive.
fn inner_directives(directive: &Directive) -> Vec<&Directive> {
    directive.block.iter().flat_map(Block::directives).collect()
}

/// Reads the servers of all files.
pub struct ServerReader<'r> {
    zones: &'r Zones,
    findings: &'r mut Findings,
    /// The settings of the `http` block. Servers in other files inherit them, because `http` may include these files.
    http: InheritedSettings,
    pub servers: Vec<Server>,
}

/// The settings of a place, which the places within it inherit.
#[derive(Clone, Default)]
struct InheritedSettings {
    /// The name of the zone, and the burst, of each `limit_req`.
    limits: Vec<(String, u64)>,
    observes: bool,
    deny_status: Option<u16>,
}

impl InheritedSettings {
    fn zone_limits(&self) -> Vec<ZoneLimit> {
        let limit = |(zone, burst): &(String, u64)| ZoneLimit {
            zone: zone.clone(),
            burst: *burst,
            observes: self.observes,
            deny_status: self.deny_status,
        };
        self.limits.iter().map(limit).collect()
    }
}

impl<'r> ServerReader<'r> {
    pub fn new(zones: &'r Zones, findings: &'r mut Findings) -> Self {
        Self { zones, findings, http: InheritedSettings::default(), servers: Vec::new() }
    }

    /// Reads the servers of files. A file is a whole configuration, or nginx includes it in `http` or `server`.
    pub fn read_files(&mut self, configs: &[(&Path, Config)]) {
        for (path, config) in configs {
            for http in config.directives().filter(|directive| directive.is("http")) {
                self.http = self.read_settings(path, &inner_directives(http), &self.http.clone());
            }
        }
        for (path, config) in configs {
            let directives: Vec<&Directive> = config.directives().collect();
            self.read_servers(path, &directives);
            for http in directives.iter().filter(|directive| directive.is("http")) {
                self.read_servers(path, &inner_directives(http));
            }
        }
        if self.servers.is_empty() && !self.http.limits.is_empty() {
            let place = ServerOrLocation::for_server(&self.http);
            self.servers.push(Server { hosts: Vec::new(), places: vec![place] });
        }
    }

    fn read_servers(&mut self, path: &Path, directives: &[&Directive]) {
        let outer = self.http.clone();
        if directives.iter().any(|other| other.is("location") || other.is("limit_req")) {
            self.read_server(path, directives, &outer);
        }
        for server in directives.iter().filter(|directive| directive.is("server")) {
            self.read_server(path, &inner_directives(server), &outer);
        }
    }

    fn read_server(&mut self, path: &Path, directives: &[&Directive], outer: &InheritedSettings) {
        let settings = self.read_settings(path, directives, outer);
        let mut places = vec![ServerOrLocation::for_server(&settings)];
        self.read_locations(path, directives, &settings, &mut places);
        let hosts = self.read_hosts(path, directives);
        self.servers.push(Server { hosts, places });
    }

    fn read_locations(
        &mut self,
        path: &Path,
        directives: &[&Directive],
        outer: &InheritedSettings,
        places: &mut Vec<ServerOrLocation>,
    ) {
        for directive in directives.iter().filter(|directive| directive.is("location")) {
            let inner = inner_directives(directive);
            let settings = self.read_settings(path, &inner, outer);
            let words: Vec<&str> =
                directive.args.iter().map(|word| trim_quotes(&word.raw)).collect();
            let (is_exact, prefix) = match words[..] {
                ["=", path] => (true, path),
                ["^~", prefix] => (false, prefix),
                [prefix] if prefix.starts_with('/') && !prefix.contains('*') => (false, prefix),
                _ => {
                    let message = format!(
                        "`location {}` was not converted: its requests have the limits of the other locations",
                        words.join(" ")
                    );
                    // A location with `@` needs no note, because requests reach it only after another location.
                    if !words.first().is_some_and(|word| word.starts_with('@')) {
                        self.findings.push_note(path, directive_position(directive), message);
                    }
                    continue;
                }
            };
            let limits = settings.zone_limits();
            places.push(ServerOrLocation { path: prefix.to_owned(), is_exact, limits });
            self.read_locations(path, &inner, &settings, places);
        }
    }

    /// Returns the values of `host` that a server has, from its `server_name` directives.
    fn read_hosts(&mut self, path: &Path, directives: &[&Directive]) -> Vec<String> {
        let mut hosts = Vec::new();
        for directive in directives.iter().filter(|directive| directive.is("server_name")) {
            for name in directive.args.iter().map(|name| trim_quotes(&name.raw)) {
                if let Some(domain) = name.strip_prefix('.') {
                    hosts.extend([domain.to_owned(), format!("*.{domain}")]);
                } else if name.starts_with('~') || name.contains('$') {
                    let message = format!("the name `{name}` of a server was not converted");
                    self.findings.push_note(path, directive_position(directive), message);
                } else if !matches!(name, "" | "_") {
                    hosts.push(name.to_owned());
                }
            }
        }
        hosts
    }

    /// Returns the settings of a place: the settings of the place around it, changed by the directives of the place.
    fn read_settings(
        &mut self,
        path: &Path,
        directives: &[&Directive],
        outer: &InheritedSettings,
    ) -> InheritedSettings {
        let mut settings = outer.clone();
        if directives.iter().any(|directive| directive.is("limit_req")) {
            settings.limits.clear();
        }
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
        settings
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
            let message = format!(
                "nginx delays requests of the burst of `{zone}`; slidegate admits all {burst} at once"
            );
            self.findings.push_note(path, position, message);
        }
        Some((zone.to_owned(), burst))
    }
}
