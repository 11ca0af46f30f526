//! Reads the key of `limit_req_zone`: variables of nginx, and variables that a `map` computes.
//!
//! nginx does not count a request whose key is empty. A `map` makes the key of some requests empty: by the value of
//! another variable, or by the network of the client, which `geo` determines. This becomes a condition of the rule.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use nginx_lint_parser::ast::{Block, Config, Directive};

use super::condition::ValueCondition;
use super::geo::Geo;
use super::zone::read_words;

/// The remedy for a key that depends on addresses and cannot be converted.
const ADDRESS_REMEDY: &str =
    "write the exempt networks as a condition of the rule, `when: { ip: { not: [...] } }`";

/// The key of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneKey {
    /// The attributes in the `per` of the converted rules.
    pub per: Vec<String>,
    /// The condition on which a request has a key; `None` if every request has one.
    pub filter: Option<KeyFilter>,
}

/// A condition on which a request has a key, and therefore is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFilter {
    pub attribute: String,
    pub condition: ValueCondition,
}

impl KeyFilter {
    /// Returns whether the case of the values matters in a policy. In nginx, `map` ignores it.
    pub fn is_case_sensitive(&self) -> bool {
        let has_letters = |value: &String| value.chars().any(char::is_alphabetic);
        let is_header = self.attribute.starts_with("header.");
        (is_header || self.attribute == "path") && self.condition.values.iter().any(has_letters)
    }
}

/// The `map` and `geo` blocks of all files, by the name of their variable.
#[derive(Default)]
pub struct Variables {
    maps: BTreeMap<String, MapBlock>,
    geos: BTreeMap<String, Result<Geo, String>>,
}

/// A `map` block.
#[derive(Default)]
struct MapBlock {
    /// The text whose value selects the result, such as `$http_x_api_key`.
    source: String,
    /// Values of the source, with their results.
    results: Vec<(String, String)>,
    /// The result for every other value.
    default: String,
    /// The part of the block that cannot be converted.
    unsupported: Option<String>,
}

impl Variables {
    /// Reads the `map` and `geo` blocks of all files.
    pub fn from_configs(configs: &[(&Path, Config)]) -> Self {
        let mut variables = Self::default();
        let directives = configs.iter().flat_map(|(_, config)| config.all_directives());
        for directive in directives {
            let Some(block) = &directive.block else { continue };
            let words = read_words(directive);
            let Some(name) = words.last().and_then(|name| name.strip_prefix('$')) else { continue };
            match (&*directive.name, &words[..]) {
                ("map", [source, _]) => {
                    variables.maps.insert(name.to_owned(), MapBlock::read(source, block));
                }
                ("geo", [_]) => {
                    variables.geos.insert(name.to_owned(), Geo::read(block));
                }
                ("geo", _) => {
                    let reason = "it has an address of its own".to_owned();
                    variables.geos.insert(name.to_owned(), Err(reason));
                }
                _ => {}
            }
        }
        variables
    }

    /// Reads the key of a zone.
    ///
    /// # Errors
    /// Returns the reason why a policy cannot count by the key, and a remedy.
    pub fn read_zone_key(&self, key: &str) -> Result<ZoneKey, String> {
        let Some(name) = single_variable(key) else {
            return Ok(ZoneKey { per: parse_zone_key(key)?, filter: None });
        };
        if let Some(map) = self.maps.get(name) {
            return self.read_map_key(name, map);
        }
        if self.geos.contains_key(name) {
            return Err(format!("its key `${name}` is the value of a `geo`; {ADDRESS_REMEDY}"));
        }
        Ok(ZoneKey { per: parse_zone_key(key)?, filter: None })
    }

    /// Reads a key that a `map` computes.
    fn read_map_key(&self, name: &str, map: &MapBlock) -> Result<ZoneKey, String> {
        let source = single_variable(&map.source).unwrap_or_default();
        let is_address = self.geos.contains_key(source)
            || parse_zone_key(&map.source).is_ok_and(|per| per == ["ip"]);
        let remedy = if is_address {
            ADDRESS_REMEDY.to_owned()
        } else {
            format!("send `${name}` in a header, and count by this header")
        };
        let filter_and_key = map.counted_key().and_then(|key| {
            let filter = match self.geos.get(source) {
                Some(Ok(geo)) => {
                    let condition = geo.condition(|value| !map.result(value).is_empty())?;
                    condition.map(|condition| KeyFilter { attribute: "ip".to_owned(), condition })
                }
                Some(Err(reason)) => return Err(format!("the `geo` of `${source}`: {reason}")),
                None => map.filter(source)?,
            };
            Ok((filter, key))
        });
        let (filter, key) = filter_and_key
            .map_err(|reason| format!("the `map` of its key `${name}`: {reason}; {remedy}"))?;
        Ok(ZoneKey { per: parse_zone_key(key)?, filter })
    }
}

impl MapBlock {
    fn read(source: &str, block: &Block) -> Self {
        let mut map = Self { source: source.to_owned(), ..Self::default() };
        for entry in block.directives() {
            let unsupported = map.read_entry(entry).err();
            map.unsupported = map.unsupported.take().or(unsupported);
        }
        map
    }

    /// Reads an entry of the block. Returns its text as the error if it cannot be converted.
    fn read_entry(&mut self, entry: &Directive) -> Result<(), String> {
        let value = &*entry.name;
        match &read_words(entry)[..] {
            [result] if value == "default" => self.default = result.clone(),
            [_] if value == "include" || value.starts_with('~') || value.contains(['\\', '$']) => {
                return Err(value.to_owned());
            }
            [result] => self.results.push((value.to_owned(), result.clone())),
            _ => return Err(value.to_owned()),
        }
        Ok(())
    }

    /// Returns the result for a value of the source. Like nginx, ignores the case.
    fn result(&self, value: &str) -> &str {
        let mut results = self.results.iter();
        match results.find(|(text, _)| text.eq_ignore_ascii_case(value)) {
            Some((_, result)) => result,
            None => &self.default,
        }
    }

    /// Returns the only result that is not empty.
    fn counted_key(&self) -> Result<&str, String> {
        if let Some(unsupported) = &self.unsupported {
            return Err(format!("`{unsupported}` cannot be converted"));
        }
        let results = self.results.iter().map(|(_, result)| result).chain([&self.default]);
        let mut keys = results.filter(|result| !result.is_empty());
        let key = keys.next().ok_or("all of its results are empty")?;
        match keys.find(|other| *other != key) {
            Some(other) => Err(format!("it has two keys, `{key}` and `{other}`")),
            None => Ok(key),
        }
    }

    /// Returns the condition on the variable `source` with which the result is not empty. Returns `None` if it is never
    /// empty.
    fn filter(&self, source: &str) -> Result<Option<KeyFilter>, String> {
        let attribute =
            attribute_for_variable(source)
                .filter(|_| source != "binary_remote_addr")
                .ok_or_else(|| format!("slidegate has no attribute for `{}`", self.source))?;
        let has_default_key = !self.default.is_empty();
        let listed = self.results.iter().filter(|(_, result)| result.is_empty() == has_default_key);
        let mut values: Vec<String> = listed.map(|(value, _)| value.clone()).collect();
        if !attribute.starts_with("header.") {
            // Every request has a host, a path, a method and an address.
            values.retain(|value| !value.is_empty());
        }
        if values.is_empty() {
            return match has_default_key {
                true => Ok(None),
                false => Err(format!("`{}` is never empty", self.source)),
            };
        }
        let condition = ValueCondition { values, is_negated: has_default_key };
        let condition = to_policy_values(&attribute, condition)?;
        Ok(Some(KeyFilter { attribute, condition }))
    }
}

/// Converts the values of a `map` to the values of an attribute in a policy.
fn to_policy_values(attribute: &str, condition: ValueCondition) -> Result<ValueCondition, String> {
    let ValueCondition { mut values, is_negated } = condition;
    if values.iter().all(String::is_empty) {
        // An attribute without a value is absent. The pattern `*` matches every attribute that is present.
        return Ok(ValueCondition { values: vec!["*".to_owned()], is_negated: !is_negated });
    }
    for value in &mut values {
        let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
        let is_network = value.split_once('/').is_some_and(|(address, _)| is_address(address));
        if value.is_empty() || value.contains('*') || is_network {
            return Err(format!("a policy cannot compare with `{value}`"));
        }
        if attribute == "ip" && !is_address(value.as_str()) {
            return Err(format!("`{value}` is not an address"));
        }
        match attribute {
            "method" => value.make_ascii_uppercase(),
            "host" => value.make_ascii_lowercase(),
            _ => {}
        }
    }
    Ok(ValueCondition { values, is_negated })
}

/// Returns the name of the variable if a text is only one variable, such as `$host` or `${host}`.
fn single_variable(text: &str) -> Option<&str> {
    let name = text.strip_prefix('$')?;
    let inner = name.strip_prefix('{').and_then(|name| name.strip_suffix('}'));
    let name = inner.unwrap_or(name);
    (!name.is_empty() && name.chars().all(is_variable_char)).then_some(name)
}

fn is_variable_char(char: char) -> bool {
    char.is_ascii_alphanumeric() || char == '_'
}

/// Returns the attributes for the variables in the key of a zone, such as `$binary_remote_addr$host`.
fn parse_zone_key(key: &str) -> Result<Vec<String>, String> {
    let mut per: Vec<String> = Vec::new();
    for text in key.split('$').skip(1) {
        let name = match text.strip_prefix('{') {
            Some(text) => text.split('}').next().unwrap_or_default(),
            None => &text[..text.find(|char| !is_variable_char(char)).unwrap_or(text.len())],
        };
        let attribute = attribute_for_variable(name).ok_or_else(|| {
            format!("slidegate has no attribute for `${name}`; send it in a header, and count by this header")
        })?;
        if !per.contains(&attribute) {
            per.push(attribute);
        }
    }
    Ok(per)
}

/// Returns the attribute for a variable of nginx; `None` if there is none.
fn attribute_for_variable(name: &str) -> Option<String> {
    let attribute = match name {
        "binary_remote_addr" | "remote_addr" | "realip_remote_addr" => "ip".to_owned(),
        "host" | "http_host" | "server_name" => "host".to_owned(),
        "uri" | "document_uri" | "request_uri" => "path".to_owned(),
        "request_method" => "method".to_owned(),
        _ => format!("header.{}", name.strip_prefix("http_")?.replace('_', "-")),
    };
    Some(attribute)
}
