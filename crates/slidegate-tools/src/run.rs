//! Replays the requests of access logs through a gate, at the times in the logs.

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use slidegate::clock::Clock;
use slidegate::{Descriptor, Gate, ManualClock, MemoryStore, Policy, Request};

use super::exact_descriptors::ExactDescriptors;
use super::json_line::JsonFields;
use super::line::{self, ENVOY_CLIENT_ADDRESS_NAME, Line};
use super::reorder::{LineBatch, ReorderBuffer};
use super::source::{LogSource, NextLine};
use super::stats::ReplayStats;

/// Maximum number of bytes of an unparsable line that its error message contains.
const MAX_LINE_EXCERPT_BYTES: usize = 120;

/// A replay of the requests in access logs with the rules of a policy.
#[derive(Debug)]
pub struct Replay<'a> {
    policy: &'a Policy,
    domain: &'a str,
    max_keys: usize,
    clock: ManualClock,
    /// The gate that decides about the requests. Created at the first request, when the clock has been set to the time
    /// of the log, because a store measures time from its creation.
    gate: Option<Gate<MemoryStore<ManualClock>>>,
    reorder_buffer: ReorderBuffer,
    /// The descriptors of each request, or `None` if each request is one descriptor with all attributes of its line.
    exact_descriptors: Option<ExactDescriptors<'a>>,
    /// The fields of lines in JSON, and the names of the attributes that only these lines have.
    json_fields: JsonFields,
    json_names: Box<[Box<str>]>,
    stats: ReplayStats,
}

/// The options of a replay.
#[derive(Debug, Clone, Copy)]
pub struct ReplayOptions {
    /// Maximum number of keys that are counted at the same time.
    pub max_keys: usize,
    /// Maximum delay of the lines that are sorted by time. The delay of a line is the newest time in all earlier lines,
    /// minus the time of the line. Lines with a longer delay are replayed out of order.
    pub reorder: Duration,
    /// Whether to measure the maximum number of requests of each client, from which limits are suggested.
    pub measure_demand: bool,
}

/// A line of an access log that cannot be parsed.
#[derive(Debug)]
pub struct UnparsableLine {
    /// The number of the line in its log, starting at 1.
    pub number: u64,
    /// The error message, with the start of the line.
    pub reason: String,
}

impl<'a> Replay<'a> {
    /// Creates a replay with the rules of one domain of a policy.
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
            exact_descriptors: None,
            json_fields: JsonFields::default(),
            json_names: Box::default(),
            stats: ReplayStats::new(policy, max_keys, measure_demand),
        }
    }

    /// Replays each line as a request with these descriptors, in place of one descriptor with all attributes.
    pub fn with_exact_descriptors(self, descriptors: ExactDescriptors<'a>) -> Self {
        Self { exact_descriptors: Some(descriptors), ..self }
    }

    /// Reads the attributes of lines in JSON from these fields.
    pub fn with_json_fields(self, json_fields: JsonFields) -> Self {
        let json_names = json_fields.other_attribute_names().map(Into::into).collect();
        Self { json_fields, json_names, ..self }
    }

    /// Returns the statistics of all requests that have been replayed until now.
    pub fn stats(&self) -> &ReplayStats {
        &self.stats
    }

    /// Replays the requests of one log. Calls `on_unparsable` for each line that cannot be parsed.
    pub fn replay_log(
        &mut self,
        log: &mut LogSource,
        mut on_unparsable: impl FnMut(UnparsableLine),
    ) -> io::Result<()> {
        for number in 1.. {
            let reason = match log.next_line()? {
                NextLine::End => break,
                NextLine::TooLong => Err("line is longer than 64 KiB".to_owned()),
                NextLine::Line(bytes) => self.replay_line(bytes),
            };
            if let Err(reason) = reason {
                self.stats.unparsable += 1;
                on_unparsable(UnparsableLine { number, reason });
            }
        }
        Ok(())
    }

    /// Replays one line of a log. If the line cannot be parsed, returns the reason as the error.
    fn replay_line(&mut self, bytes: &[u8]) -> Result<(), String> {
        // A line with invalid UTF-8, for example in its user agent, still counts. `from_utf8` is tried first because it
        // is much faster.
        let text =
            str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed);
        let at_line = |error: String| format!("{error}: {}", escape_line_start(&text));
        if text.starts_with('{') {
            let line = self.json_fields.parse(&text).map_err(|error| at_line(error.to_string()))?;
            self.reorder_buffer.push_json_line(&line);
        } else {
            let line = line::parse(&text).map_err(|error| at_line(error.to_string()))?;
            self.reorder_buffer.push(&text, &line);
        }
        while let Some(batch) = self.reorder_buffer.pop_due_batch() {
            self.replay_line_batch(batch);
        }
        Ok(())
    }

    /// Replays the lines that the reorder buffer holds. Must be called at the end of the last log.
    pub fn finish(&mut self) {
        while let Some(batch) = self.reorder_buffer.pop() {
            self.replay_line_batch(batch);
        }
        self.stats.evicted_counters =
            self.gate.as_ref().map_or(0, |gate| gate.store().evicted_keys());
    }

    fn replay_line_batch(&mut self, batch: LineBatch) {
        let names = std::mem::take(&mut self.json_names);
        batch.lines(&names).for_each(|line| self.replay_request(&line));
        self.json_names = names;
        self.reorder_buffer.recycle_batch(batch);
    }

    fn replay_request(&mut self, line: &Line<'_>) {
        // A line that is too late to be sorted counts at the current time, because the store may have removed counters
        // that were still valid at its own time.
        let now = line.time.max(self.clock.now());
        self.clock.set(now);
        self.stats.record_line(line);
        let gate = self.gate.get_or_insert_with(|| {
            Gate::new(
                self.policy.clone(),
                MemoryStore::with_clock(self.clock.clone(), self.max_keys),
            )
        });
        let request = match &self.exact_descriptors {
            Some(descriptors) => descriptors.build_request(self.domain, line),
            None => {
                let alias = line.value("ip").map(|ip| (ENVOY_CLIENT_ADDRESS_NAME, ip));
                Request::new(self.domain, Descriptor::new(line.attributes().chain(alias)))
            }
        };
        let policy = gate.policy();
        let matched_rules = policy.apply(&request);
        let decision = gate.decide(&matched_rules);
        self.stats.record(now, &matched_rules, &decision);
        // A line does not state when its request ended, so requests in flight are not replayed.
        if let Some(permit) = decision.permit() {
            permit.release(gate);
        }
    }
}

/// Returns the start of a line for an error message, with escaped control characters.
fn escape_line_start(text: &str) -> String {
    let start = &text[..text.floor_char_boundary(MAX_LINE_EXCERPT_BYTES)];
    format!("{start:?}{}", if start.len() < text.len() { "…" } else { "" })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Limits of every algorithm, each with its guarantees: whether it may allow a request that an exact log denies,
    /// whether it may deny a request that an exact log allows, and the maximum number of units that it allows in any
    /// window.
    const ALGORITHMS_AND_GUARANTEES: [(&str, bool, bool, u64); 7] = [
        ("{ max: 3, window: 10s, algorithm: sliding_log }", false, false, 3),
        ("{ max: 2, window: 1500ms, algorithm: sliding_log }", false, false, 2),
        ("{ max: 4, window: 13d, algorithm: sliding_log }", false, false, 4),
        ("{ max: 3, window: 10s, algorithm: sliding_buckets }", false, true, 3),
        ("{ max: 3, window: 10s, algorithm: sliding_window }", true, true, 5),
        ("{ max: 3, window: 10s, algorithm: fixed_window }", true, false, 6),
        ("{ max: 3, window: 10s, algorithm: token_bucket }", true, false, 6),
    ];

    proptest! {
        /// Compares each limit with its guarantees over random logs, including late lines.
        #[test]
        fn algorithms_keep_guarantees_for_random_requests(
            requests in proptest::collection::vec((0..3u8, 0..5u64, 0..2u64), 0..150),
        ) {
            for (limit, may_allow, may_deny, max_units) in ALGORITHMS_AND_GUARANTEES {
                let yaml = format!("rules: [ {{ name: all, per: [ip], limits: [{limit}] }} ]");
                let policy = Policy::from_yaml(&yaml).unwrap();
                let options = ReplayOptions { max_keys: 1000, reorder: Duration::ZERO, measure_demand: false };
                let mut replay = Replay::new(&policy, "default", options);
                let mut now = 100;
                for (ip, step, late) in &requests {
                    now += step / 2;
                    let (minute, second) = ((now - late) / 60, (now - late) % 60);
                    let time = format!("01/Jan/2026:03:{minute:02}:{second:02} +0000");
                    let line = format!("10.0.0.{ip} - - [{time}] \"GET / HTTP/1.1\" 200 1");
                    replay.replay_line(line.as_bytes()).unwrap();
                }
                replay.finish();
                let stats = &replay.stats().rules[0];
                prop_assert_eq!(stats.counts.requests, requests.len() as u64);
                let (allows, denies) = (stats.deviation.false_allows, stats.deviation.false_denies);
                prop_assert!(may_allow || allows == 0, "{limit} allowed {allows}");
                prop_assert!(may_deny || denies == 0, "{limit} denied {denies}");
                let worst = stats.limits[0].accuracy.worst.units;
                prop_assert!(worst <= max_units, "{limit} allowed {worst} units");
            }
        }
    }
}
