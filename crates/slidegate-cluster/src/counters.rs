//! The counts of all keys: states and books by fingerprint, spread over shards, each behind a lock of its own.
//!
//! A request that touches several shards locks them in ascending order, so that it is one step and no two wait for
//! each other in a circle. Idle keys leave as others come, as in the memory store.

/// Runs `$body` with `$counter` bound to the counter inside, whatever its type.
macro_rules! with_counter {
    ($any:expr, $counter:ident => $body:expr) => {
        match $any {
            AnyAdditive::SlidingWindow($counter) => $body,
            AnyAdditive::SlidingBuckets($counter) => $body,
            AnyAdditive::FixedWindow($counter) => $body,
        }
    };
}

mod decide;
mod kinds;
mod memory;
mod replicate;
mod shard;

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use siphasher::sip::SipHasher13;
use slidegate::algorithm::additive::AnyAdditive;
use slidegate::store::table::CoarseTime;
use slidegate::{Algorithm, Hit, Limit, StoreError, Timestamp};
use smallvec::SmallVec;

use crate::overshoot::OvershootHistogram;
use crate::pn_counter::Incarnation;
use crate::progress::SharedProgress;
use crate::replica::KeyReplica;

use kinds::{CounterKinds, KindId};
use shard::{HasTable, KeyState, Shard};

pub use decide::{Attempt, CapPolicy};

/// At most so many shards.
const MAX_SHARDS: usize = 1024;

/// Shards whose books are looked through at once.
const PRUNED_SHARDS_PER_CALL: usize = 64;

/// Decisions in a shard between two sweeps.
const DECISIONS_PER_SWEEP: u8 = 64;

/// The counts of all keys, as this node knows them.
pub struct Counters {
    incarnation: Incarnation,
    secret: FingerprintSecret,
    /// Coarse time begins here.
    start_us: u64,
    max_clock_skew_us: u64,
    sync_interval: Duration,
    shards: Box<[PaddedShard]>,
    max_keys: usize,
    keys: AtomicUsize,
    max_memory: usize,
    /// Bytes of the states of all shards.
    state_bytes: AtomicUsize,
    /// Bytes of the books of all shards, as of the last look at each.
    replica_bytes: AtomicUsize,
    evicted: AtomicU64,
    /// The shard at which the next forgetting begins.
    next_pruned_shard: AtomicUsize,
    kinds: CounterKinds,
    progress: Arc<SharedProgress>,
    overshoot: OvershootHistogram,
}

/// A shard in its place, alone on its cache line.
#[repr(align(64))]
struct PaddedShard(Mutex<Shard>);

/// What fingerprints are made under: the same on every node of a cluster.
#[derive(Clone)]
pub struct FingerprintSecret([u8; 16]);

impl From<[u8; 16]> for FingerprintSecret {
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl BuildHasher for FingerprintSecret {
    type Hasher = SipHasher13;

    #[inline]
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

/// A hit on its way through the counters.
#[derive(Clone, Copy)]
struct HitLocation {
    shard: usize,
    fingerprint: u64,
    /// What the counter's clock is ahead of the node's.
    phase_us: u64,
    counter: AnyAdditive,
}

/// The shards that a request has locked, in ascending order.
type LockedShards<'s> = SmallVec<[(usize, MutexGuard<'s, Shard>); 4]>;

/// What the counters are made with.
pub struct CounterSettings {
    /// This life of this node.
    pub incarnation: Incarnation,
    /// What fingerprints are made under.
    pub secret: FingerprintSecret,
    /// By how much the clocks of nodes may differ, in microseconds.
    pub max_clock_skew_us: u64,
    /// How often nodes tell each other what has changed.
    pub sync_interval: Duration,
    /// Keys that are kept, at most.
    pub max_keys: usize,
    /// Bytes that the keys take, at most.
    pub max_memory: usize,
}

impl Counters {
    /// No counts yet.
    pub fn new(settings: CounterSettings, now: Timestamp) -> Self {
        let shards = (settings.max_keys / 1024).next_power_of_two().clamp(64, MAX_SHARDS);
        Self {
            incarnation: settings.incarnation,
            secret: settings.secret,
            start_us: now.as_micros(),
            max_clock_skew_us: settings.max_clock_skew_us,
            sync_interval: settings.sync_interval,
            shards: (0..shards).map(|_| PaddedShard(Mutex::default())).collect(),
            max_keys: settings.max_keys,
            keys: AtomicUsize::new(0),
            max_memory: settings.max_memory,
            state_bytes: AtomicUsize::new(0),
            replica_bytes: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            next_pruned_shard: AtomicUsize::new(0),
            kinds: CounterKinds::default(),
            progress: Arc::default(),
            overshoot: OvershootHistogram::default(),
        }
    }

    /// How far the other members have come: who tells them publishes it here.
    pub fn progress(&self) -> &Arc<SharedProgress> {
        &self.progress
    }

    /// This life of this node.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Keys that are kept; those that have expired count until they are swept.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Returns the bytes that the keys take: the states by which they are decided, and what is kept for other nodes.
    /// The latter is recounted every few seconds. Messages on their way to other nodes are left out.
    pub fn memory_bytes(&self) -> usize {
        self.state_bytes.load(Ordering::Relaxed) + self.replica_bytes.load(Ordering::Relaxed)
    }

    /// Keys that had to go before they expired, because there were too many, or they took too much memory.
    pub fn evicted_keys(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// How far counts went beyond max.
    pub fn overshoot(&self) -> &OvershootHistogram {
        &self.overshoot
    }

    #[inline(always)]
    fn locate(&self, hit: &Hit<'_>) -> Result<HitLocation, StoreError> {
        let Some(counter) = hit.limit.additive() else {
            return Err(unsupported(hit));
        };
        // 0 stands for an empty slot.
        let fingerprint = hit.key.fingerprint(&self.secret, hit.limit.shape()).max(1);
        let phase_us = hit.limit.phase_us(&hit.key);
        Ok(HitLocation { shard: self.shard_of(fingerprint), fingerprint, phase_us, counter })
    }

    fn locate_all(&self, hits: &[Hit<'_>]) -> Result<SmallVec<[HitLocation; 4]>, StoreError> {
        hits.iter().map(|hit| self.locate(hit)).collect()
    }

    fn shard_of(&self, fingerprint: u64) -> usize {
        (((fingerprint >> 32) * self.shards.len() as u64) >> 32) as usize
    }

    /// Locks the shards of these aims.
    fn lock(&self, locations: &[HitLocation]) -> LockedShards<'_> {
        let mut shards: SmallVec<[usize; 4]> =
            locations.iter().map(|location| location.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        shards.into_iter().map(|shard| (shard, self.shards[shard].0.lock())).collect()
    }

    /// Tallies of buckets that have left before are of no use to anybody, however far clocks are behind.
    fn retention_start(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_micros(now.as_micros().saturating_sub(self.max_clock_skew_us))
    }

    /// The coarse time in which a moment lies.
    fn coarse(&self, moment_us: u64) -> CoarseTime {
        let coarse = moment_us.saturating_sub(self.start_us) >> 16;
        CoarseTime::try_from(coarse).unwrap_or(CoarseTime::MAX)
    }

    /// Makes a state for a new key.
    #[cold]
    fn insert<C: HasTable>(
        &self,
        shard: &mut Shard,
        key: u64,
        kind: KindId,
        now: Timestamp,
    ) -> usize {
        self.evict_if_full(shard, now);
        self.evict_for_slot::<C>(shard, key, now);
        // Others may have told of it before anybody asked here.
        let replica_expiry_us = shard.replicas.get(key).map(KeyReplica::on_state_created);
        let at = self.change_states(&mut shard.states, |states| C::table(states).insert(key));
        let slot = C::table(&mut shard.states).slot_mut(at);
        slot.state =
            KeyState { kind, is_stale: replica_expiry_us.is_some(), ..KeyState::default() };
        let replica_expiry_us =
            replica_expiry_us.unwrap_or(0).saturating_add(self.max_clock_skew_us);
        slot.expires = self.coarse(replica_expiry_us).saturating_add(1);
        at
    }

    /// Counts a new key into a shard, and lets an old one of it go if there are too many.
    fn evict_if_full(&self, shard: &mut Shard, now: Timestamp) {
        let now = self.coarse(now.as_micros());
        self.sweep(shard, now);
        if self.keys.fetch_add(1, Ordering::Relaxed) >= self.max_keys {
            self.evict_one(&mut shard.states, now, |states| states.evict(now));
        }
    }

    /// Forgets what counts no more of some keys, and of the next ones at the next call.
    pub fn prune(&self, now: Timestamp) {
        let first = self.next_pruned_shard.fetch_add(PRUNED_SHARDS_PER_CALL, Ordering::Relaxed);
        let (retention_start, coarse) = (self.retention_start(now), self.coarse(now.as_micros()));
        for index in first..first + PRUNED_SHARDS_PER_CALL {
            let shard = &mut *self.shards[index % self.shards.len()].0.lock();
            shard.replicas.remove_expired(retention_start);
            self.count_replica_growth(shard);
            self.sweep(shard, coarse);
            let max_evictions = shard.states.slots() / 8;
            self.evict_while_over_budget(shard, coarse, max_evictions);
        }
    }

    /// Every 64th decision in a shard sweeps a little.
    #[inline]
    fn sweep_periodically(&self, shard: &mut Shard, now: Timestamp) {
        shard.unswept = (shard.unswept + 1) % DECISIONS_PER_SWEEP;
        if shard.unswept == 0 {
            self.sweep(shard, self.coarse(now.as_micros()));
        }
    }

    fn sweep(&self, shard: &mut Shard, now: CoarseTime) {
        let swept = self.change_states(&mut shard.states, |states| states.sweep(now));
        self.keys.fetch_sub(swept, Ordering::Relaxed);
    }
}

impl HitLocation {
    /// A moment on the counter's own clock.
    #[inline(always)]
    fn counter_time(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_micros(now.as_micros() + self.phase_us)
    }
}

fn locked_shard_mut<'h>(locked: &'h mut LockedShards<'_>, location: &HitLocation) -> &'h mut Shard {
    let index = locked.partition_point(|(shard, _)| *shard < location.shard);
    &mut locked[index].1
}

/// Whether several nodes can count for a limit.
///
/// # Errors
/// Why not, and what to take instead.
pub fn supports(limit: &Limit) -> Result<(), String> {
    let algorithm = limit.algorithm();
    let (reason, instead) = match algorithm {
        Algorithm::SlidingLog => (
            "every single charge would have to travel",
            "`sliding_buckets`, which never lets more than max pass either",
        ),
        Algorithm::TokenBucket { .. } => (
            "what leaks out of several buckets is not what leaks out of one",
            "`sliding_window`, or `sliding_buckets`",
        ),
        _ => return Ok(()),
    };
    Err(format!(
        "nodes that tell each other their counts cannot count by `{algorithm}`, since {reason}: take {instead}"
    ))
}

fn unsupported(hit: &Hit<'_>) -> StoreError {
    StoreError::Unsupported(supports(hit.limit).err().unwrap_or_default())
}
