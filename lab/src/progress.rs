//! Where a benchmark is, on a terminal; and in a log, which has no bars, a line for each step.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// The steps of a benchmark.
#[derive(Default)]
pub struct Progress(Option<ProgressBar>);

impl Progress {
    /// Adds so many steps that are to come.
    pub fn expect(&mut self, steps: usize) {
        let bar = self.0.get_or_insert_with(new);
        bar.inc_length(steps as u64);
    }

    /// Begins a step.
    pub fn step(&mut self, what: &str) {
        let bar = self.0.get_or_insert_with(new);
        if bar.is_hidden() {
            eprintln!("{what} …");
        }
        // The step before has ended.
        if !bar.message().is_empty() {
            bar.inc(1);
        }
        bar.set_message(what.to_owned());
    }

    /// Takes the bar away.
    pub fn end(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn new() -> ProgressBar {
    let bar = ProgressBar::new(0);
    // A template that is wrong leaves the bar as it is by default.
    if let Ok(style) = ProgressStyle::with_template("  {bar:24} {pos}/{len} {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
