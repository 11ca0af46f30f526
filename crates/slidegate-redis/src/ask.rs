//! What a request asks of Redis, in words of its own: it may have to wait, and travel with others.

use std::fmt::Write;

use slidegate::{ChargeWhen, Hit, Limit, RedisOptions, Veto};
use smallvec::SmallVec;

use crate::connect::Settings;
use crate::script::is_slot;

/// Whether hits are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Peek = 0,
    Take = 1,
}

/// Hits that are decided together.
#[derive(Clone, Debug)]
pub struct Ask {
    pub mode: Mode,
    pub hits: SmallVec<[Counted; 1]>,
}

/// A hit, and where it is counted.
#[derive(Clone, Debug)]
pub struct Counted {
    pub key: String,
    /// Tells the limits of a shared value apart: FNV-1a (32 bits) of the limit's id and shape.
    pub tag: u32,
    pub limit: Limit,
    pub cost: u64,
    /// Units that must be free.
    pub required: u64,
    pub veto: Veto,
    pub charge: ChargeWhen,
    /// By how much the clock of the counter is ahead.
    pub phase_us: u64,
    /// One request in so many asks, and its cost is so many times its own.
    pub sample: u32,
}

impl Ask {
    /// The hit, if there is one alone that takes one unit, enforced, of a slot whose clock is not ahead.
    pub fn only_unit(&self) -> Option<&Counted> {
        let [hit] = &self.hits[..] else { return None };
        let is_unit = self.mode == Mode::Take
            && (hit.cost, hit.required) == (1, 1)
            && hit.is_plain()
            && hit.phase_us == 0
            && is_slot(&hit.limit.algorithm());
        is_unit.then_some(hit)
    }

    /// Whether it is plain, and all its slots are in the value of one key.
    pub fn is_of_one_value(&self) -> bool {
        self.is_plain() && self.hits.windows(2).all(|two| two[0].key == two[1].key)
    }

    /// Whether all hits are plain, and each is counted in a slot of its own.
    pub fn is_plain(&self) -> bool {
        self.hits.iter().enumerate().all(|(nth, hit)| {
            hit.is_plain()
                && is_slot(&hit.limit.algorithm())
                && !self.hits[..nth].iter().any(|other| other.is_counted_with(hit))
        })
    }
}

impl Counted {
    /// Whether it denies the request alone, and is charged if the request is admitted.
    pub fn is_plain(&self) -> bool {
        (self.veto, self.charge) == (Veto::Alone, ChargeWhen::IfAdmitted)
    }

    /// Whether it is charged also if it does not fit, in a request of its own.
    pub fn is_charged_alone(&self) -> bool {
        match self.charge {
            ChargeWhen::Always => true,
            ChargeWhen::IfAdmitted => self.veto == Veto::Never,
            ChargeWhen::IfAdmittedAndFits => false,
        }
    }

    /// Whether two hits are counted by one counter.
    pub fn is_counted_with(&self, other: &Self) -> bool {
        self.tag == other.tag && self.key == other.key
    }
}

/// What all asks of a store have in common.
#[derive(Clone, Debug)]
pub struct Wording {
    /// What every key begins with.
    prefix: String,
    /// Seconds that a key is kept beyond what is known to be needed.
    pub keep_s: u32,
}

impl Wording {
    pub fn of(settings: &Settings) -> Self {
        Self {
            prefix: settings.prefix.clone(),
            keep_s: settings.keep.as_secs().try_into().unwrap_or(u32::MAX),
        }
    }

    /// Hits that are decided together.
    pub fn ask<'h>(&self, mode: Mode, hits: impl IntoIterator<Item = &'h Hit<'h>>) -> Ask {
        Ask { mode, hits: hits.into_iter().map(|hit| self.counted(hit)).collect() }
    }

    /// A hit, and where it is counted.
    pub fn counted(&self, hit: &Hit<'_>) -> Counted {
        let sample = hit.key.redis().map_or(1, |terms| terms.sample().get());
        Counted {
            key: self.key(hit),
            tag: tag(hit),
            limit: *hit.key.share().unwrap_or(hit.limit),
            cost: hit.cost.saturating_mul(sample.into()),
            // What charges nothing stands for no other requests.
            required: match hit.cost {
                0 => hit.required,
                _ => hit.required.saturating_mul(sample.into()),
            },
            veto: hit.veto,
            charge: hit.charge,
            phase_us: hit.limit.phase_us(&hit.key),
            sample,
        }
    }

    /// A hit wherever it may be counted: in each part of an identity that is split.
    pub fn counted_everywhere(&self, hit: &Hit<'_>) -> Vec<Counted> {
        match hit.key.redis().and_then(RedisOptions::split_into) {
            None => vec![self.counted(hit)],
            Some(into) => (0..into.get())
                .filter_map(|part| part.try_into().ok())
                .map(|part| self.counted(&Hit { key: hit.key.with_part(part), ..*hit }))
                .collect(),
        }
    }

    /// The key at which a hit is counted.
    pub fn key(&self, hit: &Hit<'_>) -> String {
        let mut key = String::with_capacity(64);
        // Writing into a string cannot fail.
        let _ = write!(key, "{}{}:{}", self.prefix, hit.key.rule(), hit.key.hash_tagged_identity());
        if !is_slot(&hit.limit.algorithm()) {
            let _ = write!(key, ":{}:{}", hit.key.limit(), hit.limit.shape_text());
        }
        key
    }
}

fn tag(hit: &Hit<'_>) -> u32 {
    struct Fnv(u32);
    impl Write for Fnv {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0 = text
                .bytes()
                .fold(self.0, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
            Ok(())
        }
    }
    let mut hash = Fnv(0x811c_9dc5);
    // Writing into a hasher cannot fail.
    let _ = write!(hash, "{}:{}", hit.key.limit(), hit.limit.shape_text());
    hash.0
}
