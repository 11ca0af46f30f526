//! Prints converted rules as the text of a policy file.

use std::fmt::{self, Write};

use slidegate::Algorithm;

use super::finding::{Finding, escape_control_chars};
use super::rule_names::REQUESTED_RULE_NAME;
use super::rules::{ConvertedLimit, ConvertedMode, ConvertedRule, ValueSet};

/// Formats rules as a policy file.
pub struct PolicyPrinter<'p> {
    /// The paths of the source files.
    pub sources: Vec<String>,
    pub notes: &'p [Finding],
    pub algorithm: Algorithm,
    /// Names of domains, with their rules.
    pub domains: &'p [(String, Vec<ConvertedRule>)],
}

impl fmt::Display for PolicyPrinter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_header(f)?;
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
                self.write_rule(f, &YamlText(domain), rule)?;
            }
            let domain = YamlText(domain);
            writeln!(
                f,
                "  - {{ name: {REQUESTED_RULE_NAME}, domain: {domain}, limits: requested }}"
            )?;
        }
        Ok(())
    }
}

impl PolicyPrinter<'_> {
    /// Writes comments that list the source files and the notes.
    fn write_header(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
        domain: &YamlText<'_>,
        rule: &ConvertedRule,
    ) -> fmt::Result {
        writeln!(f, "  - name: {}", YamlText(&rule.name))?;
        writeln!(f, "    domain: {domain}")?;
        writeln!(f, "    descriptor: {}", YamlList(&rule.descriptor))?;
        if !rule.when.is_empty() {
            let when =
                rule.when.iter().map(|(name, values)| format!("{}: {values}", YamlText(name)));
            writeln!(f, "    when: {{ {} }}", when.collect::<Vec<_>>().join(", "))?;
        }
        if !rule.per.is_empty() {
            writeln!(f, "    per: {}", YamlList(&rule.per))?;
        }
        writeln!(f, "    limits: {}", self.format_limits(rule.limit))?;
        match rule.mode {
            ConvertedMode::Enforce => {}
            ConvertedMode::Jointly => writeln!(f, "    mode: jointly")?,
            ConvertedMode::Observe => writeln!(f, "    mode: observe")?,
        }
        if !rule.replaces.is_empty() {
            writeln!(f, "    replaces: {}", YamlList(&rule.replaces))?;
        }
        if !rule.excluded.is_empty() {
            writeln!(f, "    overrides:")?;
        }
        for (name, values) in &rule.excluded {
            for values in values.split_by_kind() {
                writeln!(f, "      - {{ when: {{ {}: {values} }}, mode: off }}", YamlText(name))?;
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
    /// Splits the values if the literals need the form `{ literal: … }`, in which a wildcard would be plain text. Each
    /// part fits in one condition.
    fn split_by_kind(&self) -> Vec<Self> {
        if !self.needs_literal_form() || self.wildcards.is_empty() {
            return vec![self.clone()];
        }
        let literals = Self { literals: self.literals.clone(), ..Self::default() };
        vec![literals, Self { wildcards: self.wildcards.clone(), ..Self::default() }]
    }

    /// Returns whether a policy would read any of the values as an address or a network.
    fn needs_literal_form(&self) -> bool {
        self.literals.iter().any(|literal| super::wildcard::is_like_network(literal))
    }
}

/// Formats the values as a condition of `when`.
impl fmt::Display for ValueSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.literals.iter().chain(&self.wildcards).cloned().collect();
        match &all[..] {
            list if self.needs_literal_form() => write!(f, "{{ literal: {} }}", YamlList(list)),
            [only] => YamlText(only).fmt(f),
            list => YamlList(list).fmt(f),
        }
    }
}

/// Formats texts as a YAML list: `[a, b]`.
struct YamlList<'t>(&'t [String]);

impl fmt::Display for YamlList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(|text| YamlText(text).to_string()).collect();
        write!(f, "[{}]", texts.join(", "))
    }
}

/// Formats a text as a YAML scalar, in quotes if it could have another type or syntax.
struct YamlText<'t>(&'t str);

impl fmt::Display for YamlText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_plain() {
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

impl YamlText<'_> {
    /// Returns whether the text needs no quotes.
    fn is_plain(&self) -> bool {
        let has_plain_start =
            self.0.starts_with(|char: char| char.is_ascii_alphabetic() || char == '/');
        let is_plain_char = |char: char| char.is_ascii_alphanumeric() || "_-./".contains(char);
        let is_text = super::scalar::Scalar::from_plain(self.0) == super::scalar::Scalar::Text;
        has_plain_start && is_text && self.0.chars().all(is_plain_char)
    }
}
