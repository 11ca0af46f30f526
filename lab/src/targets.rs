//! What was aimed at, and whether it is met.

use serde::{Deserialize, Serialize};

use crate::table::Table;

/// Something to reach. Stands as a constant beside what measures it.
#[derive(Clone, Copy)]
pub struct Aim {
    /// What is measured, and in which unit.
    pub text: &'static str,
    /// On which side of which value is well.
    pub bound: Bound,
    /// If it is missed: what limits it, as far as a profile told. Shown only then.
    pub limited_by: &'static str,
}

/// On which side of the aim is well.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Bound {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

/// The targets in the order of their first measure, each with its worst.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Targets(Vec<Target>);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Target {
    text: String,
    bound: Bound,
    worst: f64,
    limited_by: String,
}

impl Targets {
    /// Holds a measure against an aim; the worst of several counts.
    pub fn hold(&mut self, aim: &Aim, measured: f64) {
        match self.0.iter_mut().find(|target| target.text == aim.text) {
            Some(target) => target.worst = target.bound.worse(target.worst, measured),
            None => self.0.push(Target {
                text: aim.text.to_owned(),
                bound: aim.bound,
                worst: measured,
                limited_by: aim.limited_by.to_owned(),
            }),
        }
    }

    /// Whether nothing was held against anything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many are met, and how many there are.
    pub fn met(&self) -> (usize, usize) {
        (self.0.iter().filter(|target| target.is_met()).count(), self.0.len())
    }

    /// Each target, its worst measure, and whether it is met.
    pub fn table(&self) -> Table {
        let mut table = Table::new(["target", "aim", "worst measured", "met"]);
        for target in &self.0 {
            let aim = match target.bound {
                Bound::AtLeast(aim) => format!("at least {aim}"),
                Bound::AtMost(aim) => format!("at most {aim}"),
            };
            let met = if target.is_met() { "yes" } else { "**no**" };
            table.row([&target.text, &aim, &target.measured(), met]);
        }
        table
    }

    /// What limits those that are missed: a list, or nothing.
    pub fn misses(&self) -> String {
        let missed = self.0.iter().filter(|target| !target.is_met());
        let told = missed.filter(|target| !target.limited_by.is_empty());
        told.map(|target| format!("- **{}**: {}\n", target.text, target.limited_by)).collect()
    }
}

impl Target {
    fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtLeast(aim) => self.worst >= aim,
            Bound::AtMost(aim) => self.worst <= aim,
        }
    }

    /// With as many digits as it takes to tell it from the aim.
    fn measured(&self) -> String {
        let (Bound::AtLeast(aim) | Bound::AtMost(aim)) = self.bound;
        let rounded = format!("{:.2}", self.worst);
        let tells = rounded.parse() != Ok(aim) || self.worst == aim;
        if tells && (aim == 0.0 || aim >= 0.1) { rounded } else { format!("{:.4}", self.worst) }
    }
}

impl Bound {
    fn worse(self, one: f64, other: f64) -> f64 {
        match self {
            Self::AtLeast(_) => one.min(other),
            Self::AtMost(_) => one.max(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Aim = Aim { text: "fast", bound: Bound::AtLeast(2.0), limited_by: "the clock" };

    const SMALL: Aim = Aim { text: "small", bound: Bound::AtMost(0.65), limited_by: "" };

    #[test]
    fn the_worst_of_several_measures_counts() {
        let mut targets = Targets::default();
        for measured in [2.5, 1.5, 3.0] {
            targets.hold(&FAST, measured);
        }
        targets.hold(&SMALL, 0.6);
        assert_eq!(targets.met(), (1, 2));
        assert_eq!(targets.misses(), "- **fast**: the clock\n");
    }

    #[test]
    fn a_narrow_miss_does_not_look_as_if_it_were_met() {
        let mut targets = Targets::default();
        targets.hold(&SMALL, 0.6501);
        assert!(targets.table().to_string().contains("| 0.6501 | **no** |"));
    }
}
