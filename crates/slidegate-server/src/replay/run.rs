//! Takes the requests of logs through a gate, on the clock of the logs.

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use slidegate::{Clock, Descriptor, Gate, ManualClock, MemoryStore, Policy, Request};

use super::line::{self, Line};
use super::reorder::{LineBatch, ReorderBuffer};
use super::source::{LogSource, NextLine};
use super::stats::ReplayStats;

/// Whatever stood behind that many bytes of a line that nobody understands helps nobody.
const MAX_EXCERPT_BYTES: usize = 120;

/// A policy, tried on the requests of logs.
pub struct Replay<'a> {
    policy: &'a Policy,
    domain: &'a str,
    max_keys: usize,
    clock: ManualClock,
    /// Made at the time of the first request, because a store's own time begins when it is made.
    gate: Option<Gate<MemoryStore<ManualClock>>>,
    reorder_buffer: ReorderBuffer,
    stats: ReplayStats,
}

/// How to replay.
#[derive(Clone, Copy)]
pub struct ReplayOptions {
    /// So many keys are counted at once.
    pub max_keys: usize,
    /// Lines are put in order within that span of the log's time.
    pub reorder: Duration,
    /// Whether to find out what clients ask for.
    pub measure_demand: bool,
}

/// A line that is not understood.
pub struct UnparsableLine {
    /// The line's number in its log, from 1.
    pub number: u64,
    /// Why, and how the line begins.
    pub reason: String,
}

impl<'a> Replay<'a> {
    /// Tries the rules of a domain.
    pub fn new(policy: &'a Policy, domain: &'a str, options: ReplayOptions) -> Self {
        let ReplayOptions { max_keys, reorder, measure_demand } = options;
        Self {
            policy,
            domain,
            max_keys,
            clock: ManualClock::default(),
            gate: None,
            reorder_buffer: ReorderBuffer::new(
                u64::try_from(reorder.as_micros()).unwrap_or(u64::MAX),
            ),
            stats: ReplayStats::new(policy, max_keys, measure_demand),
        }
    }

    /// What has been counted.
    pub fn stats(&self) -> &ReplayStats {
        &self.stats
    }

    /// Replays one log, and tells of each line that is not understood.
    pub fn log(
        &mut self,
        log: &mut LogSource,
        mut tell: impl FnMut(UnparsableLine),
    ) -> io::Result<()> {
        for number in 1.. {
            let reason = match log.next_line()? {
                NextLine::End => break,
                NextLine::TooLong => Err("is over 64 KiB".to_owned()),
                NextLine::Line(bytes) => self.line(bytes),
            };
            if let Err(reason) = reason {
                self.stats.unparsable += 1;
                tell(UnparsableLine { number, reason });
            }
        }
        Ok(())
    }

    /// Replays one line, or says why it is not understood.
    fn line(&mut self, bytes: &[u8]) -> Result<(), String> {
        // A request counts, whatever its user agent was made of. `from_utf8` is much the faster.
        let text =
            str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed);
        let line = line::parse(&text).map_err(|error| format!("{error}: {}", excerpt(&text)))?;
        self.reorder_buffer.push(&text, &line);
        while let Some(batch) = self.reorder_buffer.pop_due() {
            self.batch(batch);
        }
        Ok(())
    }

    /// Replays what still waits for earlier lines.
    pub fn finish(&mut self) {
        while let Some(batch) = self.reorder_buffer.pop() {
            self.batch(batch);
        }
        self.stats.forgotten = self.gate.as_ref().map_or(0, |gate| gate.store().evicted_keys());
    }

    fn batch(&mut self, batch: LineBatch) {
        batch.lines().for_each(|line| self.request(&line));
        self.reorder_buffer.recycle(batch);
    }

    fn request(&mut self, line: &Line<'_>) {
        // A line that is too late to be put in its place counts now: what had expired before may have been
        // forgotten since.
        let now = line.time.max(self.clock.now());
        self.clock.set(now);
        self.stats.note_time(line.time);
        let gate = self.gate.get_or_insert_with(|| {
            Gate::new(
                self.policy.clone(),
                MemoryStore::with_clock(self.clock.clone(), self.max_keys),
            )
        });
        let request = Request::new(self.domain, Descriptor::new(line.attributes()));
        let applied = gate.policy().apply(&request);
        let ruling = gate.check_matched_now(&applied);
        self.stats.count(now, &applied, &ruling);
    }
}

/// How a line begins, harmless to a terminal.
fn excerpt(text: &str) -> String {
    let start = &text[..text.floor_char_boundary(MAX_EXCERPT_BYTES)];
    format!("{start:?}{}", if start.len() < text.len() { "…" } else { "" })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Limits of every algorithm; whether it may allow, or deny, what an exact log would not; and the most
    /// units that it promises for any window.
    const PROMISES: [(&str, bool, bool, u64); 7] = [
        ("{ max: 3, window: 10s, algorithm: sliding_log }", false, false, 3),
        ("{ max: 2, window: 1500ms, algorithm: sliding_log }", false, false, 2),
        ("{ max: 4, window: 13d, algorithm: sliding_log }", false, false, 4),
        ("{ max: 3, window: 10s, algorithm: sliding_buckets }", false, true, 3),
        ("{ max: 3, window: 10s, algorithm: sliding_window }", true, true, 5),
        ("{ max: 3, window: 10s, algorithm: fixed_window }", true, false, 6),
        ("{ max: 3, window: 10s, algorithm: token_bucket }", true, false, 6),
    ];

    proptest! {
        /// Whatever the log. Lines may also be late.
        #[test]
        fn every_algorithm_is_found_to_keep_its_promises(
            asked in proptest::collection::vec((0..3u8, 0..5u64, 0..2u64), 0..150),
        ) {
            for (limit, may_allow, may_deny, most) in PROMISES {
                let yaml = format!("rules: [ {{ name: all, per: [ip], limits: [{limit}] }} ]");
                let policy = Policy::from_yaml(&yaml).unwrap();
                let options = ReplayOptions { max_keys: 1000, reorder: Duration::ZERO, measure_demand: false };
                let mut replay = Replay::new(&policy, "default", options);
                let mut now = 100;
                for (ip, step, late) in &asked {
                    now += step / 2;
                    let (minute, second) = ((now - late) / 60, (now - late) % 60);
                    let time = format!("01/Jan/2026:03:{minute:02}:{second:02} +0000");
                    let line = format!("10.0.0.{ip} - - [{time}] \"GET / HTTP/1.1\" 200 1");
                    replay.line(line.as_bytes()).unwrap();
                }
                replay.finish();
                let stats = &replay.stats().rules[0];
                prop_assert_eq!(stats.counts.asked, asked.len() as u64);
                let (allows, denies) = (stats.deviation.false_allows, stats.deviation.false_denies);
                prop_assert!(may_allow || allows == 0, "{limit} allowed {allows}");
                prop_assert!(may_deny || denies == 0, "{limit} denied {denies}");
                let worst = stats.limits[0].accuracy.worst.units;
                prop_assert!(worst <= most, "{limit} let {worst} pass");
            }
        }
    }
}
