//! What a script answers: 33 bytes for each hit.

use std::time::Duration;

use slidegate::store::{Charge, Outcomes, is_admitted};
use slidegate::{Outcome, Receipt, Timestamp};
use smallvec::SmallVec;

use crate::ask::Counted;
use crate::call::counter_name;

/// Bytes of an answer to one hit.
pub const BYTES: usize = 33;

/// The first byte of an answer: whether the hit was charged. No single bit makes one of another that it must
/// not be taken for.
const NOT_CHARGED: u8 = 0;
const CHARGED: u8 = 1;
const FOREIGN: u8 = 2;
/// Charged, and nothing remains.
const SPENT: u8 = 6;
/// Charged, though it did not fit.
const OVER: u8 = 11;

/// What is said of one hit.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    pub outcome: Outcome,
    /// When it is counted, if it was charged.
    charged_at: Option<Timestamp>,
    /// The units that were charged, if the largest debt allowed no more.
    units: Option<u64>,
    /// If it was charged and nothing remains: the time until one unit fits; `None` if it never does.
    pub spent: Option<Option<Duration>>,
}

/// Why there is no answer to an ask.
#[derive(Debug, PartialEq, Eq)]
pub enum Misread {
    /// Something else stands at a key of its hits.
    Foreign,
    /// It is no answer to this.
    Garbled,
}

fn said(bytes: &[u8]) -> Result<Said, Misread> {
    let (first, rest) = bytes.split_first().ok_or(Misread::Garbled)?;
    let mut numbers = rest.chunks_exact(8).filter_map(|eight| eight.try_into().ok());
    // All are whole numbers. What is none was spoilt on its way, and a wait below one must not become 0.
    let is_whole = |number: &f64| number.is_finite() && number.fract() == 0.0;
    let mut number =
        || numbers.next().map(f64::from_le_bytes).filter(is_whole).ok_or(Misread::Garbled);
    let (remaining, reset, retry, charged_at) = (number()?, number()?, number()?, number()?);
    // What is negative becomes 0.
    let span = |micros: f64| Duration::from_micros(micros as u64);
    let wait = (retry >= 0.0).then(|| span(retry));
    // At the largest debt nothing remains, and the number is -1 less the units that were charged.
    let units = (remaining < 0.0).then_some((-1.0 - remaining) as u64);
    let outcome = |wait| Outcome::new(remaining as u32, span(reset), wait);
    let charged_at = Some(Timestamp::from_micros(charged_at as u64));
    let fits = outcome(Some(Duration::ZERO));
    match *first {
        NOT_CHARGED if units.is_none() => {
            Ok(Said { outcome: outcome(wait), charged_at: None, units, spent: None })
        }
        CHARGED if retry == 0.0 && remaining > 0.0 => {
            Ok(Said { outcome: fits, charged_at, units, spent: None })
        }
        SPENT if retry != 0.0 && remaining <= 0.0 => {
            Ok(Said { outcome: fits, charged_at, units, spent: Some(wait) })
        }
        OVER if retry != 0.0 => {
            let spent = (remaining <= 0.0).then_some(wait);
            Ok(Said { outcome: outcome(wait), charged_at, units, spent })
        }
        FOREIGN => Err(Misread::Foreign),
        _ => Err(Misread::Garbled),
    }
}

/// What is said of each hit of an ask.
#[derive(Debug)]
pub struct Answer(SmallVec<[Said; 1]>);

impl Answer {
    /// Reads the answer to so many hits.
    pub fn read(hits: usize, bytes: &[u8]) -> Result<Self, Misread> {
        if bytes.len() != BYTES * hits {
            return Err(Misread::Garbled);
        }
        bytes.chunks_exact(BYTES).map(said).collect::<Result<_, _>>().map(Self)
    }

    /// What is said where nothing was asked.
    pub fn nothing() -> Self {
        Self(SmallVec::new())
    }

    pub fn said(&self) -> &[Said] {
        &self.0
    }

    pub fn outcomes(&self) -> Outcomes {
        self.0.iter().map(|said| said.outcome).collect()
    }

    /// Whether it admits a request of these hits.
    pub fn admits(&self, hits: &[Counted]) -> bool {
        is_admitted(hits.iter().zip(&self.0).map(|(hit, said)| (hit.veto, said.outcome.fits())))
    }

    /// What was charged.
    pub fn receipt(&self, hits: &[Counted]) -> Receipt {
        let charges = hits.iter().zip(&self.0).filter_map(|(hit, said)| said.charge(hit));
        Receipt { charges: charges.collect() }
    }
}

impl Said {
    /// Whether the hit was charged.
    pub fn is_charged(&self) -> bool {
        self.charged_at.is_some()
    }

    /// Returns the outcome of a hit that has been charged, where it had the outcome `before` until then: other hits of the
    /// request may have been in its way, of which the script that charged it did not know.
    pub fn outcome_after(&self, before: &Outcome) -> Outcome {
        if before.fits() || !self.outcome.fits() {
            return self.outcome;
        }
        let remaining = u32::try_from(self.outcome.remaining()).unwrap_or(u32::MAX);
        let wait = self.spent.unwrap_or(Some(Duration::ZERO));
        Outcome::new(remaining, self.outcome.reset_after(), wait).charged_after(before)
    }

    /// What the hit was charged.
    pub fn charge(&self, hit: &Counted) -> Option<Charge> {
        let charged_at = self.charged_at?;
        let (counter, limit, cost) = (counter_name(hit), hit.limit, self.units.unwrap_or(hit.cost));
        Some(Charge { counter, limit, charged_at, cost })
    }
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
            assert!(said(&denial).is_ok_and(|said| !said.outcome.fits()));
            for bit in 0..8 * BYTES {
                let mut spoilt = denial.clone();
                spoilt[bit / 8] ^= 1 << (bit % 8);
                let allows = |said: Said| said.charged_at.is_some() || said.outcome.fits();
                assert!(!said(&spoilt).is_ok_and(allows), "{wait}, bit {bit}");
            }
        }
    }
}
