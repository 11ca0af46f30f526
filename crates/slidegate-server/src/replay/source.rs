//! Reads the lines of logs from files, compressed or not, and from standard input.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use indicatif::{ProgressBar, ProgressStyle};

/// The first bytes of every gzip file (RFC 1952, section 2.3.1).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Maximum length of a line. Longer lines are skipped. Servers limit the request line and each header to about 8 KiB.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// Size of the read buffers.
const BUFFER_BYTES: usize = 128 * 1024;

/// A log, read line by line.
pub struct LogSource {
    reader: Box<dyn BufRead>,
    line: Vec<u8>,
}

/// The result of [`LogSource::next_line`].
#[derive(Debug, PartialEq, Eq)]
pub enum NextLine<'a> {
    /// A line without its line end.
    Line(&'a [u8]),
    /// A line of more than 64 KiB, which was skipped.
    TooLong,
    /// The end of the log.
    End,
}

impl LogSource {
    /// Opens a log. `-` is standard input.
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
        let full_log = Cursor::new(magic).chain(reader);
        let reader: Box<dyn BufRead> = match is_gzip {
            true => Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(full_log))),
            false => Box::new(full_log),
        };
        Ok(Self { reader, line: Vec::new() })
    }

    /// Reads the next line.
    pub fn next_line(&mut self) -> io::Result<NextLine<'_>> {
        self.line.clear();
        // Includes the line end.
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

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Creates a progress bar on standard error over the bytes of the logs as stored on disk. indicatif hides it if
/// standard error is not a terminal.
pub fn progress_bar(logs: &[PathBuf]) -> ProgressBar {
    let size = |log: &PathBuf| {
        log.metadata().ok().filter(|metadata| metadata.is_file()).map(|metadata| metadata.len())
    };
    let (bar, template) = match logs.iter().map(size).sum() {
        Some(bytes) => (ProgressBar::new(bytes), "{wide_bar} {bytes}/{total_bytes} {eta}"),
        // The size of a pipe is unknown.
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

    /// Returns the lines of a log, `None` for lines that are too long.
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
    fn lines_have_no_line_ends() {
        assert_eq!(lines(b"one\r\n\ntwo\n"), [some("one"), some(""), some("two")]);
    }

    #[test]
    fn last_line_needs_no_line_end() {
        assert_eq!(lines(b"1\n2"), [some("1"), some("2")]);
    }

    #[test]
    fn log_shorter_than_magic_is_read() {
        assert_eq!(lines(b""), []);
        assert_eq!(lines(&GZIP_MAGIC[..1]), [some(&GZIP_MAGIC[..1])]);
    }

    #[test]
    fn line_above_64_kib_is_skipped() {
        for end in ["\n", "\r\n"] {
            let longest = "x".repeat(MAX_LINE_BYTES);
            let log = format!("{longest}{end}{longest}x{end}{longest}{longest}{end}last");
            assert_eq!(lines(log.as_bytes()), [some(&longest), None, None, some("last")]);
        }
    }
}
