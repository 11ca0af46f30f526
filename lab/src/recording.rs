//! Recorded arrivals: the number of requests in each second.
//!
//! Each line is the number of requests in one second. `N*SECONDS` means N requests in each of SECONDS seconds, mostly
//! `0*SECONDS`. Empty lines and lines that begin with `#` are ignored.

use std::path::Path;
use std::{env, fs, io};

use fastrand::Rng;

/// Microseconds in a second.
const SECOND_US: u64 = 1_000_000;

/// The maximum length of a recording in seconds: ten million, about four months.
const MAX_SECONDS: u64 = 10_000_000;

/// The maximum number of requests in a recording.
const MAX_REQUESTS: u64 = 10_000_000;

/// The maximum size of a recording file, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// The recording in this repository; a comment at its top names the source.
const DEFAULT_RECORDING: &str = include_str!("../data/arrivals.txt");

/// The environment variable with the path of another recording.
const RECORDING_VARIABLE: &str = "ARRIVALS";

/// The number of requests in each second.
#[derive(Debug, PartialEq, Eq)]
pub struct Recording {
    /// Runs of seconds with equal numbers of requests.
    runs: Vec<CountRun>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CountRun {
    requests_per_second: u64,
    seconds: u64,
}

impl Recording {
    /// Reads the recording named by the environment variable `ARRIVALS`, or else the one in this repository. Returns
    /// the recording and its name.
    ///
    /// # Errors
    /// If the file cannot be read, is larger than 64 MiB, or contains an invalid line.
    pub fn from_env() -> io::Result<(Self, String)> {
        let (text, name) = match env::var_os(RECORDING_VARIABLE).filter(|name| !name.is_empty()) {
            Some(path) => (read_recording(path.as_ref())?, Path::new(&path).display().to_string()),
            None => (DEFAULT_RECORDING.to_owned(), "lab/data/arrivals.txt".to_owned()),
        };
        match Self::parse(&text) {
            Ok(recording) => Ok((recording, name)),
            Err(problem) => Err(io::Error::other(format!("{name}: {problem}"))),
        }
    }

    /// Parses the text of a recording.
    ///
    /// # Errors
    /// The number of the first invalid line and the problem; or that the recording has no requests.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut recording = Self { runs: Vec::new() };
        for (nth, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let run =
                CountRun::parse(line).map_err(|problem| format!("line {}: {problem}", nth + 1))?;
            recording.runs.push(run);
            if recording.seconds() > MAX_SECONDS || recording.requests() > MAX_REQUESTS {
                let max = format!("{MAX_SECONDS} seconds and {MAX_REQUESTS} requests");
                return Err(format!("line {}: a recording has at most {max}", nth + 1));
            }
        }
        if recording.requests() == 0 {
            return Err("the recording has no requests".to_owned());
        }
        Ok(recording)
    }

    /// Returns the length in seconds.
    pub fn seconds(&self) -> u64 {
        self.runs.iter().map(|run| run.seconds).sum()
    }

    /// Returns the number of requests.
    pub fn requests(&self) -> u64 {
        self.runs.iter().map(|run| run.requests_per_second * run.seconds).sum()
    }

    /// Returns the recording with each idle period shortened by its whole minutes.
    pub fn without_idle_minutes(&self) -> Self {
        let shorter = |run: &CountRun| match run.requests_per_second {
            0 => CountRun { seconds: run.seconds % 60, ..*run },
            _ => *run,
        };
        Self { runs: self.runs.iter().map(shorter).collect() }
    }

    /// Returns the recording repeated `times` times.
    pub fn repeated(&self, times: usize) -> Self {
        Self { runs: self.runs.repeat(times) }
    }

    /// Returns the sorted request times, in microseconds from the start. The seed determines the position of each
    /// request within its second.
    pub fn arrivals(&self, seed: u64) -> Vec<u64> {
        let mut rng = Rng::with_seed(seed);
        let (mut at, mut second_us) = (Vec::with_capacity(self.requests() as usize), 0);
        for run in &self.runs {
            if run.requests_per_second == 0 {
                second_us += run.seconds * SECOND_US;
                continue;
            }
            for _ in 0..run.seconds {
                let first = at.len();
                at.extend((0..run.requests_per_second).map(|_| second_us + rng.u64(0..SECOND_US)));
                at[first..].sort_unstable();
                second_us += SECOND_US;
            }
        }
        at
    }
}

impl CountRun {
    fn parse(line: &str) -> Result<Self, String> {
        let (requests_per_second, seconds) = line.split_once('*').unwrap_or((line, "1"));
        let run = Self {
            requests_per_second: parse_number(requests_per_second, MAX_REQUESTS)?,
            seconds: parse_number(seconds, MAX_SECONDS)?,
        };
        match run.seconds {
            0 => Err(format!("`{line}` has zero seconds")),
            _ => Ok(run),
        }
    }
}

fn parse_number(text: &str, max: u64) -> Result<u64, String> {
    let number = text.trim().parse().ok().filter(|number| *number <= max);
    number.ok_or_else(|| {
        let shown: String = text.chars().take(40).collect();
        format!("`{shown}` is not a whole number up to {max}")
    })
}

fn read_recording(path: &Path) -> io::Result<String> {
    let with_path = |error: io::Error| io::Error::other(format!("{}: {error}", path.display()));
    if fs::metadata(path).map_err(with_path)?.len() > MAX_BYTES {
        return Err(with_path(io::Error::other(format!("larger than {MAX_BYTES} bytes"))));
    }
    fs::read_to_string(path).map_err(with_path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_errors_have_line_numbers() {
        for (text, error) in [
            ("1\n\n# two\nthree", "line 4: `three` is not a whole number up to 10000000"),
            ("1\n-2", "line 2: `-2` is not a whole number up to 10000000"),
            ("2*", "line 1: `` is not a whole number up to 10000000"),
            ("3*0", "line 1: `3*0` has zero seconds"),
            ("1\n10000001", "line 2: `10000001` is not a whole number up to 10000000"),
            (
                "1\n2*9999999",
                "line 2: a recording has at most 10000000 seconds and 10000000 requests",
            ),
            ("# nothing\n0*5", "the recording has no requests"),
        ] {
            assert_eq!(Recording::parse(text), Err(error.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn requests_arrive_within_their_second() {
        let recording = Recording::parse("# a head\n2\n\n0*70\n1*2\n").unwrap();
        assert_eq!((recording.seconds(), recording.requests()), (73, 4));
        let seconds = |recording: &Recording| -> Vec<u64> {
            let at = recording.arrivals(1);
            assert!(at.is_sorted());
            at.iter().map(|at| at / SECOND_US).collect()
        };
        assert_eq!(seconds(&recording), [0, 0, 71, 72]);
        let shorter = recording.without_idle_minutes();
        assert_eq!(seconds(&shorter), [0, 0, 11, 12]);
        assert_eq!(seconds(&shorter.repeated(2)), [0, 0, 11, 12, 13, 13, 24, 25]);
    }

    #[test]
    fn default_recording_matches_its_description() {
        let recording = Recording::parse(DEFAULT_RECORDING).unwrap();
        assert_eq!(recording.requests(), 10_000);
        // One minute of each of 84 hours.
        assert_eq!(recording.without_idle_minutes().seconds(), 84 * 60);
        assert_eq!(recording.seconds().div_ceil(3_600), 84);
    }
}
