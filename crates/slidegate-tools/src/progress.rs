//! Shows the progress of a replay on standard error, if it is a terminal.

use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::report::escape_control_chars;
use super::source::is_stdin_path;

/// Maximum number of characters of a log's name in the progress bar.
const MAX_LOG_NAME_CHARS: usize = 30;

/// Interval at which a spinner moves, so that it also moves while nothing is read.
const SPINNER_INTERVAL: Duration = Duration::from_millis(100);

/// The template of the progress bar if the size of all logs is known.
const BAR_TEMPLATE: &str = "{msg} {wide_bar} {percent:>3} % {bytes}/{total_bytes}, {eta} left";

/// The template of the progress bar if the size of a log is unknown, for example of standard input.
const UNKNOWN_SIZE_TEMPLATE: &str = "{spinner} {msg} {bytes}, {bytes_per_sec}, {elapsed}";

/// The template of the progress bar after all logs have been read.
const REPORT_TEMPLATE: &str = "{spinner} {msg} {elapsed}";

/// A progress bar that shows the number of bytes that have been read, before decompression. It is removed from the
/// terminal when it is dropped. Hidden if standard error is not a terminal.
#[derive(Debug)]
pub struct ReplayProgress {
    bar: ProgressBar,
    log_count: usize,
}

impl ReplayProgress {
    /// Creates a progress bar for these logs.
    pub fn new(logs: &[PathBuf]) -> Self {
        Self::with_draw_target(ProgressDrawTarget::stderr(), logs)
    }

    fn with_draw_target(target: ProgressDrawTarget, logs: &[PathBuf]) -> Self {
        let bytes: Option<u64> = logs.iter().map(|log| file_size(log)).sum();
        let bar = ProgressBar::with_draw_target(bytes, target);
        set_template(&bar, if bytes.is_some() { BAR_TEMPLATE } else { UNKNOWN_SIZE_TEMPLATE });
        Self { bar, log_count: logs.len() }
    }

    /// Returns the bar, which counts bytes.
    pub fn bar(&self) -> &ProgressBar {
        &self.bar
    }

    /// Shows the name of the log that is read next, and its position in the list of logs.
    pub fn start_log(&self, index: usize, log: &Path) {
        let name = log_name(log);
        self.bar.set_message(match self.log_count {
            1 => name,
            count => format!("{}/{count} {name}", index + 1),
        });
        if self.bar.length().is_none() {
            self.start_spinner();
        }
    }

    /// Shows that all logs have been read, and that the report is being created.
    pub fn start_report(&self) {
        set_template(&self.bar, REPORT_TEMPLATE);
        self.bar.reset_elapsed();
        self.bar.set_message("creating the report");
        self.start_spinner();
    }

    fn start_spinner(&self) {
        if !self.bar.is_hidden() {
            self.bar.enable_steady_tick(SPINNER_INTERVAL);
        }
    }
}

impl Drop for ReplayProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Sets the template of the bar. With an invalid template, the bar keeps its style.
fn set_template(bar: &ProgressBar, template: &str) {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
}

/// Returns the size of a log in bytes, or `None` if the log is not a regular file.
fn file_size(log: &Path) -> Option<u64> {
    let metadata = log.metadata().ok().filter(|_| !is_stdin_path(log))?;
    metadata.is_file().then_some(metadata.len())
}

/// Returns the file name of a log. Only the end of a long name is returned, because rotated logs differ at the end.
fn log_name(log: &Path) -> String {
    if is_stdin_path(log) {
        return "standard input".to_owned();
    }
    let name = log.file_name().unwrap_or(log.as_os_str());
    let name: Vec<char> = escape_control_chars(&name.to_string_lossy()).chars().collect();
    match name.len().checked_sub(MAX_LOG_NAME_CHARS) {
        None | Some(0) => name.into_iter().collect(),
        Some(excess) => format!("…{}", name[excess + 1..].iter().collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read};
    use std::sync::{Arc, Mutex};

    use indicatif::TermLike;

    use super::*;

    /// A terminal of one line, which records everything that was ever shown in it.
    #[derive(Clone, Debug, Default)]
    struct RecordingTerminal(Arc<Mutex<Screen>>);

    #[derive(Debug, Default)]
    struct Screen {
        line: String,
        history: Vec<String>,
    }

    impl RecordingTerminal {
        fn line(&self) -> String {
            self.0.lock().unwrap().line.trim_end().to_owned()
        }

        fn has_shown(&self, text: &str) -> bool {
            self.0.lock().unwrap().history.iter().any(|line| line.contains(text))
        }
    }

    impl TermLike for RecordingTerminal {
        fn width(&self) -> u16 {
            120
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            let mut screen = self.0.lock().unwrap();
            screen.line += text;
            let line = screen.line.clone();
            screen.history.push(line);
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            self.0.lock().unwrap().line.clear();
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    fn start_progress(logs: &[&str]) -> (RecordingTerminal, ReplayProgress) {
        let terminal = RecordingTerminal::default();
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let logs: Vec<PathBuf> = logs.iter().map(PathBuf::from).collect();
        (terminal, ReplayProgress::with_draw_target(target, &logs))
    }

    #[test]
    fn progress_of_files_shows_share_of_all_bytes() {
        let folder =
            std::env::temp_dir().join(format!("slidegate-progress-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let logs = ["a.log", "b.log"].map(|name| folder.join(name));
        logs.iter().for_each(|log| std::fs::write(log, [b'x'; 2048]).unwrap());
        let paths = logs.each_ref().map(|log| log.to_str().unwrap());
        let (terminal, progress) = start_progress(&paths);
        progress.start_log(0, &logs[0]);
        let mut first = progress.bar().wrap_read(std::fs::File::open(&logs[0]).unwrap());
        first.read_to_end(&mut Vec::new()).unwrap();
        progress.start_log(1, &logs[1]);
        assert!(terminal.line().starts_with("2/2 b.log "), "{}", terminal.line());
        assert!(terminal.line().contains(" 50 % 2.00 KiB/4.00 KiB, "), "{}", terminal.line());
        assert!(terminal.line().ends_with(" left"), "{}", terminal.line());
        drop((first, progress));
        assert_eq!(terminal.line(), "");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn progress_of_standard_input_has_no_total() {
        let (terminal, progress) = start_progress(&["-"]);
        progress.start_log(0, Path::new("-"));
        progress.bar().inc(5);
        progress.start_report();
        drop(progress);
        assert!(terminal.has_shown("standard input "));
        assert!(!terminal.has_shown(" left"));
        assert!(terminal.has_shown("creating the report"));
        assert_eq!(terminal.line(), "");
    }

    #[test]
    fn long_log_name_is_shortened_at_start() {
        let name = log_name(Path::new(&format!("/var/log/{}.log.7\n", "a".repeat(40))));
        assert_eq!(name, format!("…{}.log.7\\n", "a".repeat(21)));
        assert_eq!(log_name(Path::new("/var/log/access.log")), "access.log");
    }
}
