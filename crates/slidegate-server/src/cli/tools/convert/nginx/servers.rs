//! Reads the servers and locations of nginx, and the limits of each.

use std::path::{Path, PathBuf};

use nginx_lint_parser::ast::{Block, Config, ConfigItem, Directive};

use super::condition::matches_pattern;
use super::hosts::{Listen, set_default_addresses};
use super::settings::{InheritedSettings, SettingsReader, ZoneLimit};
use super::zone::{Zones, directive_position, read_words, trim_quotes};
use crate::policy::ratelimit_config::{Findings, SourcePosition};

/// The beginning of the comment above each file in the output of `nginx -T`.
pub const DUMPED_FILE_COMMENT: &str = "# configuration file ";

/// A `server`, with its locations.
pub struct Server {
    pub path: PathBuf,
    pub position: SourcePosition,
    /// The names of the server, which are values of `host` or patterns. Empty if it has no `server_name` that could be
    /// converted.
    pub hosts: Vec<String>,
    /// Whether the server has names that could not be converted, so that it may serve any host.
    pub has_other_names: bool,
    /// The addresses on which the server listens. Empty for a file that nginx includes in an unknown server.
    pub listens: Vec<Listen>,
    /// The addresses for which the server is the default server.
    pub default_addresses: Vec<String>,
    pub include_order: IncludeOrder,
    /// The server itself, whose paths begin with the empty text, and its locations.
    pub places: Vec<ServerOrLocation>,
}

/// When nginx reads a server, in comparison with the files that `http` includes by a pattern.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IncludeOrder {
    Before,
    Together,
    After,
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
    /// Creates a server that may serve any host.
    fn for_any_host(path: &Path, position: SourcePosition, places: Vec<ServerOrLocation>) -> Self {
        Self {
            path: path.to_path_buf(),
            position,
            hosts: Vec::new(),
            has_other_names: true,
            listens: Vec::new(),
            default_addresses: Vec::new(),
            include_order: IncludeOrder::Together,
            places,
        }
    }

    /// Returns whether the server is the default server of an address.
    pub fn is_default(&self) -> bool {
        !self.default_addresses.is_empty()
    }

    /// Returns whether nginx selects the server for some host.
    pub fn is_reachable(&self) -> bool {
        self.is_default() || self.has_other_names || !self.hosts.is_empty()
    }

    /// Returns whether the server listens on an address.
    pub fn listens_on(&self, address: &str) -> bool {
        self.listens.iter().any(|listen| listen.address == address)
    }

    /// Returns whether the server or one of its locations has a limit.
    pub fn has_limits(&self) -> bool {
        self.limits().next().is_some()
    }

    /// Returns whether the same limits apply to the same paths of another server.
    pub fn has_same_limits(&self, other: &Self) -> bool {
        let mut limits = self.limits().chain(other.limits());
        limits.all(|limit| self.limited_paths(limit) == other.limited_paths(limit))
    }

    /// Returns the limits of the server and of its locations. A limit can occur several times.
    pub fn limits(&self) -> impl Iterator<Item = &ZoneLimit> {
        self.places.iter().flat_map(|place| &place.limits)
    }

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

/// Returns the directives of each file that the output of `nginx -T` contains, with the path of the file, or of the whole
/// file, without a path.
fn sections(config: &Config) -> Vec<(&str, Vec<&Directive>)> {
    let mut sections = vec![("", Vec::new())];
    for item in &config.items {
        match item {
            ConfigItem::Directive(directive) => {
                sections.last_mut().into_iter().for_each(|(_, section)| section.push(&**directive));
            }
            ConfigItem::Comment(comment) => {
                if let Some(path) = comment.text.strip_prefix(DUMPED_FILE_COMMENT) {
                    sections.push((path.trim_end_matches(':'), Vec::new()));
                }
            }
            _ => {}
        }
    }
    sections
}

/// Adds a note for each `include` within a server or location that the output of `nginx -T` contains, if the included
/// file has limits: they are read as limits of `http`.
pub fn note_includes_in_servers(configs: &[(&Path, Config)], findings: &mut Findings) {
    let file_name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let has_limits = |directives: &[&Directive]| {
        !is_part_of_server(directives)
            && directives.iter().any(|directive| directive.name.starts_with("limit_req"))
    };
    for (path, config) in configs {
        let sections = sections(config).into_iter().filter(|(_, section)| has_limits(section));
        let files: Vec<String> = sections.map(|(file, _)| file_name(file)).collect();
        let blocks =
            config.all_directives().filter(|other| other.is("server") || other.is("location"));
        for include in blocks.flat_map(inner_directives).filter(|other| other.is("include")) {
            let Some(names) = read_words(include).into_iter().next() else { continue };
            if files.iter().any(|file| matches_pattern(&file_name(&names), file)) {
                let message = format!(
                    "the limits of `include {names}` were converted as if it were in `http`: copy the included lines here, and convert again"
                );
                findings.push_note(path, directive_position(include), message);
            }
        }
    }
}

/// Returns whether nginx includes a file in a server, because the file has a `location` outside of a `server`.
fn is_part_of_server(directives: &[&Directive]) -> bool {
    directives.iter().any(|directive| directive.is("location"))
}

/// Returns whether a directive of `http` includes files by a pattern, such as `conf.d/*.conf`.
fn is_include_of_servers(directive: &Directive) -> bool {
    directive.is("include") && directive.args.iter().any(|files| files.raw.contains('*'))
}

/// Reads the servers of all files.
pub struct ServerReader<'r> {
    settings: SettingsReader<'r>,
    /// The settings of the `http` block, and of files without a `location`, which `http` includes. All servers inherit
    /// them.
    http: InheritedSettings,
    pub servers: Vec<Server>,
}

impl<'r> ServerReader<'r> {
    pub fn new(zones: &'r Zones, findings: &'r mut Findings) -> Self {
        let settings = SettingsReader::new(zones, findings);
        Self { settings, http: InheritedSettings::default(), servers: Vec::new() }
    }

    /// Reads the servers of files. A file is a whole configuration, or nginx includes it in `http` or `server`.
    pub fn read_files(&mut self, configs: &[(&Path, Config)]) {
        let all_sections: Vec<(&Path, Vec<&Directive>)> = configs
            .iter()
            .flat_map(|(path, config)| {
                sections(config).into_iter().map(move |(_, section)| (*path, section))
            })
            .collect();
        let mut http = InheritedSettings::default();
        for (path, directives) in &all_sections {
            for block in directives.iter().filter(|directive| directive.is("http")) {
                self.settings.add_settings(path, &inner_directives(block), &mut http);
            }
            if !is_part_of_server(directives) {
                self.settings.add_settings(path, directives, &mut http);
            }
        }
        self.http = http;
        for (path, directives) in &all_sections {
            if is_part_of_server(directives) {
                self.read_part_of_server(path, directives);
            }
            self.read_servers(path, directives, IncludeOrder::Together);
            for block in directives.iter().filter(|directive| directive.is("http")) {
                let inner = inner_directives(block);
                // A pattern includes the files with other servers. nginx reads them before the servers below the line.
                match inner.iter().position(|other| is_include_of_servers(other)) {
                    Some(include) => {
                        self.read_servers(path, &inner[..include], IncludeOrder::Before);
                        self.read_servers(path, &inner[include..], IncludeOrder::After);
                    }
                    None => self.read_servers(path, &inner, IncludeOrder::Together),
                }
            }
        }
        if let Some((path, _)) = all_sections.first()
            && self.servers.is_empty()
            && !self.http.limits.is_empty()
        {
            let places = vec![ServerOrLocation::for_server(&self.http)];
            self.servers.push(Server::for_any_host(path, SourcePosition::default(), places));
        }
        set_default_addresses(&mut self.servers);
    }

    fn read_servers(
        &mut self,
        path: &Path,
        directives: &[&Directive],
        include_order: IncludeOrder,
    ) {
        let outer = self.http.clone();
        // A `server` of `upstream` has no block.
        let is_server =
            |directive: &&&Directive| directive.is("server") && directive.block.is_some();
        for directive in directives.iter().filter(is_server) {
            let inner = inner_directives(directive);
            let places = self.read_places(path, &inner, &outer);
            let (hosts, has_other_names) = self.read_hosts(path, &inner);
            let listens = inner.iter().filter(|other| other.is("listen"));
            let mut listens: Vec<Listen> =
                listens.filter_map(|listen| Listen::from_words(&read_words(listen))).collect();
            if listens.is_empty() {
                listens.push(Listen::new_default());
            }
            let server = Server::for_any_host(path, directive_position(directive), places);
            self.servers.push(Server { hosts, has_other_names, listens, include_order, ..server });
        }
    }

    /// Reads a file that nginx includes in a server.
    fn read_part_of_server(&mut self, path: &Path, directives: &[&Directive]) {
        let places = self.read_places(path, directives, &self.http.clone());
        let (hosts, _) = self.read_hosts(path, directives);
        let position = directives.first().map(|first| directive_position(first));
        let server = Server::for_any_host(path, position.unwrap_or_default(), places);
        self.servers.push(Server { hosts, ..server });
    }

    /// Reads a server and its locations.
    fn read_places(
        &mut self,
        path: &Path,
        directives: &[&Directive],
        outer: &InheritedSettings,
    ) -> Vec<ServerOrLocation> {
        let settings = self.settings.read_settings(path, directives, outer);
        let mut places = vec![ServerOrLocation::for_server(&settings)];
        self.read_locations(path, directives, &settings, &mut places);
        places
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
            let settings = self.settings.read_settings(path, &inner, outer);
            let words: Vec<&str> =
                directive.args.iter().map(|word| trim_quotes(&word.raw)).collect();
            let is_named = words.first().is_some_and(|word| word.starts_with('@'));
            if is_named || inner.iter().any(|other| other.is("internal")) {
                if inner.iter().any(|other| other.is("limit_req")) {
                    let message = format!(
                        "the limits of `location {}` were not converted: requests reach it only after another location; add the limits there",
                        words.join(" ")
                    );
                    self.settings.findings.push_note(path, directive_position(directive), message);
                }
                continue;
            }
            let (is_exact, prefix) = match words[..] {
                ["=", path] => (true, path),
                ["^~", prefix] => (false, prefix),
                [prefix] if prefix.starts_with('/') && !prefix.contains('*') => (false, prefix),
                _ => {
                    let message = format!(
                        "`location {}` was not converted: its requests have the limits of the other locations",
                        words.join(" ")
                    );
                    self.settings.findings.push_note(path, directive_position(directive), message);
                    continue;
                }
            };
            let limits = settings.zone_limits();
            places.push(ServerOrLocation { path: prefix.to_owned(), is_exact, limits });
            self.read_locations(path, &inner, &settings, places);
        }
    }

    /// Returns the names in the `server_name` directives of a server, and whether it has names that are not converted.
    fn read_hosts(&mut self, path: &Path, directives: &[&Directive]) -> (Vec<String>, bool) {
        let (mut hosts, mut has_other_names) = (Vec::new(), false);
        for directive in directives.iter().filter(|directive| directive.is("server_name")) {
            for name in read_words(directive) {
                if let Some(domain) = name.strip_prefix('.') {
                    let domain = domain.to_ascii_lowercase();
                    hosts.extend([domain.clone(), format!("*.{domain}")]);
                } else if name.starts_with('~') || name.contains('$') {
                    has_other_names = true;
                    let message = format!("the name `{name}` of a server was not converted");
                    self.settings.findings.push_note(path, directive_position(directive), message);
                } else if !matches!(&*name, "" | "_") {
                    hosts.push(name.to_ascii_lowercase());
                }
            }
        }
        (hosts, has_other_names)
    }
}
