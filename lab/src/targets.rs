//! What was aimed at, and whether it is met.

use crate::table::Table;

/// The targets in the order of their first measure, each with its worst.
#[derive(Default)]
pub struct Targets(Vec<Target>);

struct Target {
    text: &'static str,
    bound: Bound,
    worst: f64,
}

/// On which side of the aim is well.
#[derive(Clone, Copy)]
pub enum Bound {
    /// More is well.
    AtLeast(f64),
    /// Less is well.
    AtMost(f64),
}

impl Targets {
    /// Holds a measure against a target; the worst of several counts.
    pub fn hold(&mut self, text: &'static str, bound: Bound, measured: f64) {
        match self.0.iter_mut().find(|target| target.text == text) {
            Some(target) => target.worst = bound.worse(target.worst, measured),
            None => self.0.push(Target { text, bound, worst: measured }),
        }
    }

    /// Each target, its worst measure, and whether it is met.
    pub fn table(&self) -> Table {
        let mut table = Table::new(["target", "aim", "worst measured", "met"]);
        for Target { text, bound, worst } in &self.0 {
            let (aim, met) = match bound {
                Bound::AtLeast(aim) => (format!("at least {aim}"), worst >= aim),
                Bound::AtMost(aim) => (format!("at most {aim}"), worst <= aim),
            };
            let met = if met { "yes" } else { "**no**" };
            table.row([*text, &aim, &format!("{worst:.2}"), met]);
        }
        table
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
