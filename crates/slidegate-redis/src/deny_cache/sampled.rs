//! Denials of sampled rules, most hits of which pass without a call. After a denial none passes: one hit at a time is
//! sent as a probe until Redis has charged again.

use std::time::Duration;

use slidegate::{Outcome, Timestamp};

use super::{CacheVersion, Denial, DenialReport, DenyCache};
use crate::script_request::KeyedHit;

/// Time for which other hits of a sampled limit are denied while a probe checks whether one fits again. If all were
/// sent, each would be charged for many.
const PROBE_TIMEOUT: Duration = Duration::from_millis(100);

impl DenyCache {
    /// Begins a probe for a sampled hit: until its result is recorded, other hits are denied.
    pub fn begin_probe(&self, hit: &KeyedHit, now: Timestamp) {
        self.update_denial(hit, |denial| denial.expires_at = now.after(PROBE_TIMEOUT));
    }

    /// Records that a sampled hit fits. If it was charged, the charge covers other hits too, which pass without a call.
    /// If it was not, because another limit denied, the next hit is sent as a probe.
    pub fn record_fit(&self, hit: &KeyedHit, is_charged: bool) {
        match is_charged {
            true if self.entries.get(&self.counter(&hit.key, hit.tag)).is_some() => {
                self.invalidate(&hit.key, hit.tag);
            }
            true => {}
            false => self.update_denial(hit, |denial| denial.expires_at = denial.sent_at),
        }
    }

    /// Records that a sampled hit did not fit, possibly for a moment only: the next hit is sent as a probe.
    pub fn record_unconfirmed_denial(
        &self,
        hit: &KeyedHit,
        outcome: &Outcome,
        now: Timestamp,
        version: CacheVersion,
    ) {
        let report = DenialReport {
            sent_at: now,
            received_at: now,
            retry_after: Some(Duration::ZERO),
            reset_after: outcome.reset_after(),
            remaining: outcome.remaining(),
        };
        self.record(hit, Some(hit.required), &report, version, 0);
    }

    /// Updates the denial of a hit, if there is one.
    fn update_denial(&self, hit: &KeyedHit, update: impl FnOnce(&mut Denial)) {
        let counter = self.counter(&hit.key, hit.tag);
        let version = self.version(hit);
        let Some(mut entry) = self.entries.get(&counter) else { return };
        if let Some(denial) =
            entry.denials.iter_mut().find(|denial| denial.required == hit.required)
        {
            update(denial);
            self.insert(counter, entry, version);
        }
    }
}
