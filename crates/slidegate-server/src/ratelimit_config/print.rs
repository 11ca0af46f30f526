//! Prints converted rules as the text of a policy file.

use std::fmt::{self, Write};

use slidegate::Algorithm;

use super::finding::{Finding, escape_control_chars};
use super::rule_names::REQUESTED_RULE_NAME;
use super::rules::{ConvertedLimit, ConvertedMode, ConvertedRule, ValueSet};

/// A formatter that writes converted rules as the text of a policy file.
pub struct PolicyPrinter<'p> {
    /// The paths of the source files, which a comment in the policy file lists.
    pub sources: Vec<String>,
    pub notes: &'p [Finding],
    pub algorithm: Algorithm,
    /// The name of each domain, with its rules.
    pub domains: &'p [(String, Vec<ConvertedRule>)],
}

impl fmt::Display for PolicyPrinter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_header_comments(f)?;
        writeln!(f, "version: 1")?;
        // As in the reference server, a `hits_addend` of 0 is denied only above max, and every IPv6 address has its own
        // counter.
        writeln!(
            f,
            "defaults: {{ algorithm: {}, required: 0, ipv6_prefix: 128 }}",
            self.algorithm
        )?;
        writeln!(f, "rules:")?;
        for (domain, rules) in self.domains {
            for rule in rules {
                self.write_rule(f, &YamlScalarFormatter(domain), rule)?;
            }
            let domain = YamlScalarFormatter(domain);
            writeln!(
                f,
                "  - {{ name: {REQUESTED_RULE_NAME}, domain: {domain}, limits: requested }}"
            )?;
        }
        Ok(())
    }
}

impl PolicyPrinter<'_> {
    /// Writes YAML comments that list the source files and the notes.
    fn write_header_comments(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Converted by `slidegate convert` from")?;
        for source in &self.sources {
            writeln!(f, "# - {}", escape_control_chars(source))?;
        }
        if !self.notes.is_empty() {
            writeln!(f, "# Notes:")?;
        }
        for note in self.notes {
            writeln!(f, "# - {}", escape_control_chars(&note.to_string()))?;
        }
        Ok(())
    }

    fn write_rule(
        &self,
        f: &mut fmt::Formatter<'_>,
        domain: &YamlScalarFormatter<'_>,
        rule: &ConvertedRule,
    ) -> fmt::Result {
        writeln!(f, "  - name: {}", YamlScalarFormatter(&rule.name))?;
        writeln!(f, "    domain: {domain}")?;
        writeln!(f, "    descriptor: {}", YamlListFormatter(&rule.descriptor))?;
        if !rule.when.is_empty() {
            let when = rule
                .when
                .iter()
                .map(|(name, values)| format!("{}: {values}", YamlScalarFormatter(name)));
            writeln!(f, "    when: {{ {} }}", when.collect::<Vec<_>>().join(", "))?;
        }
        if !rule.per.is_empty() {
            writeln!(f, "    per: {}", YamlListFormatter(&rule.per))?;
        }
        writeln!(f, "    limits: {}", self.format_limits(rule.limit))?;
        match rule.mode {
            ConvertedMode::Enforce => {}
            ConvertedMode::Jointly => writeln!(f, "    mode: jointly")?,
            ConvertedMode::Observe => writeln!(f, "    mode: observe")?,
        }
        if !rule.replaces.is_empty() {
            writeln!(f, "    replaces: {}", YamlListFormatter(&rule.replaces))?;
        }
        if !rule.excluded.is_empty() {
            writeln!(f, "    overrides:")?;
        }
        for (name, values) in &rule.excluded {
            for values in values.split_literals_from_wildcards() {
                writeln!(
                    f,
                    "      - {{ when: {{ {}: {values} }}, mode: off }}",
                    YamlScalarFormatter(name)
                )?;
            }
        }
        Ok(())
    }

    fn format_limits(&self, limit: ConvertedLimit) -> String {
        match (limit, self.algorithm) {
            (ConvertedLimit::Unlimited, _) => "unlimited".to_owned(),
            (ConvertedLimit::Quota(max, window), Algorithm::FixedWindow { .. }) => {
                format!("[{{ max: {max}, window: {window}, align: clock }}]")
            }
            (ConvertedLimit::Quota(max, window), _) => format!("[{max}/{window}]"),
        }
    }
}

impl ValueSet {
    /// Splits this set of values into two sets, literals and wildcards, if one condition cannot contain both. Literals
    /// that look like a network need the form `{ literal: … }`. This form would treat a wildcard as plain text.
    fn split_literals_from_wildcards(&self) -> Vec<Self> {
        if !self.needs_literal_form() || self.wildcards.is_empty() {
            return vec![self.clone()];
        }
        let literals = Self { literals: self.literals.clone(), ..Self::default() };
        vec![literals, Self { wildcards: self.wildcards.clone(), ..Self::default() }]
    }

    /// Returns `true` if a policy would interpret any of the literals as an address or a network.
    fn needs_literal_form(&self) -> bool {
        self.literals.iter().any(|literal| super::wildcard::is_like_network(literal))
    }
}

/// Formats the values as a condition in the `when` of a policy rule.
impl fmt::Display for ValueSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.literals.iter().chain(&self.wildcards).cloned().collect();
        match &all[..] {
            list if self.needs_literal_form() => {
                write!(f, "{{ literal: {} }}", YamlListFormatter(list))
            }
            [only] => YamlScalarFormatter(only).fmt(f),
            list => YamlListFormatter(list).fmt(f),
        }
    }
}

/// A formatter that writes texts as a YAML list: `[a, b]`.
struct YamlListFormatter<'t>(&'t [String]);

impl fmt::Display for YamlListFormatter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> =
            self.0.iter().map(|text| YamlScalarFormatter(text).to_string()).collect();
        write!(f, "[{}]", texts.join(", "))
    }
}

/// A formatter that writes a text as a YAML scalar. Adds quotes if YAML could read the text as another type or as
/// syntax.
struct YamlScalarFormatter<'t>(&'t str);

impl fmt::Display for YamlScalarFormatter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.needs_no_quotes() {
            return f.write_str(self.0);
        }
        f.write_char('"')?;
        for char in self.0.chars() {
            match char {
                '"' | '\\' => write!(f, "\\{char}")?,
                ' '..='~' => f.write_char(char)?,
                char if char.is_alphanumeric() => f.write_char(char)?,
                // YAML forbids some of the other characters, and an editor may not show them.
                char => write!(f, "\\U{:08X}", u32::from(char))?,
            }
        }
        f.write_char('"')
    }
}

impl YamlScalarFormatter<'_> {
    /// Returns `true` if the text needs no quotes in YAML.
    fn needs_no_quotes(&self) -> bool {
        let has_plain_start =
            self.0.starts_with(|char: char| char.is_ascii_alphabetic() || char == '/');
        let is_plain_char = |char: char| char.is_ascii_alphanumeric() || "_-./".contains(char);
        let is_text = super::scalar::Scalar::from_plain(self.0) == super::scalar::Scalar::Text;
        has_plain_start && is_text && self.0.chars().all(is_plain_char)
    }
}
