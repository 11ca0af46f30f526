//! Names of rules. Counts hang on them, so that what is added to a file must not change those of others.

use std::collections::HashSet;
use std::hash::Hasher;

/// The name of the rule for limits that descriptors bring along.
pub const REQUESTED: &str = "requested";

/// Bytes that a name may have.
const MAX_BYTES: usize = 128;

/// Gives names to the rules of a domain.
pub struct Names {
    taken: HashSet<String>,
    given: Vec<String>,
}

impl Names {
    /// None is given as yet.
    pub fn new() -> Self {
        Self { taken: HashSet::from([REQUESTED.to_owned()]), given: Vec::new() }
    }

    /// Names limits by what they are called, if that is a name and nobody has it, else by their paths. Where
    /// two paths make one name, all but the first have a hash of theirs behind it.
    pub fn give<'l>(&mut self, limits: impl Iterator<Item = (&'l str, &'l str)> + Clone) {
        let own: Vec<bool> = limits
            .clone()
            .map(|(own, _)| is_name(own) && self.taken.insert(own.to_owned()))
            .collect();
        for ((name, path), is_own) in limits.zip(own) {
            let given = if is_own { name.to_owned() } else { self.of_path(path) };
            self.given.push(given);
        }
    }

    /// In the order in which they were asked for.
    pub fn given(&self) -> impl Iterator<Item = &str> {
        self.given.iter().map(|name| &**name)
    }

    fn of_path(&mut self, path: &str) -> String {
        let plain = plain(path);
        let mut name = plain.clone();
        for salt in 0u32.. {
            if name.len() <= MAX_BYTES && self.taken.insert(name.clone()) {
                break;
            }
            let hash = format!("-{:08x}", hash(path, salt));
            let most = plain.len().min(MAX_BYTES - hash.len());
            name = format!("{}{hash}", &plain[..most]);
        }
        name
    }
}

fn is_plain(char: char) -> bool {
    char.is_ascii_lowercase() || char.is_ascii_digit() || "._-".contains(char)
}

fn is_name(text: &str) -> bool {
    (1..=MAX_BYTES).contains(&text.len()) && text.chars().all(is_plain)
}

/// In lower case, with `-` for what cannot stand in a name.
fn plain(path: &str) -> String {
    let plain = path.chars().map(|char| char.to_ascii_lowercase());
    plain.map(|char| if is_plain(char) { char } else { '-' }).collect()
}

/// The same in every version, since counts hang on it.
fn hash(path: &str, salt: u32) -> u32 {
    let mut hasher = fnv::FnvHasher::default();
    hasher.write(&salt.to_le_bytes());
    hasher.write(path.as_bytes());
    let hash = hasher.finish();
    (hash ^ (hash >> 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(limits: &[(&str, &str)]) -> Vec<String> {
        let mut names = Names::new();
        names.give(limits.iter().copied());
        names.given().map(ToOwned::to_owned).collect()
    }

    #[test]
    fn a_limit_is_named_by_its_name_or_its_path() {
        let limits = [("base", "plan_free.user"), ("", "plan_free.user"), ("No Name", "path_/A b")];
        assert_eq!(names(&limits), ["base", "plan_free.user", "path_-a-b"]);
    }

    #[test]
    fn what_comes_later_renames_nobody() {
        let limits = [("", "a_X"), ("", "a_x"), ("x", "b"), ("x", "c"), ("requested", "d")];
        let all = names(&limits);
        for most in 0..limits.len() {
            assert_eq!(names(&limits[..most]), all[..most]);
        }
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        assert_eq!(all[1], "a_x-f7bab7a1");
        assert_eq!(all[2..], ["x", "c", "d"]);
    }

    #[test]
    fn a_long_path_and_requested_get_a_hash() {
        let long = "a".repeat(200);
        let all = names(&[("", &long), ("", "requested")]);
        assert_eq!(all[0].len(), MAX_BYTES);
        assert!(all[0].starts_with("aaaa") && all[0].as_bytes()[119] == b'-');
        assert!(all[1].starts_with("requested-"));
    }
}
