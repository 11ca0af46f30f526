//! What a script is called with: keys, and one argument with all numbers, little-endian.

use std::collections::HashMap;

use redis::Cmd;
use slidegate::store::{Charge, CounterName};
use slidegate::{Admission, Timestamp};
use smallvec::SmallVec;

use crate::ask::{Ask, Counted, Mode};
use crate::script::{Script, Scripts, Set, is_slot, number};

/// Costs above this are not told apart: nothing has room for them.
const MOST_COST: u64 = u32::MAX as u64;

/// A call of a script.
#[derive(Debug)]
pub struct Call<'s, 'k> {
    pub script: &'s Script,
    pub keys: Keys<'k>,
    pub argument: Vec<u8>,
}

/// Each key once.
pub type Keys<'k> = SmallVec<[&'k str; 2]>;

impl Call<'_, '_> {
    /// The command of this name (EVALSHA or EVAL), with the script as that wants it.
    pub fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len()).arg(&self.keys[..]).arg(&self.argument[..]);
        command
    }
}

/// Asks for hits at a moment; at none, by Redis's own clock.
pub fn decide<'s, 'k>(
    scripts: &'s Scripts,
    now: Option<Timestamp>,
    keep_s: u32,
    asks: &[&'k Ask],
) -> Call<'s, 'k> {
    let now = now.map_or(-1.0, |now| now.as_micros() as f64).to_le_bytes();
    if let [ask] = asks
        && let [hit] = &ask.hits[..]
    {
        return one(scripts, now, keep_s, ask.mode, hit);
    }
    batch(scripts, now, keep_s, asks)
}

/// One hit alone.
fn one<'s, 'k>(
    scripts: &'s Scripts,
    now: [u8; 8],
    keep_s: u32,
    mode: Mode,
    hit: &'k Counted,
) -> Call<'s, 'k> {
    let numbers = hit.limit.numbers();
    let mut argument = Vec::with_capacity(61);
    argument.extend(now);
    argument.push(match (mode, hit.cost, hit.admission) {
        (Mode::Peek, ..) | (_, 0, _) => 0,
        (_, _, Admission::Enforce | Admission::Observe) => 1,
        (_, _, Admission::Always) => 2,
    });
    argument.push(number(&hit.limit.algorithm()));
    argument.push(admission(hit));
    argument.extend(1_u16.to_le_bytes());
    for number in [hit.tag, numbers.max, numbers.extra, keep_s] {
        argument.extend(number.to_le_bytes());
    }
    let doubles = [numbers.tick_us, numbers.window, hit.cost.min(MOST_COST), hit.phase_us];
    argument.extend(doubles.iter().flat_map(|number| (*number as f64).to_le_bytes()));
    let script = scripts.one(&hit.limit.algorithm());
    Call { script, keys: Keys::from_slice(&[&hit.key]), argument }
}

/// Any asks, one after another.
fn batch<'s, 'k>(
    scripts: &'s Scripts,
    now: [u8; 8],
    keep_s: u32,
    asks: &[&'k Ask],
) -> Call<'s, 'k> {
    let hits = || asks.iter().flat_map(|ask| &ask.hits);
    // Values that are read together come first.
    let (mut places, mut keys, mut set) = (HashMap::new(), Keys::new(), Set::default());
    let mut shared = 0;
    for slots in [true, false] {
        for hit in hits().filter(|hit| is_slot(&hit.limit.algorithm()) == slots) {
            set = set.with(&hit.limit.algorithm());
            places.entry(hit.key.as_str()).or_insert_with(|| {
                keys.push(&hit.key);
                keys.len() as u16
            });
        }
        if slots {
            shared = keys.len() as u16;
        }
    }
    let mut limits: Vec<&Counted> = Vec::new();
    let mut body = Vec::with_capacity(21 * asks.len());
    for ask in asks {
        body.extend((ask.hits.len() as u16).to_le_bytes());
        body.extend([ask.mode as u8, u8::from(ask.is_plain())]);
        for hit in &ask.hits {
            let same = |other: &&Counted| other.tag == hit.tag && other.limit == hit.limit;
            let limit = limits.iter().position(same).unwrap_or_else(|| {
                limits.push(hit);
                limits.len() - 1
            });
            body.extend(places.get(hit.key.as_str()).copied().unwrap_or_default().to_le_bytes());
            body.extend((limit as u16 + 1).to_le_bytes());
            body.extend((hit.cost.min(MOST_COST) as u32).to_le_bytes());
            body.push(admission(hit));
            body.extend((hit.phase_us as f64).to_le_bytes());
        }
    }
    let mut argument = Vec::with_capacity(14 + 33 * limits.len() + body.len());
    argument.extend(now);
    for count in [shared, limits.len() as u16, asks.len() as u16] {
        argument.extend(count.to_le_bytes());
    }
    for hit in limits {
        let numbers = hit.limit.numbers();
        argument.push(number(&hit.limit.algorithm()));
        for number in [hit.tag, numbers.max, numbers.extra, keep_s] {
            argument.extend(number.to_le_bytes());
        }
        argument.extend((numbers.tick_us as f64).to_le_bytes());
        argument.extend((numbers.window as f64).to_le_bytes());
    }
    argument.extend(body);
    Call { script: scripts.batch(set), keys, argument }
}

fn admission(hit: &Counted) -> u8 {
    match hit.admission {
        Admission::Enforce => 0,
        Admission::Observe => 1,
        Admission::Always => 2,
    }
}

/// The name of a hit's counter: its key and its tag.
pub fn counter_name(hit: &Counted) -> CounterName {
    CounterName::Text(format!("{} {:08x}", hit.key, hit.tag).into())
}

/// The key and the tag of a counter.
pub fn key_and_tag(name: &CounterName) -> Option<(&str, u32)> {
    let CounterName::Text(name) = name else { return None };
    let (key, tag) = name.rsplit_once(' ')?;
    Some((key, u32::from_str_radix(tag, 16).ok()?))
}

/// Where in the list a key stands, from 1; added if it does not.
fn place<'k>(keys: &mut Keys<'k>, key: &'k str) -> u16 {
    let at = keys.iter().position(|other| *other == key).unwrap_or_else(|| {
        keys.push(key);
        keys.len() - 1
    });
    at as u16 + 1
}

/// Gives charges back. What is of no such store is passed over.
pub fn give_back<'s, 'k>(scripts: &'s Scripts, given: &[&'k Charge]) -> Call<'s, 'k> {
    let (mut keys, mut set, mut charges) = (Keys::new(), Set::default(), Vec::new());
    let mut count: u16 = 0;
    for charge in given {
        let Some((key, tag)) = key_and_tag(&charge.counter) else { continue };
        let (algorithm, numbers) = (charge.limit.algorithm(), charge.limit.numbers());
        count += 1;
        set = set.with(&algorithm);
        charges.push(number(&algorithm));
        charges.extend(place(&mut keys, key).to_le_bytes());
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
    Call { script: scripts.give_back(set), keys, argument }
}

/// Forgets the counters of hits.
pub fn reset<'s, 'k>(scripts: &'s Scripts, hits: &[&'k Counted]) -> Call<'s, 'k> {
    let mut keys = Keys::new();
    let mut argument = (hits.len() as u16).to_le_bytes().to_vec();
    for hit in hits {
        argument.push(u8::from(is_slot(&hit.limit.algorithm())));
        argument.extend(place(&mut keys, &hit.key).to_le_bytes());
        argument.extend(hit.tag.to_le_bytes());
    }
    Call { script: scripts.reset(), keys, argument }
}
