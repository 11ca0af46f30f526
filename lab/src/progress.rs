//! Shows the progress of a benchmark on standard error: a bar on a terminal, otherwise one line per step.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar that counts the steps of a benchmark. It appears with the first step.
#[derive(Default)]
pub struct StepProgress(Option<ProgressBar>);

impl StepProgress {
    /// Adds `steps` to the total number of steps.
    pub fn add_steps(&mut self, steps: usize) {
        let bar = self.0.get_or_insert_with(new_progress_bar);
        bar.inc_length(steps as u64);
    }

    /// Marks the current step as completed and begins the next step. Shows `message` as the name of the next step.
    pub fn begin_step(&mut self, message: &str) {
        let bar = self.0.get_or_insert_with(new_progress_bar);
        if bar.is_hidden() {
            eprintln!("{message} …");
        }
        // The previous step is complete.
        if !bar.message().is_empty() {
            bar.inc(1);
        }
        bar.set_message(message.to_owned());
    }

    /// Removes the progress bar from the terminal.
    pub fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn new_progress_bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    // With an invalid template the bar keeps its default style.
    if let Ok(style) = ProgressStyle::with_template("  {bar:24} {pos}/{len} {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
