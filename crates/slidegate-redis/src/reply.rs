//! Decodes the replies of scripts. A reply has 41 bytes for each hit.

use std::time::Duration;

use slidegate::Timestamp;
use slidegate::store::{Charge, ChargeResult, Outcome, Outcomes, Receipt, is_admitted};
use smallvec::SmallVec;

use crate::call::MAX_ENCODED_COST;
use crate::script_request::KeyedHit;

/// Length of the encoded reply to one hit, in bytes.
pub const HIT_REPLY_BYTES: usize = 41;

// Reply codes: the first byte of the reply to a hit. Together with the checks of [`decode_hit_reply`], they make sure
// that no single flipped bit turns a denial into an admission or a charge.

/// Reply code: the hit was not charged.
const REPLY_CODE_NOT_CHARGED: u8 = 0;
/// Reply code: the hit was charged, and units remain.
const REPLY_CODE_CHARGED: u8 = 1;
/// Reply code: the hit was not charged, because a key has a value that slidegate has not written.
const REPLY_CODE_WRONG_TYPE: u8 = 2;
/// Reply code: the hit was charged, and no units remain.
const REPLY_CODE_CHARGED_AND_EXHAUSTED: u8 = 6;
/// Reply code: the hit was charged although it did not fit its limit.
const REPLY_CODE_CHARGED_ABOVE_LIMIT: u8 = 11;

/// The reply to one hit.
#[derive(Clone, Copy, Debug)]
pub struct HitReply {
    pub outcome: Outcome,
    /// The time of the charge, as the script reports it; `None` if the hit was not charged.
    charged_at: Option<Timestamp>,
    /// The number of charged units: less than the cost if the maximum debt of the limit was reached.
    charged_units: u64,
    /// Time until one unit fits the limit, if the hit was charged and no units remain. `Some(None)` if one unit never
    /// fits. `None` in all other cases.
    pub wait_if_exhausted: Option<Option<Duration>>,
}

/// The reason why a reply cannot be decoded into outcomes.
#[derive(Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// A key has a value that slidegate has not written. Nothing was charged.
    WrongType,
    /// The reply does not match the request.
    Malformed,
}

/// Decodes the reply to one hit.
fn decode_hit_reply(bytes: &[u8]) -> Result<HitReply, DecodeError> {
    let (kind, rest) = bytes.split_first().ok_or(DecodeError::Malformed)?;
    let mut numbers = rest.chunks_exact(8).filter_map(|eight| eight.try_into().ok());
    // All numbers in a reply are whole, so a fraction means a corrupt reply. A corrupt wait below one microsecond must
    // not become 0.
    let is_whole = |number: &f64| number.is_finite() && number.fract() == 0.0;
    let mut number =
        || numbers.next().map(f64::from_le_bytes).filter(is_whole).ok_or(DecodeError::Malformed);
    let (free, reset, retry) = (number()?, number()?, number()?);
    let (charged_at, charged_units) = (number()?, number()?);
    // The cast turns negative durations into 0.
    let span = |micros: f64| Duration::from_micros(micros as u64);
    let wait = (retry >= 0.0).then(|| span(retry));
    let outcome = |wait| Outcome::new(free as i64, span(reset), wait);
    let charged = HitReply {
        outcome: outcome(Some(Duration::ZERO)),
        charged_at: Some(Timestamp::from_micros(charged_at as u64)),
        charged_units: charged_units as u64,
        wait_if_exhausted: (free <= 0.0).then_some(wait),
    };
    match *kind {
        REPLY_CODE_NOT_CHARGED if charged_units == 0.0 => {
            let outcome = outcome(wait);
            Ok(HitReply { outcome, charged_at: None, charged_units: 0, wait_if_exhausted: None })
        }
        REPLY_CODE_CHARGED if retry == 0.0 && free > 0.0 => Ok(charged),
        REPLY_CODE_CHARGED_AND_EXHAUSTED if retry != 0.0 && free <= 0.0 => Ok(charged),
        REPLY_CODE_CHARGED_ABOVE_LIMIT if retry != 0.0 => {
            Ok(HitReply { outcome: outcome(wait), ..charged })
        }
        REPLY_CODE_WRONG_TYPE => Err(DecodeError::WrongType),
        _ => Err(DecodeError::Malformed),
    }
}

/// Encodes the reply to a hit, for the record of a call. `charge` is the time and the units of the charge; `None` if the
/// hit was not charged.
pub fn encode_hit_reply(
    outcome: &Outcome,
    charge: Option<(Timestamp, u64)>,
) -> [u8; HIT_REPLY_BYTES] {
    const NEVER: f64 = -1.0;
    let micros = |duration: Duration| duration.as_micros() as f64;
    let wait = outcome.retry_after().map_or(NEVER, micros);
    let (kind, retry) = match charge {
        None => (REPLY_CODE_NOT_CHARGED, wait),
        Some(_) if !outcome.fits() => (REPLY_CODE_CHARGED_ABOVE_LIMIT, wait),
        // No units remain. The time until one unit fits is not known here, and is encoded as never.
        Some(_) if outcome.remaining() == 0 => (REPLY_CODE_CHARGED_AND_EXHAUSTED, NEVER),
        Some(_) => (REPLY_CODE_CHARGED, 0.0),
    };
    let (charged_at, units) = charge
        .map_or((0.0, 0.0), |(charged_at, units)| (charged_at.as_micros() as f64, units as f64));
    let mut bytes = [0; HIT_REPLY_BYTES];
    bytes[0] = kind;
    let numbers = [outcome.free() as f64, micros(outcome.reset_after()), retry, charged_at, units];
    for (place, number) in bytes[1..].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// The replies to all hits of a request.
#[derive(Debug)]
pub struct ScriptReply(SmallVec<[HitReply; 1]>);

impl ScriptReply {
    /// Decodes the reply to a request with this number of hits.
    pub fn decode(hits: usize, bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() != HIT_REPLY_BYTES * hits {
            return Err(DecodeError::Malformed);
        }
        bytes
            .chunks_exact(HIT_REPLY_BYTES)
            .map(decode_hit_reply)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Creates an empty reply, for an operation that returns no state of counters.
    pub fn empty() -> Self {
        Self(SmallVec::new())
    }

    /// Returns the replies to the hits, in the order of the request.
    pub fn hits(&self) -> &[HitReply] {
        &self.0
    }

    /// Returns the outcomes of the hits, in the order of the request.
    pub fn outcomes(&self) -> Outcomes {
        self.0.iter().map(|hit_reply| hit_reply.outcome).collect()
    }

    /// Returns `true` if the reply admits a request of these hits.
    pub fn is_admitted(&self, hits: &[KeyedHit]) -> bool {
        is_admitted(
            hits.iter().zip(&self.0).map(|(hit, hit_reply)| (hit.veto, hit_reply.outcome.fits())),
        )
    }

    /// Returns the result of the store for a request of these hits.
    pub fn charge_result(&self, hits: &[KeyedHit]) -> ChargeResult {
        ChargeResult {
            allowed: self.is_admitted(hits),
            outcomes: self.outcomes(),
            receipt: self.receipt(hits),
        }
    }

    /// Returns the receipt for the charged hits.
    pub fn receipt(&self, hits: &[KeyedHit]) -> Receipt {
        let allowed = self.is_admitted(hits);
        let charge = |(index, (hit, hit_reply)): (u32, (&KeyedHit, &HitReply))| {
            hit_reply
                .charge(index, hit)
                .or_else(|| hit.charge_without_units(index, allowed, &hit_reply.outcome))
        };
        (0..).zip(hits.iter().zip(&self.0)).filter_map(charge).collect()
    }
}

impl HitReply {
    /// Returns `true` if the hit was charged.
    pub fn is_charged(&self) -> bool {
        self.charged_at.is_some()
    }

    /// Returns the final outcome of a hit that was decided twice. First, its whole request was evaluated: `before` is
    /// the outcome of the hit in this evaluation. Then, the call of this reply charged the hit without other hits of
    /// the request. If the hit did not fit in the evaluation, the final outcome does not fit either, even if the
    /// outcome of the later call does.
    pub fn outcome_after_evaluation(&self, before: &Outcome) -> Outcome {
        if before.fits() { self.outcome } else { self.outcome_of_denial() }
    }

    /// Returns the outcome of a hit that was charged although it does not fit: the wait is the time until one unit
    /// fits.
    pub fn outcome_of_denial(&self) -> Outcome {
        if !self.outcome.fits() {
            return self.outcome;
        }
        let wait = self.wait_if_exhausted.unwrap_or(Some(Duration::ZERO));
        Outcome::new(self.outcome.free(), self.outcome.reset_after(), wait).charged_above_max()
    }

    /// Returns the charge of the hit with this index for the receipt; `None` if the hit was not charged, or blocks its key.
    pub fn charge(&self, hit_index: u32, hit: &KeyedHit) -> Option<Charge> {
        if hit.charge.block().is_some() {
            return None;
        }
        // A cost above `MAX_ENCODED_COST` is sent as this value, so a charge of this value counts as a charge of the
        // whole cost.
        let is_whole = self.charged_units >= hit.cost.min(MAX_ENCODED_COST);
        let units = if is_whole { hit.cost } else { self.charged_units };
        Some(hit.new_charge(hit_index, self.charged_at?, units))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flipped_reply_bit_never_turns_denial_into_admission() {
        for wait in [1.0_f64, 3.0, 889_585.0, 3_600_001_000.0, -1.0] {
            let numbers = [0.0, 5_000_000.0, wait, 0.0, 0.0];
            let denial: Vec<u8> =
                [0].into_iter().chain(numbers.iter().flat_map(|n| n.to_le_bytes())).collect();
            assert!(decode_hit_reply(&denial).is_ok_and(|hit_reply| !hit_reply.outcome.fits()));
            for bit in 0..8 * HIT_REPLY_BYTES {
                let mut corrupt = denial.clone();
                corrupt[bit / 8] ^= 1 << (bit % 8);
                let allows = |hit_reply: HitReply| {
                    hit_reply.charged_at.is_some() || hit_reply.outcome.fits()
                };
                assert!(!decode_hit_reply(&corrupt).is_ok_and(allows), "{wait}, bit {bit}");
            }
        }
    }
}
