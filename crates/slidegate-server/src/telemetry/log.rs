//! The log on standard error. Each event is exactly one line, even if the event contains line breaks that a client
//! sent.
//!
//! Only the thread of the [`LogQueue`] writes to standard error while the server runs, so that logging never blocks or
//! fails another thread.

mod panics;
mod queue;

use std::borrow::Cow;
use std::fmt::{self, Debug, Write};
use std::io::{self, IsTerminal};
use std::time::Duration;

use clap::ValueEnum;
use tracing::dispatcher::{self, Dispatch};
use tracing::field::Field;
use tracing::level_filters::LevelFilter;
use tracing::warn;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt;

pub use self::queue::{LogQueue, LostLines};

/// Maximum time by which the end of the process is delayed to write the last lines.
const MAX_LOG_FLUSH_TIME: Duration = Duration::from_millis(500);

/// The target of the events of the HTTP/2 library.
const HTTP2_TARGET: &str = "h2";

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// JSON for programs.
    Json,
}

/// Settings of the log on standard error: its level and its format.
#[derive(Clone, Copy, Debug)]
pub struct LogSettings {
    pub level: LevelFilter,
    pub format: LogFormat,
}

/// The running log. Dropping it writes the last lines.
pub struct Log {
    queue: LogQueue,
}

impl Log {
    /// Starts logging to standard error. Can be called only once per process.
    pub fn start(settings: LogSettings) -> io::Result<Self> {
        // Reports of lost lines do not pass through the queue, which may be full. The thread that writes them may
        // block.
        let reports = new_dispatch(settings, io::stderr);
        let queue = LogQueue::start(io::stderr(), move |lost| {
            dispatcher::with_default(&reports, || log_lost_lines(lost));
        })?;
        dispatcher::set_global_default(new_dispatch(settings, queue.clone()))
            .map_err(io::Error::other)?;
        panics::log_panics();
        Ok(Self { queue })
    }

    /// Returns the queue of the lines that are to be written.
    pub fn queue(&self) -> &LogQueue {
        &self.queue
    }
}

impl Drop for Log {
    /// Waits until the last lines are written, at most for [`MAX_LOG_FLUSH_TIME`].
    fn drop(&mut self) {
        self.queue.wait_until_written(MAX_LOG_FLUSH_TIME);
    }
}

/// Returns a dispatcher that formats each event as one line, and writes it with one call to a writer of `writers`.
fn new_dispatch(
    settings: LogSettings,
    writers: impl for<'w> MakeWriter<'w> + Send + Sync + 'static,
) -> Dispatch {
    let targets = Targets::new()
        .with_default(settings.level)
        .with_target(HTTP2_TARGET, http2_level(settings.level));
    let log = tracing_subscriber::fmt()
        .with_max_level(settings.level)
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        // By default, a thread that logs prints the errors of its writer to standard error, and panics if that fails.
        .log_internal_errors(false);
    match settings.format {
        LogFormat::Text => log
            .with_writer(writers)
            .fmt_fields(debug_fn(write_escaped_field).delimited(" "))
            .finish()
            .with(targets)
            .into(),
        LogFormat::Json => log
            .with_writer(JsonLineWriters(writers))
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .finish()
            .with(targets)
            .into(),
    }
}

/// Returns the log level of the HTTP/2 library. The library logs a warning for each connection whose client breaks the
/// protocol; these are shown only at the level `debug`.
fn http2_level(level: LevelFilter) -> LevelFilter {
    if level >= LevelFilter::DEBUG { level } else { level.min(LevelFilter::ERROR) }
}

fn log_lost_lines(lost: LostLines) {
    warn!(
        queue_full = lost.queue_full,
        write_failed = lost.write_failed,
        "log lines lost since the start; read standard error faster, or free space for it"
    );
}

/// Writes a field of a log event, with its line breaks escaped.
fn write_escaped_field(log: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    match field.name() {
        "message" => write!(SingleLineWriter(log), "{value:?}"),
        name => write!(SingleLineWriter(log), "{name}={value:?}"),
    }
}

/// A writer that escapes every character with which a client could end a log line or change its appearance.
struct SingleLineWriter<W>(W);

impl<W: Write> Write for SingleLineWriter<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((at, unsafe_char)) =
            rest.char_indices().find(|(_, char)| must_be_escaped_in_log(*char))
        {
            self.0.write_str(&rest[..at])?;
            write!(self.0, "{}", unsafe_char.escape_default())?;
            rest = &rest[at + unsafe_char.len_utf8()..];
        }
        self.0.write_str(rest)
    }
}

/// Creates a [`JsonLineWriter`] for each line.
struct JsonLineWriters<M>(M);

impl<'w, M: MakeWriter<'w>> MakeWriter<'w> for JsonLineWriters<M> {
    type Writer = JsonLineWriter<M::Writer>;

    fn make_writer(&'w self) -> Self::Writer {
        JsonLineWriter(self.0.make_writer())
    }
}

/// A writer of lines of JSON, each with one call. It escapes the characters that the text format escapes: JSON requires
/// this only of some of them.
struct JsonLineWriter<W>(W);

impl<W: io::Write> io::Write for JsonLineWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        self.0.write_all(escape_json_line(&text).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Escapes unsafe characters in a line of JSON, except the line break at its end. Such characters occur only in
/// strings, so the line has the same meaning.
fn escape_json_line(line: &str) -> Cow<'_, str> {
    if !line.contains(must_be_escaped_in_json_line) {
        return line.into();
    }
    let mut escaped = String::with_capacity(line.len() + 64);
    for char in line.chars() {
        if must_be_escaped_in_json_line(char) {
            // All unsafe characters have at most four hexadecimal digits. Writing to a string cannot fail.
            let _ = write!(escaped, "\\u{:04x}", u32::from(char));
        } else {
            escaped.push(char);
        }
    }
    escaped.into()
}

fn must_be_escaped_in_json_line(char: char) -> bool {
    char != '\n' && must_be_escaped_in_log(char)
}

/// Returns `true` if a character can end a line, move the cursor of a terminal, or change the direction of text.
fn must_be_escaped_in_log(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use std::io::{Read, pipe};

    use super::*;

    #[test]
    fn control_characters_in_logged_text_are_escaped() {
        let mut line = String::new();
        let hostile = "a\nb\r\u{1b}[2Kc\u{2028}d\u{202e}e\u{9b}f\0 ä\\n";
        write!(SingleLineWriter(&mut line), "{hostile}").unwrap();
        assert_eq!(line, r"a\nb\r\u{1b}[2Kc\u{2028}d\u{202e}e\u{9b}f\u{0} ä\n");
    }

    /// Returns the lines of a log with this level after a warning of the HTTP/2 library and one of the server.
    fn log_two_warnings(level: LevelFilter, format: LogFormat) -> String {
        let (mut reader, writer) = pipe().unwrap();
        let writers = move || writer.try_clone().unwrap();
        let dispatch = new_dispatch(LogSettings { level, format }, writers);
        dispatcher::with_default(&dispatch, || {
            warn!(target: "h2::proto::streams::recv", "recv_reset");
            warn!("of the server");
        });
        drop(dispatch);
        let mut lines = String::new();
        reader.read_to_string(&mut lines).unwrap();
        lines
    }

    #[test]
    fn http2_warnings_are_logged_at_debug_only() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let info = log_two_warnings(LevelFilter::INFO, format);
            assert!(info.contains("of the server") && !info.contains("recv_reset"), "{info}");
            assert!(log_two_warnings(LevelFilter::DEBUG, format).contains("recv_reset"));
            assert_eq!(log_two_warnings(LevelFilter::OFF, format), "");
        }
    }

    #[test]
    fn escaped_json_line_has_same_meaning() {
        let hostile =
            "\u{7f}\u{85}\u{9b}2K\u{2028}\u{2029}\u{202a}\u{202e}\u{2066}\u{2069}\\\n\"ä€😀";
        let line = serde_json::json!({ "key": hostile }).to_string() + "\n";
        let escaped = escape_json_line(&line);
        let end = escaped.find(must_be_escaped_in_log);
        assert_eq!(end, Some(escaped.len() - 1), "only the line break: {escaped:?}");
        let parsed: serde_json::Value = serde_json::from_str(&escaped).unwrap();
        assert_eq!(parsed["key"], hostile);
    }
}
