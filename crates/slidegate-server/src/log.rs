//! The log on standard error. Each event is exactly one line, even if the event contains line breaks that a client
//! sent.

use std::fmt::{self, Debug, Write};
use std::io::{self, IsTerminal};

use tracing::field::Field;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::SetGlobalDefaultError;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

use crate::args::LogFormat;

/// Settings of the log on standard error: its level and its format.
#[derive(Clone, Copy, Debug)]
pub struct LogSettings {
    pub level: LevelFilter,
    pub format: LogFormat,
}

/// Starts logging to standard error. Can be called only once per process.
pub fn init(settings: LogSettings) -> Result<(), SetGlobalDefaultError> {
    let log = tracing_subscriber::fmt()
        .with_max_level(settings.level)
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr);
    match settings.format {
        LogFormat::Text => tracing::subscriber::set_global_default(
            log.fmt_fields(debug_fn(write_escaped_field).delimited(" ")).finish(),
        ),
        LogFormat::Json => tracing::subscriber::set_global_default(
            log.json().flatten_event(true).with_current_span(false).with_span_list(false).finish(),
        ),
    }
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

/// Returns `true` if a character can end a line, move the cursor of a terminal, or change the direction of text.
fn must_be_escaped_in_log(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_logged_text_are_escaped() {
        let mut line = String::new();
        let hostile = "a\nb\r\u{1b}[2Kc\u{2028}d\u{202e}e\u{9b}f\0 ä\\n";
        write!(SingleLineWriter(&mut line), "{hostile}").unwrap();
        assert_eq!(line, r"a\nb\r\u{1b}[2Kc\u{2028}d\u{202e}e\u{9b}f\u{0} ä\n");
    }
}
