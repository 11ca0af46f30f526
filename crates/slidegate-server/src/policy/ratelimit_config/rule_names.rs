//! Assigns names to converted rules.
//!
//! The name of a rule is part of the key of each of its counters. So a limit that is added at the end of a file must
//! not change the names of existing rules.

use std::collections::HashSet;
use std::hash::Hasher;

/// The name of the rule that enforces limits sent by clients in the descriptors of requests.
pub const REQUESTED_LIMITS_RULE_NAME: &str = "requested";

/// The maximum length of a rule name, in bytes.
const MAX_RULE_NAME_BYTES: usize = 128;

/// The unique names that are assigned to the rules of a domain.
pub struct RuleNames {
    taken: HashSet<String>,
    assigned: Vec<String>,
}

impl RuleNames {
    /// Creates a set of names in which only [`REQUESTED_LIMITS_RULE_NAME`] is taken.
    pub fn new() -> Self {
        Self { taken: HashSet::from([REQUESTED_LIMITS_RULE_NAME.to_owned()]), assigned: Vec::new() }
    }

    /// Assigns a rule name to each limit. Each item of `limits` contains the name of a limit in the configuration file,
    /// and its path of descriptors, such as `plan_free.user`. The rule gets the name of the limit if this name is valid
    /// and not taken, otherwise a name derived from the path. If several paths result in the same name, all but the
    /// first get a hash as suffix.
    pub fn assign<'l>(&mut self, limits: impl Iterator<Item = (&'l str, &'l str)> + Clone) {
        let keeps_own_name: Vec<bool> = limits
            .clone()
            .map(|(own_name, _)| {
                is_valid_rule_name(own_name) && self.taken.insert(own_name.to_owned())
            })
            .collect();
        for ((own_name, path), keeps_own_name) in limits.zip(keeps_own_name) {
            let name =
                if keeps_own_name { own_name.to_owned() } else { self.assign_name_from_path(path) };
            self.assigned.push(name);
        }
    }

    /// Returns the assigned rule names, in the order of the limits.
    pub fn assigned(&self) -> impl Iterator<Item = &str> {
        self.assigned.iter().map(|name| &**name)
    }

    /// Assigns and returns a unique name that is derived from a path of descriptors.
    fn assign_name_from_path(&mut self, path: &str) -> String {
        let plain = replace_chars_invalid_in_rule_name(path);
        let mut name = plain.clone();
        for salt in 0u32.. {
            if name.len() <= MAX_RULE_NAME_BYTES && self.taken.insert(name.clone()) {
                break;
            }
            let suffix = format!("-{:08x}", stable_path_hash(path, salt));
            let plain_bytes = plain.len().min(MAX_RULE_NAME_BYTES - suffix.len());
            name = format!("{}{suffix}", &plain[..plain_bytes]);
        }
        name
    }
}

fn is_rule_name_char(char: char) -> bool {
    char.is_ascii_lowercase() || char.is_ascii_digit() || "._-".contains(char)
}

fn is_valid_rule_name(text: &str) -> bool {
    (1..=MAX_RULE_NAME_BYTES).contains(&text.len()) && text.chars().all(is_rule_name_char)
}

/// Converts a path of descriptors to lower case, and replaces each character that is not valid in a rule name with `-`.
fn replace_chars_invalid_in_rule_name(path: &str) -> String {
    let lower_case = path.chars().map(|char| char.to_ascii_lowercase());
    lower_case.map(|char| if is_rule_name_char(char) { char } else { '-' }).collect()
}

/// Returns a hash of a path of descriptors. Another `salt` results in another hash, in case a name with the first hash
/// is taken. The hash must be the same in every version of slidegate, because the keys of counters contain it.
fn stable_path_hash(path: &str, salt: u32) -> u32 {
    let mut hasher = fnv::FnvHasher::default();
    hasher.write(&salt.to_le_bytes());
    hasher.write(path.as_bytes());
    let hash = hasher.finish();
    (hash ^ (hash >> 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rule names that are assigned to limits. Each item of `limits` contains the name of a limit in the
    /// configuration file, and its path of descriptors.
    fn assign_rule_names(limits: &[(&str, &str)]) -> Vec<String> {
        let mut names = RuleNames::new();
        names.assign(limits.iter().copied());
        names.assigned().map(ToOwned::to_owned).collect()
    }

    #[test]
    fn rule_name_is_derived_from_limit_or_path() {
        let limits = [("base", "plan_free.user"), ("", "plan_free.user"), ("No Name", "path_/A b")];
        assert_eq!(assign_rule_names(&limits), ["base", "plan_free.user", "path_-a-b"]);
    }

    #[test]
    fn adding_limits_keeps_existing_rule_names() {
        let limits = [("", "a_X"), ("", "a_x"), ("x", "b"), ("x", "c"), ("requested", "d")];
        let all = assign_rule_names(&limits);
        for count in 0..limits.len() {
            assert_eq!(assign_rule_names(&limits[..count]), all[..count]);
        }
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        assert_eq!(all[1], "a_x-f7bab7a1");
        assert_eq!(all[2..], ["x", "c", "d"]);
    }

    #[test]
    fn long_and_reserved_names_get_hash_suffix() {
        let long = "a".repeat(200);
        let all = assign_rule_names(&[("", &long), ("", "requested")]);
        assert_eq!(all[0].len(), MAX_RULE_NAME_BYTES);
        assert!(all[0].starts_with("aaaa") && all[0].as_bytes()[119] == b'-');
        assert!(all[1].starts_with("requested-"));
    }
}
