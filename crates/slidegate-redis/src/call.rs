//! What a script is called with: keys, and one argument with all numbers, little-endian.

use std::fmt::Write;

use slidegate::store::CounterName;
use slidegate::{Admission, Hit, Receipt, Timestamp};
use smallvec::SmallVec;

use crate::connect::Settings;
use crate::script::{Script, Scripts, Set, is_slot, number};

/// Costs above this are not told apart: nothing has room for them.
const MOST_COST: u64 = 1 << 40;

/// A call of a script.
#[derive(Debug)]
pub struct Call<'s> {
    pub script: &'s Script,
    pub keys: Keys,
    pub argument: Vec<u8>,
}

/// Each key once.
pub type Keys = SmallVec<[String; 2]>;

/// Whether hits are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Peek = 0,
    Take = 1,
}

/// What all calls of a store have in common.
#[derive(Clone, Debug)]
pub struct Wording {
    /// What every key begins with.
    pub prefix: String,
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

    /// The key at which a hit is counted.
    pub fn key(&self, hit: &Hit<'_>) -> String {
        let mut key = String::with_capacity(64);
        // Writing into a string cannot fail.
        let _ = write!(key, "{}{}:{}", self.prefix, hit.key.rule(), hit.key.identity());
        if !is_slot(&hit.limit.algorithm()) {
            let _ = write!(key, ":{}:{}", hit.key.limit(), hit.limit.shape_text());
        }
        key
    }

    /// Asks for hits at a moment; at none, by Redis's own clock.
    pub fn ask<'s>(
        &self,
        scripts: &'s Scripts,
        mode: Mode,
        now: Option<Timestamp>,
        hits: &[Hit<'_>],
    ) -> Call<'s> {
        let now = now.map_or(-1.0, |now| now.as_micros() as f64);
        let mut argument = Vec::with_capacity(11 + 52 * hits.len());
        argument.extend(now.to_le_bytes());
        if let [hit] = hits {
            let script = scripts.one(&hit.limit.algorithm());
            argument.push(take(mode, hit));
            self.put_hit(&mut argument, hit, 1);
            return Call { script, keys: [self.key(hit)].into_iter().collect(), argument };
        }
        argument.push(mode as u8);
        argument.extend((hits.len() as u16).to_le_bytes());
        let (mut keys, mut set) = (Keys::new(), Set::default());
        for hit in hits {
            let place = place(&mut keys, self.key(hit));
            set = set.with(&hit.limit.algorithm());
            self.put_hit(&mut argument, hit, place);
        }
        let script = match keys.len() == 1 && is_group(hits) {
            true => scripts.group(set),
            false => scripts.several(set),
        };
        Call { script, keys, argument }
    }

    fn put_hit(&self, argument: &mut Vec<u8>, hit: &Hit<'_>, place: u16) {
        let numbers = hit.limit.numbers();
        argument.push(number(&hit.limit.algorithm()));
        argument.push(match hit.admission {
            Admission::Enforce => 0,
            Admission::Observe => 1,
            Admission::Always => 2,
        });
        argument.extend(place.to_le_bytes());
        argument.extend(tag(hit).to_le_bytes());
        argument.extend(numbers.max.to_le_bytes());
        argument.extend(numbers.extra.to_le_bytes());
        argument.extend(self.keep_s.to_le_bytes());
        let doubles = [
            numbers.tick_us,
            numbers.window,
            hit.cost.min(MOST_COST),
            hit.limit.phase_us(&hit.key),
        ];
        argument.extend(doubles.iter().flat_map(|number| (*number as f64).to_le_bytes()));
    }
}

/// Whether a hit that is alone is charged: not, if it fits, or in any case.
fn take(mode: Mode, hit: &Hit<'_>) -> u8 {
    match (mode, hit.cost, hit.admission) {
        (Mode::Peek, ..) | (_, 0, _) => 0,
        (_, _, Admission::Enforce | Admission::Observe) => 1,
        (_, _, Admission::Always) => 2,
    }
}

/// Whether hits on one key are of different limits whose states share its value, and all enforced.
fn is_group(hits: &[Hit<'_>]) -> bool {
    hits.iter().enumerate().all(|(nth, hit)| {
        hit.admission == Admission::Enforce
            && is_slot(&hit.limit.algorithm())
            && hits[..nth].iter().all(|other| tag(other) != tag(hit))
    })
}

/// Where in the list a key stands, from 1; added if it does not.
fn place(keys: &mut Keys, key: String) -> u16 {
    let at = keys.iter().position(|other| *other == key).unwrap_or_else(|| {
        keys.push(key);
        keys.len() - 1
    });
    at as u16 + 1
}

/// Tells the limits of a shared value apart: FNV-1a (32 bits) of the limit's id and shape.
fn tag(hit: &Hit<'_>) -> u32 {
    let text = format!("{}:{}", hit.key.limit(), hit.limit.shape_text());
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The name of a hit's counter: its key and its tag.
pub fn counter_name(key: &str, hit: &Hit<'_>) -> CounterName {
    CounterName::Text(format!("{key} {:08x}", tag(hit)).into())
}

fn key_and_tag(name: &CounterName) -> Option<(&str, u32)> {
    let CounterName::Text(name) = name else { return None };
    let (key, tag) = name.rsplit_once(' ')?;
    Some((key, u32::from_str_radix(tag, 16).ok()?))
}

/// Gives back what a receipt says. None if nothing in it is of this store.
pub fn give_back<'s>(scripts: &'s Scripts, receipt: &Receipt) -> Option<Call<'s>> {
    let (mut keys, mut set, mut charges) = (Keys::new(), Set::default(), Vec::new());
    let mut count: u16 = 0;
    for charge in &receipt.charges {
        let Some((key, tag)) = key_and_tag(&charge.counter) else { continue };
        let (algorithm, numbers) = (charge.limit.algorithm(), charge.limit.numbers());
        count += 1;
        set = set.with(&algorithm);
        charges.push(number(&algorithm));
        charges.extend(place(&mut keys, key.to_owned()).to_le_bytes());
        charges.extend(tag.to_le_bytes());
        charges.extend(numbers.max.to_le_bytes());
        charges.extend(numbers.extra.to_le_bytes());
        let doubles = [
            numbers.tick_us,
            numbers.window,
            charge.cost.min(slidegate::MAX_UNITS),
            charge.charged_at.as_micros(),
        ];
        charges.extend(doubles.iter().flat_map(|number| (*number as f64).to_le_bytes()));
    }
    let argument = [&count.to_le_bytes()[..], &charges].concat();
    (count > 0).then(|| Call { script: scripts.give_back(set), keys, argument })
}

impl Wording {
    /// Forgets the counters of hits.
    pub fn reset<'s>(&self, scripts: &'s Scripts, hits: &[Hit<'_>]) -> Call<'s> {
        let mut keys = Keys::new();
        let mut argument = (hits.len() as u16).to_le_bytes().to_vec();
        for hit in hits {
            argument.push(u8::from(is_slot(&hit.limit.algorithm())));
            argument.extend(place(&mut keys, self.key(hit)).to_le_bytes());
            argument.extend(tag(hit).to_le_bytes());
        }
        Call { script: scripts.reset(), keys, argument }
    }
}
