//! Recorded arrivals: how many requests came in each second.
//!
//! One second a line: how many came. `N*SECONDS` stands for so many seconds with N each, mostly `0*SECONDS`. What
//! begins with `#` and empty lines say nothing.

use std::path::Path;
use std::{env, fs, io};

use fastrand::Rng;

/// Microseconds in a second.
const SECOND_US: u64 = 1_000_000;

/// Seconds that a recording may have: ten million, about four months.
const MAX_SECONDS: u64 = 10_000_000;

/// Requests that a recording may have.
const MAX_REQUESTS: u64 = 10_000_000;

/// Bytes that its file may have.
const MAX_BYTES: u64 = 64 << 20;

/// The committed recording; its head says where it is from.
const COMMITTED: &str = include_str!("../data/arrivals.txt");

/// By which another one is named.
const VARIABLE: &str = "ARRIVALS";

/// How many requests came, second by second.
#[derive(Debug, PartialEq, Eq)]
pub struct Recording {
    /// So many seconds with so many requests each.
    runs: Vec<Run>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    each: u64,
    seconds: u64,
}

impl Recording {
    /// The one that the environment's `ARRIVALS` names, or else the committed one; and its name.
    ///
    /// # Errors
    /// If the file cannot be read, is longer than 64 MiB, or a line of it is wrong.
    pub fn chosen() -> io::Result<(Self, String)> {
        let (text, name) = match env::var_os(VARIABLE).filter(|name| !name.is_empty()) {
            Some(path) => (read(path.as_ref())?, Path::new(&path).display().to_string()),
            None => (COMMITTED.to_owned(), "lab/data/arrivals.txt".to_owned()),
        };
        match Self::parse(&text) {
            Ok(recording) => Ok((recording, name)),
            Err(what) => Err(io::Error::other(format!("{name}: {what}"))),
        }
    }

    /// A recording as text.
    ///
    /// # Errors
    /// What is wrong with the first line that is wrong, with its number; or that there is no request at all.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut all = Self { runs: Vec::new() };
        for (nth, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let run = Run::parse(line).map_err(|what| format!("line {}: {what}", nth + 1))?;
            all.runs.push(run);
            if all.seconds() > MAX_SECONDS || all.requests() > MAX_REQUESTS {
                let most = format!("{MAX_SECONDS} seconds and {MAX_REQUESTS} requests");
                return Err(format!("line {}: it may have at most {most}", nth + 1));
            }
        }
        if all.requests() == 0 {
            return Err("it has no request".to_owned());
        }
        Ok(all)
    }

    /// How long it is, in seconds.
    pub fn seconds(&self) -> u64 {
        self.runs.iter().map(|run| run.seconds).sum()
    }

    /// How many requests it has.
    pub fn requests(&self) -> u64 {
        self.runs.iter().map(|run| run.each * run.seconds).sum()
    }

    /// The same without the whole minutes of its silences.
    pub fn without_pauses(&self) -> Self {
        let shorter = |run: &Run| match run.each {
            0 => Run { seconds: run.seconds % 60, ..*run },
            _ => *run,
        };
        Self { runs: self.runs.iter().map(shorter).collect() }
    }

    /// The same so many times, one after the other.
    pub fn repeated(&self, times: usize) -> Self {
        Self { runs: self.runs.repeat(times) }
    }

    /// The moments of the requests, in microseconds since it began: anywhere in their second, by the seed.
    pub fn arrivals(&self, seed: u64) -> Vec<u64> {
        let mut rng = Rng::with_seed(seed);
        let (mut at, mut second_us) = (Vec::with_capacity(self.requests() as usize), 0);
        for run in &self.runs {
            if run.each == 0 {
                second_us += run.seconds * SECOND_US;
                continue;
            }
            for _ in 0..run.seconds {
                let first = at.len();
                at.extend((0..run.each).map(|_| second_us + rng.u64(0..SECOND_US)));
                at[first..].sort_unstable();
                second_us += SECOND_US;
            }
        }
        at
    }
}

impl Run {
    fn parse(line: &str) -> Result<Self, String> {
        let (each, seconds) = line.split_once('*').unwrap_or((line, "1"));
        let run =
            Self { each: number(each, MAX_REQUESTS)?, seconds: number(seconds, MAX_SECONDS)? };
        match run.seconds {
            0 => Err(format!("`{line}` are no seconds at all")),
            _ => Ok(run),
        }
    }
}

fn number(text: &str, most: u64) -> Result<u64, String> {
    let number = text.trim().parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| {
        let shown: String = text.chars().take(40).collect();
        format!("`{shown}` is no whole number up to {most}")
    })
}

fn read(path: &Path) -> io::Result<String> {
    let named = |error: io::Error| io::Error::other(format!("{}: {error}", path.display()));
    if fs::metadata(path).map_err(named)?.len() > MAX_BYTES {
        return Err(named(io::Error::other(format!("it is longer than {MAX_BYTES} bytes"))));
    }
    fs::read_to_string(path).map_err(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_has_its_line() {
        for (text, what) in [
            ("1\n\n# two\nthree", "line 4: `three` is no whole number up to 10000000"),
            ("1\n-2", "line 2: `-2` is no whole number up to 10000000"),
            ("2*", "line 1: `` is no whole number up to 10000000"),
            ("3*0", "line 1: `3*0` are no seconds at all"),
            ("1\n10000001", "line 2: `10000001` is no whole number up to 10000000"),
            ("1\n2*9999999", "line 2: it may have at most 10000000 seconds and 10000000 requests"),
            ("# nothing\n0*5", "it has no request"),
        ] {
            assert_eq!(Recording::parse(text), Err(what.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn requests_come_within_their_second() {
        let recording = Recording::parse("# a head\n2\n\n0*70\n1*2\n").unwrap();
        assert_eq!((recording.seconds(), recording.requests()), (73, 4));
        let seconds = |recording: &Recording| -> Vec<u64> {
            let at = recording.arrivals(1);
            assert!(at.is_sorted());
            at.iter().map(|at| at / SECOND_US).collect()
        };
        assert_eq!(seconds(&recording), [0, 0, 71, 72]);
        let shorter = recording.without_pauses();
        assert_eq!(seconds(&shorter), [0, 0, 11, 12]);
        assert_eq!(seconds(&shorter.repeated(2)), [0, 0, 11, 12, 13, 13, 24, 25]);
    }

    #[test]
    fn the_committed_recording_is_what_its_head_says() {
        let recording = Recording::parse(COMMITTED).unwrap();
        assert_eq!(recording.requests(), 10_000);
        // 84 hours, of each one minute.
        assert_eq!(recording.without_pauses().seconds(), 84 * 60);
        assert_eq!(recording.seconds().div_ceil(3_600), 84);
    }
}
