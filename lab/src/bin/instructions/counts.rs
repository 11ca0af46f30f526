//! Reads and writes the file with the expected instruction counts, and compares new counts with the file.

use std::error::Error;
use std::fmt;
use std::fs;
use std::process::ExitCode;

const INSTRUCTION_COUNTS_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.txt");

/// The tolerated difference between a new count and the file, in percent. Different compiler versions also change the
/// counts.
const COUNT_TOLERANCE_PERCENT: u64 = 10;

/// The number of instructions per decision, for each case.
#[derive(Default)]
pub struct InstructionCounts(Vec<(String, u64)>);

/// A difference between a new count and the file.
pub enum Drift {
    Grown { case: String, from: u64, to: u64 },
    Shrunk { case: String, from: u64, to: u64 },
    Unknown { case: String },
}

impl InstructionCounts {
    pub fn push(&mut self, case: String, count: u64) {
        self.0.push((case, count));
    }

    pub fn load() -> Result<Self, Box<dyn Error>> {
        let text = fs::read_to_string(INSTRUCTION_COUNTS_FILE)
            .map_err(|error| format!("{INSTRUCTION_COUNTS_FILE}: {error}"))?;
        text.lines().map(parse_count_line).collect::<Result<_, _>>().map(Self)
    }

    pub fn save(&self) -> Result<ExitCode, Box<dyn Error>> {
        let lines = self.0.iter().map(|(case, count)| format!("{case} {count}\n"));
        fs::write(INSTRUCTION_COUNTS_FILE, lines.collect::<String>())?;
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the cases whose counts differ from the counts in `before` by more than the tolerance, and the cases that
    /// are missing in `before`.
    pub fn drifts_from<'c>(&'c self, before: &'c Self) -> impl Iterator<Item = Drift> {
        self.0.iter().filter_map(|(case, to)| before.find_drift_of_case(case, *to))
    }

    fn find_drift_of_case(&self, case: &str, to: u64) -> Option<Drift> {
        let before = self.0.iter().find(|(known, _)| known == case);
        let case = case.to_owned();
        let Some(&(_, from)) = before else {
            return Some(Drift::Unknown { case });
        };
        if to * 100 > from * (100 + COUNT_TOLERANCE_PERCENT) {
            Some(Drift::Grown { case, from, to })
        } else if to * 100 < from * (100 - COUNT_TOLERANCE_PERCENT) {
            Some(Drift::Shrunk { case, from, to })
        } else {
            None
        }
    }
}

fn parse_count_line(line: &str) -> Result<(String, u64), Box<dyn Error>> {
    let (case, count) =
        line.split_once(' ').ok_or_else(|| format!("{INSTRUCTION_COUNTS_FILE}: `{line}`"))?;
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
            Self::Unknown { case } => {
                write!(f, "{case} is not in {INSTRUCTION_COUNTS_FILE}: run with --update")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drift_from_100_instructions_to(to: u64) -> Option<Drift> {
        InstructionCounts(vec![("a".into(), 100)]).find_drift_of_case("a", to)
    }

    #[test]
    fn instruction_count_drifts_only_beyond_tolerance() {
        assert!(matches!(
            drift_from_100_instructions_to(89),
            Some(Drift::Shrunk { from: 100, to: 89, .. })
        ));
        assert!(drift_from_100_instructions_to(90).is_none());
        assert!(drift_from_100_instructions_to(110).is_none());
        assert!(matches!(
            drift_from_100_instructions_to(111),
            Some(Drift::Grown { from: 100, to: 111, .. })
        ));
    }

    #[test]
    fn case_without_saved_count_is_unknown() {
        let known = InstructionCounts::default();
        assert!(matches!(known.find_drift_of_case("b", 1), Some(Drift::Unknown { .. })));
    }
}
