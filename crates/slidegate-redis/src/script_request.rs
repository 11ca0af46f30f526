//! Requests that scripts decide, and the Redis keys of their hits. A request owns its keys, so that it can wait and
//! share a call with other requests.

use std::fmt::{self, Write};
use std::sync::{Arc, OnceLock};

use slidegate::algorithm::LimitParams;
use slidegate::store::{
    Block, CallId, Charge, ChargeWhen, CounterId, Hit, Key, Outcome, RedisOptions, Veto,
    write_name_value_pairs,
};
use slidegate::{Limit, StoreError, Timestamp};
use smallvec::SmallVec;

use crate::clocks::Clocks;
use crate::script::{StatePlace, state_place};
use crate::settings::RedisSettings;

/// Maximum number of hits per request. A script call encodes the number of hits in 16 bits.
const MAX_HITS_PER_REQUEST: usize = u16::MAX as usize;

/// Returns an error if a request has more than [`MAX_HITS_PER_REQUEST`] hits. Only a request with several descriptors
/// can have more: a policy with more limits for one descriptor is rejected when it is loaded.
pub fn reject_too_many_hits(hits: &[Hit<'_>]) -> Result<(), StoreError> {
    match hits.len() {
        0..=MAX_HITS_PER_REQUEST => Ok(()),
        count => Err(StoreError::Unsupported(format!(
            "the request has {count} limits, more than {MAX_HITS_PER_REQUEST}; send fewer descriptors"
        ))),
    }
}

/// Hits with their Redis keys.
pub type KeyedHits = SmallVec<[KeyedHit; 1]>;

/// The mode of a request: evaluate only, or also charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptMode {
    /// Evaluate without charging.
    Peek = 0,
    /// Evaluate and charge.
    Take = 1,
}

/// A request: the hits that are decided together, and the mode.
#[derive(Clone, Debug)]
pub struct ScriptRequest {
    pub mode: ScriptMode,
    pub hits: KeyedHits,
}

/// A hit and its Redis key.
#[derive(Clone, Debug)]
pub struct KeyedHit {
    /// The Redis key of the counter.
    pub key: String,
    /// A hash that identifies the limit within a Redis value that several limits share: FNV-1a (32 bits) of the limit's
    /// id and shape (algorithm and window).
    pub tag: u32,
    pub limit: Limit,
    /// The parameters of the limit in the form that scripts read, such as the window in ticks.
    pub params: LimitParams,
    /// The cost of the hit before it was multiplied by the sampling factor.
    pub hit_cost: u64,
    pub cost: u64,
    /// Number of units that must be free for the hit to fit its limit.
    pub required: u64,
    pub veto: Veto,
    pub charge: ChargeWhen,
    /// Phase of the counter: the number of microseconds that scripts add to the current time. See [`Limit::phase_us`].
    pub phase_us: u64,
    /// Sampling factor N: one request in N is sent to Redis, at N times its cost.
    pub sample: u32,
}

/// The charge condition of a hit that blocks its key, if an earlier call has evaluated the limits of the request, and
/// decided that the hit is charged.
pub const UNCONDITIONAL_BLOCK: ChargeWhen = ChargeWhen::Block(Block { limits: 0, extends: true });

impl ScriptRequest {
    /// Returns the hit of a request that charges one unit of one limit, if the limit is enforced, has no phase, and
    /// keeps its state in a shared Redis value. Returns `None` for all other requests.
    pub fn single_unit_hit(&self) -> Option<&KeyedHit> {
        let [hit] = &self.hits[..] else { return None };
        let is_unit = self.mode == ScriptMode::Take
            && (hit.cost, hit.required) == (1, 1)
            && hit.is_enforced()
            && hit.phase_us == 0
            && state_place(&hit.limit.algorithm()) != StatePlace::OwnKey;
        is_unit.then_some(hit)
    }

    /// Returns `true` if all hits are enforced, and the state of each hit is a slot of a Redis value that no other hit
    /// of the request uses.
    pub fn has_enforced_hits_in_distinct_slots(&self) -> bool {
        self.hits.iter().enumerate().all(|(index, hit)| {
            hit.is_enforced()
                && state_place(&hit.limit.algorithm()) == StatePlace::Slot
                && !self.hits[..index].iter().any(|other| other.shares_counter_with(hit))
        })
    }
}

impl KeyedHit {
    /// Returns `true` if the hit can deny the request alone, and is charged only if the request is admitted.
    pub fn is_enforced(&self) -> bool {
        (self.veto, self.charge) == (Veto::Alone, ChargeWhen::IfAdmitted)
    }

    /// Returns `true` if the hit is charged even if its request is denied.
    pub fn is_always_charged(&self) -> bool {
        self.charge == ChargeWhen::Always && self.cost > 0
    }

    /// Returns `true` if the hit is charged even if it does not fit its limit, provided that its request has no other
    /// hits.
    pub fn is_charged_above_limit(&self) -> bool {
        match self.charge {
            ChargeWhen::Always => true,
            ChargeWhen::IfAdmitted => self.veto == Veto::Never,
            ChargeWhen::IfAdmittedAndFits => false,
            ChargeWhen::Block(_) => self.charge == UNCONDITIONAL_BLOCK,
        }
    }

    /// Creates the charge of this hit. `hit_index` is the index of the hit in its call.
    pub fn new_charge(&self, hit_index: u32, charged_at: Timestamp, cost: u64) -> Charge {
        Charge {
            counter: counter_id(&self.key, self.tag),
            limit: self.limit,
            hit_index,
            phase_us: self.phase_us,
            charged_at,
            hit_cost: self.hit_cost,
            cost,
        }
    }

    /// Returns the charge of a hit of cost 0, whose cost can be set later. Returns `None` if the hit has a cost, or if
    /// it is not charged. `allowed` is the decision on the request.
    pub fn charge_without_units(
        &self,
        hit_index: u32,
        allowed: bool,
        outcome: &Outcome,
    ) -> Option<Charge> {
        let is_charged = match self.charge {
            ChargeWhen::IfAdmitted => allowed,
            ChargeWhen::IfAdmittedAndFits => allowed && outcome.fits(),
            ChargeWhen::Always => true,
            ChargeWhen::Block(_) => false,
        };
        (self.cost == 0 && is_charged)
            .then(|| self.new_charge(hit_index, Timestamp::from_micros(0), 0))
    }

    /// Returns `true` if both hits have the same counter.
    pub fn shares_counter_with(&self, other: &Self) -> bool {
        self.tag == other.tag && self.key == other.key
    }
}

/// The mapping from the hits of a store to Redis keys.
#[derive(Clone, Debug)]
pub struct RedisKeyspace {
    /// Prefix of every key.
    prefix: String,
    /// Additional time to live of a key in seconds, beyond the time until which its counters are needed.
    pub expiry_margin_s: u32,
    /// Maximum difference between the clocks of clients, in milliseconds.
    max_clock_skew_ms: u32,
    clocks: Arc<Clocks>,
}

impl RedisKeyspace {
    /// Creates the keyspace of a store with these settings and clocks.
    pub fn new(settings: &RedisSettings, clocks: Arc<Clocks>) -> Self {
        let skew_ms = settings.max_clock_skew.as_nanos().div_ceil(1_000_000);
        Self {
            prefix: settings.prefix.clone(),
            // At least one, because scripts store the time of expiry in whole seconds, rounded up.
            expiry_margin_s: settings.expiry_margin.as_secs().clamp(1, u32::MAX.into()) as u32,
            max_clock_skew_ms: skew_ms.try_into().unwrap_or(u32::MAX),
            clocks,
        }
    }

    /// Returns the time, in milliseconds, by which permits expire later: the maximum difference between the clocks of
    /// clients, or 0 if times are from the clock of Redis.
    pub fn permit_expiry_margin_ms(&self) -> u32 {
        self.clocks.counting_clock_now().map_or(0, |_| self.max_clock_skew_ms)
    }

    /// Adds the Redis keys to hits.
    pub fn keyed_hits(&self, hits: &[Hit<'_>]) -> KeyedHits {
        hits.iter().map(|hit| self.keyed_hit(hit)).collect()
    }

    /// Adds the Redis key to a hit, and multiplies the cost of a sampled hit by its sampling factor.
    pub fn keyed_hit(&self, hit: &Hit<'_>) -> KeyedHit {
        let sample = hit.key.redis_options().map_or(1, |options| options.sample().get());
        let (key, tag) = match hit.key.counter_id().and_then(parse_counter_id) {
            Some((key, tag)) => (key.to_owned(), tag),
            None => (self.key(hit), compute_limit_tag(hit)),
        };
        let limit = *hit.key.limit_share().unwrap_or(hit.limit);
        let (mut params, phase_us) = limit.params_and_phase_us(&hit.key, || self.clocks.wall_now());
        if limit.is_concurrent() {
            params.extra = self.permit_expiry_margin_ms();
        }
        KeyedHit {
            key,
            tag,
            limit,
            params,
            hit_cost: hit.cost,
            cost: hit.cost.saturating_mul(sample.into()),
            // With sampling, a hit also counts for the requests that are not decided in Redis, unless its cost is 0.
            required: match hit.cost {
                0 => hit.required,
                _ => hit.required.saturating_mul(sample.into()),
            },
            veto: hit.veto,
            charge: hit.charge,
            phase_us,
            sample,
        }
    }

    /// Adds the Redis key to a hit that is not sampled.
    pub fn keyed_hit_without_sampling(&self, hit: &Hit<'_>) -> KeyedHit {
        KeyedHit { cost: hit.cost, required: hit.required, sample: 1, ..self.keyed_hit(hit) }
    }

    /// Returns the key of the record of a call. In a Cluster, the record is in the same slot as the counters of the
    /// call.
    pub fn call_record_key(&self, slot: Option<u16>, id: CallId) -> String {
        match slot {
            None => format!("{}call:{id}", self.prefix),
            Some(slot) => format!("{}call:{{{}}}:{id}", self.prefix, hash_tag_for_slot(slot)),
        }
    }

    /// Adds Redis keys to a hit. If the counter of the hit is split over several keys, returns one hit for each of
    /// these keys. Otherwise returns one hit.
    pub fn keyed_hits_in_all_parts(&self, hit: &Hit<'_>) -> Vec<KeyedHit> {
        match hit.key.redis_options().and_then(RedisOptions::split_into) {
            None => vec![self.keyed_hit(hit)],
            Some(parts) => (0..parts.get())
                .filter_map(|part| part.try_into().ok())
                .map(|part| self.keyed_hit(&Hit { key: hit.key.with_sub_key(part), ..*hit }))
                .collect(),
        }
    }

    /// Returns the id of a hit's counter, as in receipts.
    pub fn counter_id(&self, hit: &Hit<'_>) -> CounterId {
        match hit.key.counter_id() {
            Some(id) => id.clone(),
            None => counter_id(&self.key(hit), compute_limit_tag(hit)),
        }
    }

    /// Returns the Redis key of a hit's counter.
    pub fn key(&self, hit: &Hit<'_>) -> String {
        let mut key = String::with_capacity(64);
        // Writing into a string cannot fail, so the result is ignored.
        let _ = write!(key, "{}{}:{}", self.prefix, hit.key.rule(), hash_tagged_identity(&hit.key));
        let algorithm = hit.limit.algorithm();
        let _ = match state_place(&algorithm) {
            StatePlace::Slot => Ok(()),
            StatePlace::Log => write!(key, ":log"),
            StatePlace::OwnKey => {
                write!(key, ":{}:{}", hit.key.limit(), hit.limit.counter_shape_text())
            }
        };
        key
    }
}

/// Returns the id of a counter, which consists of the Redis key and the tag of the limit.
fn counter_id(key: &str, tag: u32) -> CounterId {
    CounterId::Text(format!("{key} {tag:08x}").into())
}

/// Returns the Redis key and the limit tag of a counter id, or `None` if the id is not from a Redis store.
pub fn parse_counter_id(name: &CounterId) -> Option<(&str, u32)> {
    let CounterId::Text(name) = name else { return None };
    let (key, tag) = name.rsplit_once(' ')?;
    Some((key, u32::from_str_radix(tag, 16).ok()?))
}

/// Returns the tag of a hit's limit: a hash that identifies the limit within a shared Redis value.
fn compute_limit_tag(hit: &Hit<'_>) -> u32 {
    /// A hasher for FNV-1a with 32 bits.
    struct Fnv1aHasher(u32);
    impl Write for Fnv1aHasher {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0 = text
                .bytes()
                .fold(self.0, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
            Ok(())
        }
    }
    let mut hash = Fnv1aHasher(0x811c_9dc5);
    // Writing into a hasher cannot fail, so the result is ignored.
    let _ = write!(hash, "{}:{}", hit.key.limit(), hit.limit.counter_shape_text());
    hash.0
}

/// Number of hash slots of a Redis Cluster.
pub const CLUSTER_SLOT_COUNT: usize = 16_384;

/// Returns the hash slot of a key. If the key has a hash tag, which is a non-empty text in its first braces, the slot
/// depends only on the tag (Redis Cluster specification, "Hash tags").
pub fn cluster_slot_of_key(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16::State::<crc16::XMODEM>::calculate(hashed.as_bytes()) % CLUSTER_SLOT_COUNT as u16
}

/// Returns a hash tag whose keys are in this slot: the smallest number whose text has this slot.
fn hash_tag_for_slot(slot: u16) -> u32 {
    static TAGS: OnceLock<Box<[u32]>> = OnceLock::new();
    let tags = TAGS.get_or_init(|| {
        let mut tags = vec![None; CLUSTER_SLOT_COUNT];
        let mut missing = CLUSTER_SLOT_COUNT;
        for number in 0.. {
            let tag = &mut tags[usize::from(cluster_slot_of_key(&number.to_string()))];
            if tag.is_none() {
                *tag = Some(number);
                missing -= 1;
            }
            if missing == 0 {
                break;
            }
        }
        tags.into_iter().map(Option::unwrap_or_default).collect()
    });
    tags[usize::from(slot) % CLUSTER_SLOT_COUNT]
}

/// Returns the names and values of a key as text with a hash tag for Redis Cluster: only the part in braces determines
/// the hash slot. `{tenant=acme},route=r` has the same slot as `{tenant=acme}`, and `{tenant=acme#3}` is a sub-key.
/// Without options for Redis and without a sub-key, the text equals [`Key::values_text`].
fn hash_tagged_identity(key: &Key<'_>) -> impl fmt::Display {
    let key = *key;
    fmt::from_fn(move |f| {
        let Some(pairs) = key.name_value_pairs() else {
            return write!(f, "{}", key.values_text());
        };
        let slot_by = key.redis_options().map_or(&[][..], RedisOptions::slot_by);
        f.write_str("{")?;
        match slot_by {
            [] => write_name_value_pairs(f, pairs.clone(), true)?,
            _ => {
                let tagged = slot_by.iter().filter_map(|&index| pairs.clone().nth(index));
                write_name_value_pairs(f, tagged, true)?;
            }
        }
        if let Some(sub_key_index) = key.sub_key_index() {
            // The number of the sub-key follows a `#`. Attribute values are escaped, so they contain no `#`.
            write!(f, "#{sub_key_index}")?;
        }
        f.write_str("}")?;
        if slot_by.is_empty() || slot_by.len() == pairs.clone().count() {
            return Ok(());
        }
        f.write_str(",")?;
        let rest = pairs.enumerate().filter(|(index, _)| !slot_by.contains(index));
        write_name_value_pairs(f, rest.map(|(_, pair)| pair), false)
    })
}

#[cfg(test)]
mod tests;
