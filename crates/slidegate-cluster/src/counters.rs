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
mod shard;
mod tell;

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

use crate::book::Book;
use crate::counts::Incarnation;
use crate::overshoot::Overshoot;
use crate::progress::Published;

use kinds::{KindId, Kinds};
use shard::{HasTable, Hot, Shard};

pub use decide::{AtCap, Attempt};

/// At most so many shards.
const MAX_SHARDS: usize = 1024;

/// Shards whose books are looked through at once.
const FORGOTTEN_AT_ONCE: usize = 64;

/// Decisions in a shard between two sweeps.
const SWEEP_EVERY: u8 = 64;

/// The counts of all keys, as this node knows them.
pub struct Counters {
    me: Incarnation,
    secret: Secret,
    /// Coarse time begins here.
    began_us: u64,
    max_clock_skew_us: u64,
    sync_interval: Duration,
    shards: Box<[PaddedShard]>,
    max_keys: usize,
    keys: AtomicUsize,
    max_memory: usize,
    /// Bytes of the states of all shards.
    state_bytes: AtomicUsize,
    /// Bytes of the books of all shards, as of the last look at each.
    book_bytes: AtomicUsize,
    evicted: AtomicU64,
    /// The shard at which the next forgetting begins.
    forgotten: AtomicUsize,
    kinds: Kinds,
    progress: Arc<Published>,
    overshoot: Overshoot,
}

/// A shard in its place, alone on its cache line.
#[repr(align(64))]
struct PaddedShard(Mutex<Shard>);

/// What fingerprints are made under: the same on every node of a cluster.
#[derive(Clone)]
pub struct Secret([u8; 16]);

impl From<[u8; 16]> for Secret {
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl BuildHasher for Secret {
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
    pub me: Incarnation,
    /// What fingerprints are made under.
    pub secret: Secret,
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
            me: settings.me,
            secret: settings.secret,
            began_us: now.as_micros(),
            max_clock_skew_us: settings.max_clock_skew_us,
            sync_interval: settings.sync_interval,
            shards: (0..shards).map(|_| PaddedShard(Mutex::default())).collect(),
            max_keys: settings.max_keys,
            keys: AtomicUsize::new(0),
            max_memory: settings.max_memory,
            state_bytes: AtomicUsize::new(0),
            book_bytes: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            forgotten: AtomicUsize::new(0),
            kinds: Kinds::default(),
            progress: Arc::default(),
            overshoot: Overshoot::default(),
        }
    }

    /// How far the other members have come: who tells them publishes it here.
    pub fn progress(&self) -> &Arc<Published> {
        &self.progress
    }

    /// This life of this node.
    pub fn me(&self) -> Incarnation {
        self.me
    }

    /// Keys that are kept; those that have expired count until they are swept.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Returns the bytes that the keys take: the states by which they are decided, and what is kept for other nodes.
    /// The latter is recounted every few seconds. Messages on their way to other nodes are left out.
    pub fn memory_bytes(&self) -> usize {
        self.state_bytes.load(Ordering::Relaxed) + self.book_bytes.load(Ordering::Relaxed)
    }

    /// Keys that had to go before they expired, because there were too many, or they took too much memory.
    pub fn evicted_keys(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// How far counts went beyond max.
    pub fn overshoot(&self) -> &Overshoot {
        &self.overshoot
    }

    #[inline(always)]
    fn location(&self, hit: &Hit<'_>) -> Result<HitLocation, StoreError> {
        let Some(counter) = hit.limit.additive() else {
            return Err(unsupported(hit));
        };
        // 0 stands for an empty slot.
        let fingerprint = hit.key.fingerprint(&self.secret, hit.limit.shape()).max(1);
        let phase_us = hit.limit.phase_us(&hit.key);
        Ok(HitLocation { shard: self.shard_of(fingerprint), fingerprint, phase_us, counter })
    }

    fn locations(&self, hits: &[Hit<'_>]) -> Result<SmallVec<[HitLocation; 4]>, StoreError> {
        hits.iter().map(|hit| self.location(hit)).collect()
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
    fn kept_since(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_micros(now.as_micros().saturating_sub(self.max_clock_skew_us))
    }

    /// The coarse time in which a moment lies.
    fn coarse(&self, moment_us: u64) -> CoarseTime {
        let coarse = moment_us.saturating_sub(self.began_us) >> 16;
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
        self.make_memory::<C>(shard, key, now);
        // Others may have told of it before anybody asked here.
        let told_us = shard.books.get(key).map(Book::begin_state);
        let at = self.change(&mut shard.states, |states| C::table(states).insert(key));
        let slot = C::table(&mut shard.states).slot_mut(at);
        slot.state = Hot { kind, asks_book: told_us.is_some(), ..Hot::default() };
        let told_us = told_us.unwrap_or(0).saturating_add(self.max_clock_skew_us);
        slot.expires = self.coarse(told_us).saturating_add(1);
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
    pub fn forget(&self, now: Timestamp) {
        let first = self.forgotten.fetch_add(FORGOTTEN_AT_ONCE, Ordering::Relaxed);
        let (kept_since, coarse) = (self.kept_since(now), self.coarse(now.as_micros()));
        for nth in first..first + FORGOTTEN_AT_ONCE {
            let shard = &mut *self.shards[nth % self.shards.len()].0.lock();
            shard.books.forget(kept_since);
            self.count_books(shard);
            self.sweep(shard, coarse);
            let most = shard.states.slots() / 8;
            self.shed(shard, coarse, most);
        }
    }

    /// Every 64th decision in a shard sweeps a little.
    #[inline]
    fn sweep_now_and_then(&self, shard: &mut Shard, now: Timestamp) {
        shard.unswept = (shard.unswept + 1) % SWEEP_EVERY;
        if shard.unswept == 0 {
            self.sweep(shard, self.coarse(now.as_micros()));
        }
    }

    fn sweep(&self, shard: &mut Shard, now: CoarseTime) {
        let swept = self.change(&mut shard.states, |states| states.sweep(now));
        self.keys.fetch_sub(swept, Ordering::Relaxed);
    }
}

impl HitLocation {
    /// A moment on the counter's own clock.
    #[inline(always)]
    fn own(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_micros(now.as_micros() + self.phase_us)
    }
}

fn shard_of_held<'h>(held: &'h mut LockedShards<'_>, location: &HitLocation) -> &'h mut Shard {
    let place = held.partition_point(|(shard, _)| *shard < location.shard);
    &mut held[place].1
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
