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
    // All are whole numbers. What is none was spoilt on its way, and a wait below one must not become 0.
    let is_whole = |number: &f64| number.is_finite() && number.fract() == 0.0;
    let mut number = || numbers.next().map(f64::from_le_bytes).filter(is_whole);
    let (remaining, reset, retry, charged_at) = (number()?, number()?, number()?, number()?);
    // What was charged had room, or needed none.
    if *charged > 1 || (*charged == 1 && retry != 0.0) {
        return None;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_with_one_bit_changed_allows_nothing_and_charges_nothing() {
        for wait in [1.0_f64, 3.0, 889_585.0, 3_600_001_000.0, -1.0] {
            let numbers = [0.0, 5_000_000.0, wait, 0.0];
            let denial: Vec<u8> =
                [0].into_iter().chain(numbers.iter().flat_map(|n| n.to_le_bytes())).collect();
            assert!(said(&denial).is_some_and(|said| !said.outcome.fits()));
            for bit in 0..8 * BYTES {
                let mut spoilt = denial.clone();
                spoilt[bit / 8] ^= 1 << (bit % 8);
                let allows = |said: Said| said.charged || said.outcome.fits();
                assert!(!said(&spoilt).is_some_and(allows), "{wait}, bit {bit}");
            }
        }
    }
}
