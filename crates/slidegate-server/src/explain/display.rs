//! Formats explanations as text for `slidegate explain`.

use std::fmt;

use super::{Explanation, LimitExplanation, RuleExplanation, UnusedOverrides};

/// Maximum number of overrides that the text lists for each attribute that is missing.
const MAX_LISTED_OVERRIDES: usize = 5;

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(route) = &self.route {
            writeln!(f, "path matches route `{route}`")?;
        }
        let has_several_descriptors = self.rules.iter().any(|rule| rule.descriptor > 1);
        let mut last = 0;
        for rule in &self.rules {
            if has_several_descriptors && rule.descriptor != last {
                last = rule.descriptor;
                writeln!(f, "descriptor {last}:")?;
            }
            rule.fmt(f)?;
        }
        writeln!(f, "{}", self.summary)
    }
}

impl fmt::Display for RuleExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(reason) = &self.no_match_reason {
            return writeln!(f, "{}: does not apply: {reason}", self.rule);
        }
        write!(f, "{}: applies", self.rule)?;
        if let Some(name) = &self.by_override {
            write!(f, ", by {name}")?;
        }
        if self.missing_attribute {
            f.write_str(", and an attribute in `per` is missing")?;
        }
        f.write_str(if self.limits.is_empty() { ": everything passes\n" } else { "\n" })?;
        self.unused_overrides.iter().try_for_each(|unused| unused.fmt(f))?;
        self.limits.iter().try_for_each(|limit| limit.fmt(f))
    }
}

impl fmt::Display for UnusedOverrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = self.overrides.iter().take(MAX_LISTED_OVERRIDES).map(String::as_str);
        write!(f, "  {}", listed.collect::<Vec<_>>().join(", "))?;
        match self.overrides.len().checked_sub(MAX_LISTED_OVERRIDES) {
            None | Some(0) => {}
            Some(more) => write!(f, " and {more} more")?,
        }
        write!(f, " not used: {} is ", self.attribute)?;
        match &self.value {
            Some(value) => writeln!(f, "`{value}`"),
            None => writeln!(f, "missing"),
        }
    }
}

impl fmt::Display for LimitExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {}: {}: ", self.name, self.limit)?;
        let observes = if self.observed { " (observes only)" } else { "" };
        match &self.now {
            None => f.write_str("not read: the store is unavailable")?,
            Some(now) => {
                let fits = if now.fits { "fits" } else { "does not fit" };
                let always = if self.charged_always { ", charged always" } else { "" };
                let joint = if self.joint { " (denies only if no joint limit fits)" } else { "" };
                let (used, all) = (now.used, now.used + now.remaining);
                write!(f, "{fits}, {used} of {all} used{always}{joint}{observes}")?;
            }
        }
        writeln!(f)?;
        if let Some(to_pass) = &self.to_pass {
            writeln!(f, "    {to_pass}")?;
        }
        writeln!(f, "    counted as {}", self.key)
    }
}
