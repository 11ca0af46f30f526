//! A log that keeps its lines in memory, for tests of warnings.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

/// The lines that this thread has logged since the log was created.
pub struct Log {
    text: LogText,
    _subscriber: DefaultGuard,
}

#[derive(Clone, Default)]
struct LogText(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Creates a log of this thread.
    pub fn new() -> Self {
        let text = LogText::default();
        let subscriber =
            tracing_subscriber::fmt().with_writer(text.clone()).with_ansi(false).finish();
        Self { text, _subscriber: tracing::subscriber::set_default(subscriber) }
    }

    /// Returns the lines, and removes them from the log.
    pub fn take_lines(&self) -> Vec<String> {
        let text = std::mem::take(&mut *self.text.0.lock().unwrap());
        String::from_utf8(text).unwrap().lines().map(str::to_owned).collect()
    }
}

impl Write for LogText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogText {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
