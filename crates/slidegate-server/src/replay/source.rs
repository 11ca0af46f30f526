//! Where lines come from: files, compressed or not, and standard input.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use indicatif::{ProgressBar, ProgressStyle};

/// What every gzip file begins with (RFC 1952, 2.3.1).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Longer lines are not read into memory. Servers bound a request's line and each of its headers at 8 KiB.
const MAX_LINE_BYTES: usize = 64 * 1024;

const BUFFER_BYTES: usize = 128 * 1024;

/// One log, line by line.
pub struct LogSource {
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
}

/// What [`LogSource::next_line`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum NextLine<'a> {
    /// A line, without its line end.
    Line(&'a [u8]),
    /// A line of more than 64 KiB, which has been passed over.
    TooLong,
    End,
}

impl LogSource {
    /// Opens a log; `-` is standard input.
    pub fn open(path: &Path, progress: &ProgressBar) -> io::Result<Self> {
        if is_stdin(path) {
            Self::new(io::stdin(), progress)
        } else {
            Self::new(File::open(path)?, progress)
        }
    }

    fn new(bytes: impl Read + 'static, progress: &ProgressBar) -> io::Result<Self> {
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, progress.wrap_read(bytes));
        let mut magic = Vec::new();
        reader.by_ref().take(GZIP_MAGIC.len() as u64).read_to_end(&mut magic)?;
        let is_gzip = magic == GZIP_MAGIC;
        let whole = Cursor::new(magic).chain(reader);
        let reader: Box<dyn BufRead> = match is_gzip {
            true => Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(whole))),
            false => Box::new(whole),
        };
        Ok(Self { reader, line: Vec::new() })
    }

    /// Reads the next line.
    pub fn next_line(&mut self) -> io::Result<NextLine<'_>> {
        self.line.clear();
        // Room for the line end.
        let most = MAX_LINE_BYTES as u64 + 2;
        if self.reader.by_ref().take(most).read_until(b'\n', &mut self.line)? == 0 {
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

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// A bar on standard error that shows how many bytes of the logs have been read, as they lie on the disk;
/// indicatif hides it where standard error is no terminal.
pub fn progress_bar(logs: &[PathBuf]) -> ProgressBar {
    let size = |log: &PathBuf| {
        log.metadata().ok().filter(|about| about.is_file()).map(|about| about.len())
    };
    let (bar, template) = match logs.iter().map(size).sum() {
        Some(bytes) => (ProgressBar::new(bytes), "{wide_bar} {bytes}/{total_bytes} {eta}"),
        // Of a pipe nobody knows the end.
        None => (ProgressBar::no_length(), "{spinner} {bytes} {elapsed}"),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of a log; of one that is too long, nothing.
    fn lines(log: &[u8]) -> Vec<Option<Vec<u8>>> {
        let mut source = LogSource::new(Cursor::new(log.to_vec()), &ProgressBar::hidden()).unwrap();
        std::iter::from_fn(|| match source.next_line().unwrap() {
            NextLine::Line(line) => Some(Some(line.to_vec())),
            NextLine::TooLong => Some(None),
            NextLine::End => None,
        })
        .collect()
    }

    fn some(line: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        Some(line.as_ref().to_vec())
    }

    #[test]
    fn lines_come_without_their_ends() {
        assert_eq!(lines(b"one\r\n\ntwo\n"), [some("one"), some(""), some("two")]);
    }

    #[test]
    fn the_last_line_needs_no_end() {
        assert_eq!(lines(b"1\n2"), [some("1"), some("2")]);
    }

    #[test]
    fn a_log_of_a_byte_or_none_is_a_log() {
        assert_eq!(lines(b""), []);
        assert_eq!(lines(&GZIP_MAGIC[..1]), [some(&GZIP_MAGIC[..1])]);
    }

    #[test]
    fn a_line_of_64_kib_is_read_and_a_longer_one_passed_over() {
        for end in ["\n", "\r\n"] {
            let longest = "x".repeat(MAX_LINE_BYTES);
            let log = format!("{longest}{end}{longest}x{end}{longest}{longest}{end}last");
            assert_eq!(lines(log.as_bytes()), [some(&longest), None, None, some("last")]);
        }
    }
}
