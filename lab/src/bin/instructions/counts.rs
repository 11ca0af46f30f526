//! Counts by case: the file that keeps them, and how they may drift from it.

use std::error::Error;
use std::fmt;
use std::fs;
use std::process::ExitCode;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.txt");

/// Counts may differ from the file by this much: compilers change too.
const TOLERANCE_PERCENT: u64 = 10;

/// Instructions per decision, by case.
#[derive(Default)]
pub struct Counts(Vec<(String, u64)>);

/// What differs from the file.
pub enum Drift {
    Grown { case: String, from: u64, to: u64 },
    Shrunk { case: String, from: u64, to: u64 },
    Unknown { case: String },
}

impl Counts {
    pub fn push(&mut self, case: String, count: u64) {
        self.0.push((case, count));
    }

    pub fn load() -> Result<Self, Box<dyn Error>> {
        let text = fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?;
        text.lines().map(parse_line).collect::<Result<_, _>>().map(Self)
    }

    pub fn save(&self) -> Result<ExitCode, Box<dyn Error>> {
        let lines = self.0.iter().map(|(case, count)| format!("{case} {count}\n"));
        fs::write(FILE, lines.collect::<String>())?;
        Ok(ExitCode::SUCCESS)
    }

    /// How these differ from what they were, beyond the tolerance.
    pub fn drifts_from<'c>(&'c self, before: &'c Self) -> impl Iterator<Item = Drift> {
        self.0.iter().filter_map(|(case, to)| before.drift(case, *to))
    }

    fn drift(&self, case: &str, to: u64) -> Option<Drift> {
        let before = self.0.iter().find(|(known, _)| known == case);
        let case = case.to_owned();
        let Some(&(_, from)) = before else {
            return Some(Drift::Unknown { case });
        };
        if to * 100 > from * (100 + TOLERANCE_PERCENT) {
            Some(Drift::Grown { case, from, to })
        } else if to * 100 < from * (100 - TOLERANCE_PERCENT) {
            Some(Drift::Shrunk { case, from, to })
        } else {
            None
        }
    }
}

fn parse_line(line: &str) -> Result<(String, u64), Box<dyn Error>> {
    let (case, count) = line.split_once(' ').ok_or_else(|| format!("{FILE}: `{line}`"))?;
    Ok((case.to_owned(), count.parse()?))
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grown { case, from, to } => {
                write!(f, "{case} grew from {from} to {to} instructions")
            }
            Self::Shrunk { case, from, to } => {
                write!(f, "{case} shrank from {from} to {to} instructions: run with --update")
            }
            Self::Unknown { case } => write!(f, "{case} is not in {FILE}: run with --update"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drift(to: u64) -> Option<Drift> {
        Counts(vec![("a".into(), 100)]).drift("a", to)
    }

    #[test]
    fn only_what_is_beyond_the_tolerance_drifts() {
        assert!(matches!(drift(89), Some(Drift::Shrunk { from: 100, to: 89, .. })));
        assert!(drift(90).is_none());
        assert!(drift(110).is_none());
        assert!(matches!(drift(111), Some(Drift::Grown { from: 100, to: 111, .. })));
    }

    #[test]
    fn a_new_case_is_no_failure() {
        let known = Counts::default();
        assert!(matches!(known.drift("b", 1), Some(Drift::Unknown { .. })));
    }
}
