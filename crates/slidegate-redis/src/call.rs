//! What a script is called with: keys, and one argument with all numbers, little-endian.

use std::collections::HashMap;

use redis::Cmd;
use slidegate::store::{Charge, CounterId};
use slidegate::{ChargeWhen, Timestamp, Veto};
use smallvec::SmallVec;

use crate::ask::{Ask, Counted, Mode};
use crate::script::{Script, Scripts, Set, is_slot, number};

/// Costs above this are not told apart: nothing has room for them.
const MAX_COST: u64 = u32::MAX as u64;

/// No counter has more units than this.
const MAX_TAKEN_OFF: u64 = 1 << 52;

/// The kinds of a part of a batch: units of one limit, hits that all deny alone, or any hits.
const UNITS: u8 = 0;
const PLAIN: u8 = 1;
const ANY: u8 = 2;

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
    let now = moment(now);
    match asks {
        [ask] if ask.hits.len() == 1 => one(scripts, now, keep_s, ask.mode, &ask.hits[0]),
        [ask] if ask.is_of_one_value() => group(scripts, now, keep_s, ask),
        _ => batch(scripts, now, keep_s, asks),
    }
}

fn moment(now: Option<Timestamp>) -> [u8; 8] {
    now.map_or(-1.0, |now| now.as_micros() as f64).to_le_bytes()
}

/// One hit alone.
fn one<'s, 'k>(
    scripts: &'s Scripts,
    now: [u8; 8],
    keep_s: u32,
    mode: Mode,
    hit: &'k Counted,
) -> Call<'s, 'k> {
    let mut argument = Vec::with_capacity(9 + WHOLE_HIT);
    argument.extend(now);
    argument.push(match (mode, hit.cost) {
        (Mode::Peek, _) | (_, 0) => 0,
        _ if hit.is_charged_alone() => 2,
        _ => 1,
    });
    put_whole(&mut argument, hit, keep_s);
    if has_usual_units(hit) {
        argument.truncate(argument.len() - UNITS_AT_END);
    }
    let script = scripts.one(&hit.limit.algorithm());
    Call { script, keys: Keys::from_slice(&[&hit.key]), argument }
}

/// Several hits in the value of one key.
fn group<'s, 'k>(scripts: &'s Scripts, now: [u8; 8], keep_s: u32, ask: &'k Ask) -> Call<'s, 'k> {
    let mut argument = Vec::with_capacity(11 + WHOLE_HIT * ask.hits.len());
    argument.extend(now);
    argument.push(ask.mode as u8);
    argument.extend((ask.hits.len() as u16).to_le_bytes());
    let mut set = Set::default();
    for hit in &ask.hits {
        set = set.with(&hit.limit.algorithm());
        put_whole(&mut argument, hit, keep_s);
    }
    let keys = ask.hits.iter().take(1).map(|hit| hit.key.as_str()).collect();
    Call { script: scripts.group(set), keys, argument }
}

/// Bytes of a hit with its limit.
const WHOLE_HIT: usize = 60;

/// Bytes of the required units and the largest debt, at the end of a hit.
const UNITS_AT_END: usize = 8;

/// Returns whether a hit has the required units and the largest debt that a script takes by default, so that they need not
/// be sent.
fn has_usual_units(hit: &Counted) -> bool {
    hit.required == hit.cost.max(1) && hit.limit.params().max_debt == 0
}

/// A hit with its limit, at the first key.
fn put_whole(argument: &mut Vec<u8>, hit: &Counted, keep_s: u32) {
    let params = hit.limit.params();
    argument.push(number(&hit.limit.algorithm()));
    argument.push(admission(hit));
    argument.extend(1_u16.to_le_bytes());
    for number in [hit.tag, params.max, params.extra, keep_s] {
        argument.extend(number.to_le_bytes());
    }
    let doubles = [params.tick_us, params.window, hit.cost.min(MAX_COST), hit.phase_us];
    argument.extend(doubles.iter().flat_map(|number| (*number as f64).to_le_bytes()));
    for units in [hit.required.min(MAX_COST) as u32, params.max_debt] {
        argument.extend(units.to_le_bytes());
    }
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
    let (mut places, mut keys, mut set) = (Places::new(), Keys::new(), Set::default());
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
    let mut body = Body::new(asks.len());
    for ask in asks {
        body.push(ask, &places);
    }
    let Body { limits, bytes, .. } = body;
    let mut argument = Vec::with_capacity(12 + 37 * limits.len() + bytes.len());
    argument.extend(now);
    for count in [shared, limits.len() as u16] {
        argument.extend(count.to_le_bytes());
    }
    for hit in limits {
        let params = hit.limit.params();
        argument.push(number(&hit.limit.algorithm()));
        for number in [hit.tag, params.max, params.extra, params.max_debt, keep_s] {
            argument.extend(number.to_le_bytes());
        }
        argument.extend((params.tick_us as f64).to_le_bytes());
        argument.extend((params.window as f64).to_le_bytes());
    }
    argument.extend(bytes);
    Call { script: scripts.batch(set), keys, argument }
}

/// Where each key stands, from 1.
type Places<'k> = HashMap<&'k str, u16>;

/// The asks of a batch.
struct Body<'k> {
    /// Each limit once.
    limits: Vec<&'k Counted>,
    bytes: Vec<u8>,
    /// Where the last run of units begins, its limit, and how many it has.
    run: Option<(usize, u16, u16)>,
}

impl<'k> Body<'k> {
    fn new(asks: usize) -> Self {
        Self { limits: Vec::new(), bytes: Vec::with_capacity(22 * asks), run: None }
    }

    fn push(&mut self, ask: &'k Ask, places: &Places<'_>) {
        let place = |hit: &Counted| places.get(hit.key.as_str()).copied().unwrap_or_default();
        if let Some(hit) = ask.only_unit() {
            return self.push_unit(hit, place(hit));
        }
        self.run = None;
        self.head(if ask.is_plain() { PLAIN } else { ANY }, ask.hits.len() as u16, ask.mode as u16);
        for hit in &ask.hits {
            let limit = self.limit(hit);
            self.bytes.extend(place(hit).to_le_bytes());
            self.bytes.extend(limit.to_le_bytes());
            for units in [hit.cost, hit.required] {
                self.bytes.extend((units.min(MAX_COST) as u32).to_le_bytes());
            }
            self.bytes.push(admission(hit));
            self.bytes.extend((hit.phase_us as f64).to_le_bytes());
        }
    }

    /// Units of one limit that follow each other share a head.
    fn push_unit(&mut self, hit: &'k Counted, place: u16) {
        let limit = self.limit(hit);
        match &mut self.run {
            Some((begin, of, count)) if *of == limit => {
                *count += 1;
                self.bytes[*begin + 1..][..2].copy_from_slice(&count.to_le_bytes());
            }
            _ => {
                self.run = Some((self.bytes.len(), limit, 1));
                self.head(UNITS, 1, limit);
            }
        }
        self.bytes.extend(place.to_le_bytes());
    }

    fn head(&mut self, kind: u8, count: u16, other: u16) {
        self.bytes.push(kind);
        self.bytes.extend(count.to_le_bytes());
        self.bytes.extend(other.to_le_bytes());
    }

    /// Where a hit's limit stands, from 1.
    fn limit(&mut self, hit: &'k Counted) -> u16 {
        let same = |other: &&Counted| other.tag == hit.tag && other.limit == hit.limit;
        let at = self.limits.iter().position(same).unwrap_or_else(|| {
            self.limits.push(hit);
            self.limits.len() - 1
        });
        at as u16 + 1
    }
}

/// Returns how a hit is admitted: its veto, 4 times its charge, and 16 if it is charged alone also if it does not fit.
fn admission(hit: &Counted) -> u8 {
    let veto = match hit.veto {
        Veto::Alone => 0,
        Veto::Jointly => 1,
        Veto::Never => 2,
    };
    let charge = match hit.charge {
        ChargeWhen::IfAdmitted => 0,
        ChargeWhen::IfAdmittedAndFits => 1,
        ChargeWhen::Always => 2,
    };
    veto + 4 * charge + 16 * u8::from(hit.is_charged_alone())
}

/// The name of a hit's counter: its key and its tag.
pub fn counter_name(hit: &Counted) -> CounterId {
    CounterId::Text(format!("{} {:08x}", hit.key, hit.tag).into())
}

/// The key and the tag of a counter.
pub fn key_and_tag(name: &CounterId) -> Option<(&str, u32)> {
    let CounterId::Text(name) = name else { return None };
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
pub fn revert<'s, 'k>(scripts: &'s Scripts, given: &[&'k Charge]) -> Call<'s, 'k> {
    let (mut keys, mut set, mut charges) = (Keys::new(), Set::default(), Vec::new());
    let mut count: u16 = 0;
    for charge in given {
        let Some((key, tag)) = key_and_tag(&charge.counter) else { continue };
        let (algorithm, params) = (charge.limit.algorithm(), charge.limit.params());
        count += 1;
        set = set.with(&algorithm);
        charges.push(number(&algorithm));
        charges.extend(place(&mut keys, key).to_le_bytes());
        charges.extend(tag.to_le_bytes());
        charges.extend(params.max.to_le_bytes());
        charges.extend(params.extra.to_le_bytes());
        let doubles = [
            params.tick_us,
            params.window,
            charge.cost.min(slidegate::MAX_UNITS),
            charge.charged_at.as_micros(),
        ];
        charges.extend(doubles.iter().flat_map(|number| (*number as f64).to_le_bytes()));
    }
    let argument = [&count.to_le_bytes()[..], &charges].concat();
    Call { script: scripts.revert(set), keys, argument }
}

/// Takes the costs of hits off their counters at a moment; at none, by Redis's own clock.
pub fn refund<'s, 'k>(
    scripts: &'s Scripts,
    now: Option<Timestamp>,
    hits: &[&'k Counted],
) -> Call<'s, 'k> {
    let (mut keys, mut set) = (Keys::new(), Set::default());
    let mut argument = moment(now).to_vec();
    argument.extend((hits.len() as u16).to_le_bytes());
    for hit in hits {
        let (algorithm, params) = (hit.limit.algorithm(), hit.limit.params());
        set = set.with(&algorithm);
        argument.push(number(&algorithm));
        argument.extend(place(&mut keys, &hit.key).to_le_bytes());
        for number in [hit.tag, params.max, params.extra] {
            argument.extend(number.to_le_bytes());
        }
        let cost = hit.cost.min(MAX_TAKEN_OFF);
        let doubles = [params.tick_us, params.window, cost, hit.phase_us];
        argument.extend(doubles.iter().flat_map(|number| (*number as f64).to_le_bytes()));
    }
    Call { script: scripts.refund(set), keys, argument }
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
