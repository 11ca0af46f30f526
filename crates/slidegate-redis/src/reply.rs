//! What a script answers: 33 bytes for each hit.

use std::time::Duration;

use slidegate::store::{Charge, Outcomes};
use slidegate::{Hit, Outcome, Receipt, Taken, Timestamp};

use crate::call::counter_name;

/// Bytes of an answer to one hit.
const BYTES: usize = 33;

/// What is said of one hit.
struct Said {
    charged: bool,
    outcome: Outcome,
    charged_at: Timestamp,
}

fn said(bytes: &[u8]) -> Option<Said> {
    let (charged, rest) = bytes.split_first()?;
    let mut numbers = rest.chunks_exact(8).filter_map(|eight| eight.try_into().ok());
    let mut number = || numbers.next().map(f64::from_le_bytes).filter(|number| number.is_finite());
    let (remaining, reset, retry, charged_at) = (number()?, number()?, number()?, number()?);
    // What is negative becomes 0.
    let span = |micros: f64| Duration::from_micros(micros as u64);
    let retry = (retry >= 0.0).then(|| span(retry));
    Some(Said {
        charged: *charged == 1,
        outcome: Outcome::new(remaining as u32, span(reset), retry),
        charged_at: Timestamp::from_micros(charged_at as u64),
    })
}

/// The outcomes of hits, if the answer is one to so many.
pub fn outcomes(hits: &[Hit<'_>], reply: &[u8]) -> Option<Outcomes> {
    if reply.len() != BYTES * hits.len() {
        return None;
    }
    reply.chunks_exact(BYTES).map(|bytes| said(bytes).map(|said| said.outcome)).collect()
}

/// What became of hits whose keys these are, each by the place of its key.
pub fn taken(hits: &[Hit<'_>], key: impl Fn(&Hit<'_>) -> String, reply: &[u8]) -> Option<Taken> {
    if reply.len() != BYTES * hits.len() {
        return None;
    }
    let (mut outcomes, mut receipt) = (Outcomes::new(), Receipt::default());
    for (hit, bytes) in hits.iter().zip(reply.chunks_exact(BYTES)) {
        let Said { charged, outcome, charged_at } = said(bytes)?;
        outcomes.push(outcome);
        if charged {
            receipt.charges.push(Charge {
                counter: counter_name(&key(hit), hit),
                limit: *hit.limit,
                charged_at,
                cost: hit.cost,
            });
        }
    }
    Some(Taken { allowed: slidegate::store::admits(hits, &outcomes), outcomes, receipt })
}
