//! Prints rules as a policy.

use std::fmt::{self, Write};

use slidegate::Algorithm;

use super::finding::{Finding, printable};
use super::names::REQUESTED;
use super::rules::{Mode, Rule, Terms, Values};

/// A policy as text.
pub struct Printed<'p> {
    /// What it is made of.
    pub sources: Vec<String>,
    pub notes: &'p [Finding],
    pub algorithm: Algorithm,
    /// Each with its rules.
    pub domains: &'p [(String, Vec<Rule>)],
}

impl fmt::Display for Printed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.comments(f)?;
        writeln!(f, "version: 1")?;
        // As the reference server does: a `hits_addend` of 0 is denied above max only, and each IPv6 address is counted
        // alone.
        writeln!(
            f,
            "defaults: {{ algorithm: {}, required: 0, ipv6_prefix: 128 }}",
            self.algorithm
        )?;
        writeln!(f, "rules:")?;
        for (domain, rules) in self.domains {
            for rule in rules {
                self.rule(f, &Text(domain), rule)?;
            }
            let domain = Text(domain);
            writeln!(f, "  - {{ name: {REQUESTED}, domain: {domain}, limits: requested }}")?;
        }
        Ok(())
    }
}

impl Printed<'_> {
    fn comments(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# What `slidegate convert` made of")?;
        for source in &self.sources {
            writeln!(f, "# - {}", printable(source))?;
        }
        if !self.notes.is_empty() {
            writeln!(f, "# Notes:")?;
        }
        for note in self.notes {
            writeln!(f, "# - {}", printable(&note.to_string()))?;
        }
        Ok(())
    }

    fn rule(&self, f: &mut fmt::Formatter<'_>, domain: &Text<'_>, rule: &Rule) -> fmt::Result {
        writeln!(f, "  - name: {}", Text(&rule.name))?;
        writeln!(f, "    domain: {domain}")?;
        writeln!(f, "    descriptor: {}", List(&rule.descriptor))?;
        if !rule.when.is_empty() {
            let when = rule.when.iter().map(|(name, values)| format!("{}: {values}", Text(name)));
            writeln!(f, "    when: {{ {} }}", when.collect::<Vec<_>>().join(", "))?;
        }
        if !rule.per.is_empty() {
            writeln!(f, "    per: {}", List(&rule.per))?;
        }
        writeln!(f, "    limits: {}", self.limits(rule.terms))?;
        match rule.mode {
            Mode::Enforce => {}
            Mode::Jointly => writeln!(f, "    mode: jointly")?,
            Mode::Observe => writeln!(f, "    mode: observe")?,
        }
        if !rule.replaces.is_empty() {
            writeln!(f, "    replaces: {}", List(&rule.replaces))?;
        }
        if !rule.off.is_empty() {
            writeln!(f, "    overrides:")?;
        }
        for (name, values) in &rule.off {
            for values in values.parted() {
                writeln!(f, "      - {{ when: {{ {}: {values} }}, mode: off }}", Text(name))?;
            }
        }
        Ok(())
    }

    fn limits(&self, terms: Terms) -> String {
        match (terms, self.algorithm) {
            (Terms::Unlimited, _) => "unlimited".to_owned(),
            (Terms::Quota(max, window), Algorithm::FixedWindow { .. }) => {
                format!("[{{ max: {max}, window: {window}, align: clock }}]")
            }
            (Terms::Quota(max, window), _) => format!("[{max}/{window}]"),
        }
    }
}

impl Values {
    /// Each as one condition can say it.
    fn parted(&self) -> Vec<Self> {
        if !self.needs_word() || self.wildcards.is_empty() {
            return vec![self.clone()];
        }
        let literals = Self { literals: self.literals.clone(), ..Self::default() };
        vec![literals, Self { wildcards: self.wildcards.clone(), ..Self::default() }]
    }

    /// Whether a policy would take any of them for more than its text.
    fn needs_word(&self) -> bool {
        self.literals.iter().any(|literal| super::values::is_like_network(literal))
    }
}

/// A condition.
impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.literals.iter().chain(&self.wildcards).cloned().collect();
        match &all[..] {
            list if self.needs_word() => write!(f, "{{ literal: {} }}", List(list)),
            [only] => Text(only).fmt(f),
            list => List(list).fmt(f),
        }
    }
}

/// `[a, b]`
struct List<'t>(&'t [String]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(|text| Text(text).to_string()).collect();
        write!(f, "[{}]", texts.join(", "))
    }
}

/// A text, in quotes if it could be taken for something else.
struct Text<'t>(&'t str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_plain() {
            return f.write_str(self.0);
        }
        f.write_char('"')?;
        for char in self.0.chars() {
            match char {
                '"' | '\\' => write!(f, "\\{char}")?,
                // What YAML may not have, or does not show.
                ' '..='~' => f.write_char(char)?,
                char if char.is_alphanumeric() => f.write_char(char)?,
                char => write!(f, "\\U{:08X}", u32::from(char))?,
            }
        }
        f.write_char('"')
    }
}

impl Text<'_> {
    fn is_plain(&self) -> bool {
        let begins = self.0.starts_with(|char: char| char.is_ascii_alphabetic() || char == '/');
        let goes_on = |char: char| char.is_ascii_alphanumeric() || "_-./".contains(char);
        let is_word = super::scalar::Scalar::of(self.0) == super::scalar::Scalar::Text;
        begins && is_word && self.0.chars().all(goes_on)
    }
}
