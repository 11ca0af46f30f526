//! Reads the log of h2load, which has a line for each response.

use std::error::Error;
use std::fs;
use std::path::Path;

/// A response in the log of h2load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedResponse {
    /// The start of the request, in microseconds since the Unix epoch.
    pub start_us: u64,
    /// The status of the response.
    pub status: u16,
    /// The time until the end of the response, in microseconds.
    pub elapsed_us: u64,
}

/// Reads the file that h2load writes with `--log-file`.
///
/// # Errors
/// If the file cannot be read, or a line has another format.
pub fn read_log(path: &Path) -> Result<Vec<LoggedResponse>, Box<dyn Error>> {
    fs::read_to_string(path)?.lines().map(parse_line).collect()
}

fn parse_line(line: &str) -> Result<LoggedResponse, Box<dyn Error>> {
    let mut fields = line.split('\t');
    let mut next = || fields.next().ok_or_else(|| format!("a line without three fields: {line}"));
    let (start_us, status, elapsed_us) = (next()?, next()?, next()?);
    Ok(LoggedResponse {
        start_us: start_us.parse()?,
        status: status.parse()?,
        elapsed_us: elapsed_us.parse()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_line_without_status_is_an_error() {
        let response =
            LoggedResponse { start_us: 1_700_000_000_000_001, status: 429, elapsed_us: 64 };
        assert_eq!(parse_line("1700000000000001\t429\t64").unwrap(), response);
        assert!(parse_line("1700000000000001").is_err());
    }
}
