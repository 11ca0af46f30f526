//! Finds attribute names that are probably misspelt, in domains whose attributes the policy does not declare. A rule
//! with a misspelt name never applies, so it limits nothing.
//!
//! Short names that differ by one letter are often different words (`ip` and `id`, `path` and `part`). So the number of
//! letters by which a misspelt name may differ depends on the length of the name.

use std::collections::BTreeMap;

use super::super::attributes::{attribute_names_in, name_without_number_suffix};
use super::{RuleWithSource, SourceSpan, WarningCollector};

/// Names that callers and proxies commonly send.
const WELL_KNOWN_ATTRIBUTES: [&str; 9] = [
    "method",
    "path",
    "route",
    "ip",
    "host",
    "remote_address",
    "masked_remote_address",
    "generic_key",
    "header_match",
];

/// Prefixes of names that callers and proxies commonly send, such as `header.x-api-key`.
const WELL_KNOWN_ATTRIBUTE_PREFIXES: [&str; 3] = ["header", "query", "cookie"];

/// Names that differ by one letter from a well-known name or prefix, but are probably not misspelt.
const CORRECTLY_SPELT_WORDS: [&str; 6] = ["cost", "math", "post", "patch", "router", "reader"];

/// The uses of an attribute name in one domain.
struct NameUses {
    /// Index of the first rule that uses the name.
    rule_index: u32,
    /// Whether no other rule uses the name.
    is_in_one_rule: bool,
    spans: Vec<SourceSpan>,
}

impl WarningCollector<'_> {
    /// Adds a warning for each attribute of a domain that is probably misspelt: a name that differs by one or two
    /// letters from a well-known name or from a name that other rules use.
    pub(super) fn warn_about_misspelt_attributes(&mut self, domain: &[RuleWithSource<'_>]) {
        let Some(first) = domain.first() else { return };
        let names = self.policy.domain_names(first.rule.domain());
        if names.is_some_and(|names| names.declared_attributes().is_some()) {
            return;
        }
        let mut uses: BTreeMap<&str, NameUses> = BTreeMap::new();
        for source in domain {
            for (name, at) in attribute_names_in(source.spec) {
                let name = name_without_number_suffix(name);
                let own = uses.entry(name).or_insert_with(|| NameUses {
                    rule_index: source.rule_index,
                    is_in_one_rule: true,
                    spans: Vec::new(),
                });
                own.is_in_one_rule &= own.rule_index == source.rule_index;
                own.spans.push(at);
            }
        }
        for (name, own) in &uses {
            let problem = if let Some(meant) = find_well_known_correction(name) {
                format!("`{name}` is probably misspelt; did you mean `{meant}`?")
            } else if let Some(other) = self.find_similar_name_in_other_rules(name, own, &uses) {
                match uses.get(&*other).filter(|others| others.is_in_one_rule) {
                    // Nothing shows which of the two names is the right one.
                    Some(others) => {
                        let line = others.spans.first().map_or(0, |span| span.line);
                        format!("`{name}` or `{other}` in line {line} is probably misspelt.")
                    }
                    None => format!("`{name}` is probably misspelt; did you mean `{other}`?"),
                }
            } else {
                continue;
            };
            for at in &own.spans {
                let message = format_args!(
                    "{problem} If callers send `{name}`, list the names that they send in `attributes` of the policy"
                );
                self.add_warning(*at, message);
            }
        }
    }

    /// Returns the attribute name of another rule that is probably meant to be the same as `name`; `None` if several
    /// rules use `name`, or if no other name is similar. `uses` contains the attribute names of the domain.
    fn find_similar_name_in_other_rules(
        &mut self,
        name: &str,
        own: &NameUses,
        uses: &BTreeMap<&str, NameUses>,
    ) -> Option<String> {
        if !own.is_in_one_rule || WELL_KNOWN_ATTRIBUTES.contains(&name) {
            return None;
        }
        uses.iter().find_map(|(other, others)| {
            // Two similar names in one rule are meant to differ. If two similar names occur in one rule each, the later
            // is reported.
            let is_established = !others.is_in_one_rule || others.rule_index < own.rule_index;
            let is_candidate = is_established
                && others.rule_index != own.rule_index
                && name.len().abs_diff(other.len()) <= 2;
            (is_candidate
                && self.spend_search_steps(name.len() * other.len())
                && is_misspelling_of(name, other)
                && find_well_known_correction(other).is_none())
            .then(|| (*other).to_owned())
        })
    }
}

/// Returns the well-known name that `name` is probably meant to be.
fn find_well_known_correction(name: &str) -> Option<String> {
    if WELL_KNOWN_ATTRIBUTES.contains(&name) || CORRECTLY_SPELT_WORDS.contains(&name) {
        return None;
    }
    if let Some((prefix, rest)) = name.split_once('.') {
        let is_meant = |known: &&str| *known != prefix && is_misspelt_word(prefix, known);
        let is_known = WELL_KNOWN_ATTRIBUTE_PREFIXES.contains(&prefix)
            || CORRECTLY_SPELT_WORDS.contains(&prefix);
        let mut meant = WELL_KNOWN_ATTRIBUTE_PREFIXES.into_iter().filter(|_| !is_known);
        return meant.find(is_meant).map(|known| format!("{known}.{rest}"));
    }
    WELL_KNOWN_ATTRIBUTES
        .into_iter()
        .find(|known| is_misspelling_of(name, known))
        .map(str::to_owned)
}

/// Returns `true` if `name` is probably a misspelling of `known`: at most one of its words differs, and only by a few
/// letters. `client_id` is no misspelling of `client_ip`, because `id` and `ip` are different words.
fn is_misspelling_of(name: &str, known: &str) -> bool {
    let separators = ['.', '_', '-'];
    let without = |name: &str| name.to_lowercase().replace(separators, "");
    if name == known {
        return false;
    }
    // The names differ only in upper and lower case, or in the separators between words.
    if without(name) == without(known) {
        return true;
    }
    let (words, known_words) = (name.split(separators), known.split(separators));
    if words.clone().count() != known_words.clone().count() {
        return false;
    }
    let mut differing = words.zip(known_words).filter(|(word, known)| word != known);
    let (first, second) = (differing.next(), differing.next());
    matches!((first, second), (Some((word, known)), None) if is_misspelt_word(word, known))
}

/// Returns `true` if `word` differs from `known` by so few letters that it is probably misspelt.
fn is_misspelt_word(word: &str, known: &str) -> bool {
    // Words with digits are meant to differ, such as `key1` and `key2`.
    if word.bytes().chain(known.bytes()).any(|byte| byte.is_ascii_digit()) {
        return false;
    }
    let word = word.to_lowercase();
    let distance = strsim::osa_distance(&word, known);
    match known.len() {
        // A short word in which one letter is replaced is often another word, such as `id` and `ip`. So only doubled
        // and swapped letters count as misspellings, as in `ipp` and `pi`.
        0..=3 => distance == 1 && single_letters(&word) == single_letters(known),
        4..=5 => distance <= 1,
        _ => distance <= 2,
    }
}

/// Returns the letters of a word in alphabetical order, each once.
fn single_letters(word: &str) -> Vec<char> {
    let mut letters: Vec<char> = word.chars().collect();
    letters.sort_unstable();
    letters.dedup();
    letters
}

#[cfg(test)]
mod tests {
    use crate::policy::Policy;

    /// Returns the warnings of a policy with these rules that are about misspelt names, as `name > meant`, or as `name or
    /// other in line 2` if nothing shows which of them is right.
    fn misspelt(rules: &[&str]) -> Vec<String> {
        let rules = rules.iter().enumerate().map(|(index, fields)| {
            format!("  - {{ name: r{index}, {fields}, limits: [9/s], mode: observe }}\n")
        });
        let policy = Policy::from_yaml(&format!("rules:\n{}", rules.collect::<String>())).unwrap();
        let messages = policy.warnings().iter().map(|warning| warning.message());
        let names = messages.filter_map(|message| {
            let (names, rest) = message.split_once(" is probably misspelt")?;
            let names = match rest.strip_prefix("; did you mean ") {
                Some(rest) => format!("{names} > {}", rest.split_once('?')?.0),
                None => names.to_owned(),
            };
            Some(names.replace('`', ""))
        });
        names.collect()
    }

    #[test]
    fn misspelt_well_known_names_give_warnings() {
        for (name, meant) in [
            ("metod", "method"),
            ("mehtod", "method"),
            ("mthd", "method"),
            ("Method", "method"),
            ("rout", "route"),
            ("ruote", "route"),
            ("pth", "path"),
            ("paths", "path"),
            ("hots", "host"),
            ("ipp", "ip"),
            ("pi", "ip"),
            ("IP", "ip"),
            ("remote_adress", "remote_address"),
            ("remote-address", "remote_address"),
            ("headr.x-api-key", "header.x-api-key"),
            ("headers.x-api-key", "header.x-api-key"),
            ("qurey.page", "query.page"),
        ] {
            assert_eq!(misspelt(&[&format!("per: [{name}]")]), [format!("{name} > {meant}")]);
        }
    }

    #[test]
    fn ordinary_names_give_no_warning() {
        for name in [
            "id",
            "vip",
            "zip",
            "api",
            "app",
            "op",
            "user",
            "tenant",
            "plan",
            "role",
            "rate",
            "root",
            "part",
            "port",
            "hash",
            "cost",
            "post",
            "data",
            "math",
            "team",
            "org",
            "client",
            "model",
            "mode",
            "region",
            "api_key",
            "app_key",
            "user_agent",
            "client_ip",
            "source",
            "action",
            "router",
            "patch",
            "account",
            "email",
            "phone",
            "token",
            "session",
            "device",
            "country",
            "query",
            "header",
            "cookie",
            "resource",
            "operation",
            "endpoint",
            "service",
            "env",
            "method",
            "path",
            "route",
            "ip",
            "host",
            "header.x-a",
            "query.path",
            "cookie.ip",
            "destination_cluster",
            "source_cluster",
            "header_value_match",
            "x.y",
            "message_type",
        ] {
            assert_eq!(misspelt(&[&format!("per: [{name}]")]), <[&str; 0]>::default(), "{name}");
        }
    }

    #[test]
    fn name_similar_to_name_of_other_rule_gives_warning() {
        let pairs =
            [("user", "usr"), ("tenant", "tennant"), ("user_id", "userid"), ("plan", "plans")];
        for (name, other) in pairs {
            let (per, when) = (format!("per: [{name}]"), format!("when: {{ {other}: a }}"));
            assert_eq!(misspelt(&[&per, &when]), [format!("{other} or {name} in line 2")]);
            // The name that several rules use is the right one.
            assert_eq!(misspelt(&[&when, &per, &per]), [format!("{other} > {name}")]);
            // Two established names, or names of one rule, are meant to differ.
            assert_eq!(misspelt(&[&per, &per, &when, &when]), <[&str; 0]>::default());
            assert_eq!(misspelt(&[&format!("{per}, {when}")]), <[&str; 0]>::default());
        }
        assert_eq!(misspelt(&["per: [ipp]", "per: [ip]"]), ["ipp > ip"]);
        assert_eq!(misspelt(&["per: [headr.x]", "per: [header.x]"]), ["headr.x > header.x"]);
        for (name, other) in [
            ("client_id", "client_ip"),
            ("api_key", "app_key"),
            ("src_port", "dst_port"),
            ("key1", "key2"),
            ("header.x-a", "header.x-b"),
            ("org", "app"),
            ("tenant", "agent"),
            ("id", "ip"),
        ] {
            let rules = [&*format!("per: [{name}]"), &*format!("per: [{other}]")];
            assert_eq!(misspelt(&rules), <[&str; 0]>::default(), "{name} {other}");
        }
    }

    #[test]
    fn declared_attributes_replace_warnings() {
        let rule = "{ name: a, per: [metod], limits: [9/s] }";
        let warnings = |attributes: &str| {
            let policy = Policy::from_yaml(&format!("{attributes}\nrules: [{rule}]")).unwrap();
            policy.warnings().len()
        };
        assert_eq!(warnings(""), 1);
        assert_eq!(warnings("attributes: [metod]"), 0);
        assert_eq!(warnings("attributes: { default: [metod] }"), 0);
        let errors = Policy::from_yaml(&format!("attributes: [method]\nrules: [{rule}]"));
        let errors = errors.unwrap_err().to_string();
        assert!(
            errors
                .starts_with("2:26: `metod` is not listed in `attributes`; did you mean `method`?"),
            "{errors}"
        );
    }
}
