//! Reads the lines of access logs from files, plain or compressed with gzip, and from standard input.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use indicatif::ProgressBar;

/// The first bytes of every gzip file (RFC 1952, section 2.3.1).
const GZIP_MAGIC_BYTES: [u8; 2] = [0x1f, 0x8b];

/// Maximum length of a line of an access log. Longer lines are skipped. Servers limit the request line and each header
/// to about 8 KiB.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// Size of each read buffer.
const READ_BUFFER_BYTES: usize = 128 * 1024;

/// An access log that is read line by line.
pub struct LogSource {
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
}

/// The result of [`LogSource::next_line`]: a line, or the reason for its absence.
#[derive(Debug, PartialEq, Eq)]
pub enum NextLine<'a> {
    /// A line of the log, without its line end.
    Line(&'a [u8]),
    /// A line of more than 64 KiB, which was skipped.
    TooLong,
    /// The end of the log.
    End,
}

impl fmt::Debug for LogSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogSource").finish_non_exhaustive()
    }
}

impl LogSource {
    /// Opens an access log, plain or compressed with gzip. The path `-` is standard input. Advances `progress` by the
    /// number of bytes that are read.
    pub fn open(path: &Path, progress: &ProgressBar) -> io::Result<Self> {
        if is_stdin_path(path) {
            Self::new(io::stdin(), progress)
        } else {
            Self::new(File::open(path)?, progress)
        }
    }

    fn new(bytes: impl Read + 'static, progress: &ProgressBar) -> io::Result<Self> {
        let mut reader = BufReader::with_capacity(READ_BUFFER_BYTES, progress.wrap_read(bytes));
        let mut magic = Vec::new();
        reader.by_ref().take(GZIP_MAGIC_BYTES.len() as u64).read_to_end(&mut magic)?;
        let is_gzip = magic == GZIP_MAGIC_BYTES;
        let full_log = Cursor::new(magic).chain(reader);
        let reader: Box<dyn BufRead> = if is_gzip {
            Box::new(BufReader::with_capacity(READ_BUFFER_BYTES, MultiGzDecoder::new(full_log)))
        } else {
            Box::new(full_log)
        };
        Ok(Self { reader, line: Vec::new() })
    }

    /// Reads the next line of the log. Skips a line that is too long.
    pub fn next_line(&mut self) -> io::Result<NextLine<'_>> {
        self.line.clear();
        // The maximum includes the line end.
        let max_bytes = MAX_LINE_BYTES as u64 + 2;
        if self.reader.by_ref().take(max_bytes).read_until(b'\n', &mut self.line)? == 0 {
            return Ok(NextLine::End);
        }
        let line = match self.line.strip_suffix(b"\n") {
            Some(line) => line.strip_suffix(b"\r").unwrap_or(line),
            None => &self.line,
        };
        if line.len() <= MAX_LINE_BYTES {
            return Ok(NextLine::Line(line));
        }
        if self.line.last() != Some(&b'\n') {
            self.reader.skip_until(b'\n')?;
        }
        Ok(NextLine::TooLong)
    }
}

/// Returns whether the path is `-`, which stands for standard input.
pub fn is_stdin_path(path: &Path) -> bool {
    path.as_os_str() == "-"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all lines of a log, with `None` in place of lines that are too long.
    fn read_all_lines(log: &[u8]) -> Vec<Option<Vec<u8>>> {
        let mut source = LogSource::new(Cursor::new(log.to_vec()), &ProgressBar::hidden()).unwrap();
        std::iter::from_fn(|| match source.next_line().unwrap() {
            NextLine::Line(line) => Some(Some(line.to_vec())),
            NextLine::TooLong => Some(None),
            NextLine::End => None,
        })
        .collect()
    }

    fn expected_log_line(line: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        Some(line.as_ref().to_vec())
    }

    #[test]
    fn line_ends_are_removed_from_read_lines() {
        assert_eq!(
            read_all_lines(b"one\r\n\ntwo\n"),
            [expected_log_line("one"), expected_log_line(""), expected_log_line("two")]
        );
    }

    #[test]
    fn last_log_line_without_newline_is_read() {
        assert_eq!(read_all_lines(b"1\n2"), [expected_log_line("1"), expected_log_line("2")]);
    }

    #[test]
    fn log_shorter_than_gzip_magic_bytes_is_read() {
        assert_eq!(read_all_lines(b""), []);
        assert_eq!(
            read_all_lines(&GZIP_MAGIC_BYTES[..1]),
            [expected_log_line(&GZIP_MAGIC_BYTES[..1])]
        );
    }

    #[test]
    fn log_line_above_64_kib_is_skipped() {
        for end in ["\n", "\r\n"] {
            let longest = "x".repeat(MAX_LINE_BYTES);
            let log = format!("{longest}{end}{longest}x{end}{longest}{longest}{end}last");
            assert_eq!(
                read_all_lines(log.as_bytes()),
                [expected_log_line(&longest), None, None, expected_log_line("last")]
            );
        }
    }
}
