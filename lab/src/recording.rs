//! Reads recordings of real traffic: the number of requests in each second.
//!
//! Each line of a recording is the number of requests in one second. `N*SECONDS` is short for SECONDS lines with the
//! number N, mostly used as `0*SECONDS`. Empty lines and lines that begin with `#` are ignored.

use std::path::Path;
use std::{env, fs, io};

use fastrand::Rng;

/// The number of microseconds in a second.
const US_PER_SECOND: u64 = 1_000_000;

/// The maximum length of a recording in seconds: ten million, about four months.
const MAX_RECORDING_SECONDS: u64 = 10_000_000;

/// The maximum number of requests in a recording.
const MAX_RECORDED_REQUESTS: u64 = 10_000_000;

/// The maximum size of a recording file, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The text of the default recording, in this repository. A comment at the top of the file names the source of the
/// data.
const DEFAULT_RECORDING: &str = include_str!("../data/arrivals.txt");

/// The environment variable with the path of the recording to use instead of the default recording.
const RECORDING_PATH_ENV_VAR: &str = "ARRIVALS";

/// A recording of traffic: the number of requests in each second.
#[derive(Debug, PartialEq, Eq)]
pub struct Recording {
    /// Successive periods, in each of which every second has the same number of requests.
    periods: Vec<RecordedRatePeriod>,
}

/// A period in which every second has the same number of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RecordedRatePeriod {
    requests_per_second: u64,
    seconds: u64,
}

impl Recording {
    /// Reads the recording from the path in the environment variable `ARRIVALS`, or the default recording if the
    /// variable is not set or empty. Returns the recording and its name.
    ///
    /// # Errors
    /// If the file cannot be read, is larger than 64 MiB, or contains an invalid line.
    pub fn from_env() -> io::Result<(Self, String)> {
        let (text, name) = match env::var_os(RECORDING_PATH_ENV_VAR).filter(|name| !name.is_empty())
        {
            Some(path) => {
                (read_recording_file(path.as_ref())?, Path::new(&path).display().to_string())
            }
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
    /// The line number of the first invalid line with the problem, or a message that the recording has no requests.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut recording = Self { periods: Vec::new() };
        for (nth, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let run = RecordedRatePeriod::parse(line)
                .map_err(|problem| format!("line {}: {problem}", nth + 1))?;
            recording.periods.push(run);
            if recording.seconds() > MAX_RECORDING_SECONDS
                || recording.requests() > MAX_RECORDED_REQUESTS
            {
                let max =
                    format!("{MAX_RECORDING_SECONDS} seconds and {MAX_RECORDED_REQUESTS} requests");
                return Err(format!("line {}: a recording has at most {max}", nth + 1));
            }
        }
        if recording.requests() == 0 {
            return Err("the recording has no requests".to_owned());
        }
        Ok(recording)
    }

    /// Returns the length of the recording in seconds.
    pub fn seconds(&self) -> u64 {
        self.periods.iter().map(|run| run.seconds).sum()
    }

    /// Returns the number of requests in the whole recording.
    pub fn requests(&self) -> u64 {
        self.periods.iter().map(|run| run.requests_per_second * run.seconds).sum()
    }

    /// Returns the recording with shorter idle periods: each period without requests loses its whole minutes and keeps
    /// the remaining seconds.
    pub fn without_idle_minutes(&self) -> Self {
        let shorter = |run: &RecordedRatePeriod| match run.requests_per_second {
            0 => RecordedRatePeriod { seconds: run.seconds % 60, ..*run },
            _ => *run,
        };
        Self { periods: self.periods.iter().map(shorter).collect() }
    }

    /// Returns the recording repeated `times` times.
    pub fn repeated(&self, times: usize) -> Self {
        Self { periods: self.periods.repeat(times) }
    }

    /// Returns the sorted arrival times of all requests, in microseconds from the start of the recording. The seed
    /// determines the position of each request within its second.
    pub fn arrivals(&self, seed: u64) -> Vec<u64> {
        let mut rng = Rng::with_seed(seed);
        let (mut at, mut second_us) = (Vec::with_capacity(self.requests() as usize), 0);
        for run in &self.periods {
            if run.requests_per_second == 0 {
                second_us += run.seconds * US_PER_SECOND;
                continue;
            }
            for _ in 0..run.seconds {
                let first = at.len();
                at.extend(
                    (0..run.requests_per_second).map(|_| second_us + rng.u64(0..US_PER_SECOND)),
                );
                at[first..].sort_unstable();
                second_us += US_PER_SECOND;
            }
        }
        at
    }
}

impl RecordedRatePeriod {
    fn parse(line: &str) -> Result<Self, String> {
        let (requests_per_second, seconds) = line.split_once('*').unwrap_or((line, "1"));
        let run = Self {
            requests_per_second: parse_number_up_to(requests_per_second, MAX_RECORDED_REQUESTS)?,
            seconds: parse_number_up_to(seconds, MAX_RECORDING_SECONDS)?,
        };
        match run.seconds {
            0 => Err(format!("`{line}` has zero seconds")),
            _ => Ok(run),
        }
    }
}

fn parse_number_up_to(text: &str, max: u64) -> Result<u64, String> {
    let number = text.trim().parse().ok().filter(|number| *number <= max);
    number.ok_or_else(|| {
        let shown: String = text.chars().take(40).collect();
        format!("`{shown}` is not a whole number up to {max}")
    })
}

fn read_recording_file(path: &Path) -> io::Result<String> {
    let with_path = |error: io::Error| io::Error::other(format!("{}: {error}", path.display()));
    if fs::metadata(path).map_err(with_path)?.len() > MAX_FILE_BYTES {
        return Err(with_path(io::Error::other(format!("larger than {MAX_FILE_BYTES} bytes"))));
    }
    fs::read_to_string(path).map_err(with_path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recording_parse_errors_contain_line_number() {
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
    fn recorded_requests_arrive_within_their_second() {
        let recording = Recording::parse("# a head\n2\n\n0*70\n1*2\n").unwrap();
        assert_eq!((recording.seconds(), recording.requests()), (73, 4));
        let seconds = |recording: &Recording| -> Vec<u64> {
            let at = recording.arrivals(1);
            assert!(at.is_sorted());
            at.iter().map(|at| at / US_PER_SECOND).collect()
        };
        assert_eq!(seconds(&recording), [0, 0, 71, 72]);
        let shorter = recording.without_idle_minutes();
        assert_eq!(seconds(&shorter), [0, 0, 11, 12]);
        assert_eq!(seconds(&shorter.repeated(2)), [0, 0, 11, 12, 13, 13, 24, 25]);
    }

    #[test]
    fn default_recording_has_documented_requests_and_duration() {
        let recording = Recording::parse(DEFAULT_RECORDING).unwrap();
        assert_eq!(recording.requests(), 10_000);
        // One minute of each of 84 hours.
        assert_eq!(recording.without_idle_minutes().seconds(), 84 * 60);
        assert_eq!(recording.seconds().div_ceil(3_600), 84);
    }
}
