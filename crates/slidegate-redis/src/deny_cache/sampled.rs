//! Of sampled rules, where most requests pass unasked: once one is denied, none does, and they ask one at a time
//! until Redis has charged again.

use std::time::Duration;

use slidegate::{Outcome, Timestamp};

use super::{Denial, DenyCache, Heard, Mark};
use crate::ask::Counted;

/// While one asks whether there is room again in a sampled limit, others are denied for so long: were they all to
/// ask, each would be charged for many.
const ASKING: Duration = Duration::from_millis(100);

impl DenyCache {
    /// Somebody asks whether a sampled hit fits again: others are denied meanwhile.
    pub fn is_asked(&self, hit: &Counted, now: Timestamp) {
        self.amend(hit, |denial| denial.until = now.after(ASKING));
    }

    /// A sampled hit fits. If it was charged, it was charged for others, too, who pass unasked; if not, since
    /// another limit denied, the next asks again.
    pub fn fits(&self, hit: &Counted, is_charged: bool) {
        match is_charged {
            true if self.denials.get(&self.counter(&hit.key, hit.tag)).is_some() => {
                self.forget(&hit.key, hit.tag);
            }
            true => {}
            false => self.amend(hit, |denial| denial.until = denial.asked_at),
        }
    }

    /// A sampled hit did not fit, but that may have been for a moment only: the next asks, too.
    pub fn doubt(&self, hit: &Counted, outcome: &Outcome, now: Timestamp, mark: Mark) {
        let heard = Heard {
            asked_at: now,
            heard_at: now,
            retry_after: Some(Duration::ZERO),
            reset_after: outcome.reset_after(),
            remaining: outcome.remaining(),
        };
        self.remember(hit, Some(hit.required), &heard, mark, 0);
    }

    /// Changes what is known of a hit, if anything is.
    fn amend(&self, hit: &Counted, change: impl FnOnce(&mut Denial)) {
        let counter = self.counter(&hit.key, hit.tag);
        let mark = self.mark(hit);
        let Some(mut denials) = self.denials.get(&counter) else { return };
        if let Some(denial) = denials.of.iter_mut().find(|denial| denial.required == hit.required) {
            change(denial);
            self.put(counter, denials, mark);
        }
    }
}
