//! The counters of all keys on a node.
//!
//! A counter is found by the fingerprint (keyed hash) of its key, in one of many shards that each have their own lock.
//!
//! Each key has a state, which decisions read and charge. States are stored in the same tables as in the memory store.
//! A replicated key also has a replica, which holds the counters that nodes exchange. A request locks all of its shards
//! in ascending order, so a decision is one atomic step and cannot deadlock with other requests. Idle keys are evicted
//! when new keys arrive, as in the memory store.

/// Evaluates `$body` with `$counter` bound to the counter in `$any`, an `AnyAdditive` with one variant per algorithm.
/// The macro expands `$body` once for each variant, since the counters have different types.
macro_rules! with_counter {
    ($any:expr, $counter:ident => $body:expr) => {
        match $any {
            AnyAdditive::SlidingCounter($counter) => $body,
            AnyAdditive::SlidingBuckets($counter) => $body,
            AnyAdditive::FixedWindow($counter) => $body,
        }
    };
}

mod decide;
mod fingerprint;
mod kinds;
mod memory;
mod replicate;
mod shard;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use slidegate::internal::AnyAdditive;
use slidegate::internal::{CoarseTime, SlotIndex};
use slidegate::{Algorithm, Hit, Limit, StoreError, Timestamp};
use smallvec::SmallVec;

use crate::overshoot::OvershootHistogram;
use crate::pn_counter::Incarnation;
use crate::progress::SharedProgress;
use crate::replica::KeyReplica;

use kinds::{CounterKindId, CounterKinds};
use shard::{Freshness, HasStateTable, KeyState, Shard, ShardReplicas};

pub use decide::{Attempt, CapPolicy};
pub use fingerprint::FingerprintSecret;

/// Maximum number of shards.
const MAX_SHARDS: usize = 1024;

/// Number of shards from which one call of [`Counters::prune`] removes expired counters and keys.
const SHARDS_PER_PRUNE_CALL: usize = 64;

/// Number of decisions in a shard between two sweeps. A sweep removes expired keys.
const DECISIONS_BETWEEN_EXPIRED_KEY_SWEEPS: u8 = 64;

/// The counters of all keys on this node.
pub struct Counters {
    incarnation: Incarnation,
    secret: FingerprintSecret,
    /// The moment at which coarse time (in units of 65.536 ms) is 0, in microseconds since the Unix epoch.
    start_us: u64,
    max_clock_skew_us: u64,
    /// The time of the last merge or prune, in microseconds since the Unix epoch.
    last_time_us: AtomicU64,
    sync_interval: Duration,
    shards: Box<[CacheLineAlignedShard]>,
    max_keys: usize,
    keys: AtomicUsize,
    max_memory: usize,
    /// Memory of the states of all shards, in bytes.
    state_bytes: AtomicUsize,
    /// Memory of the replicas of all shards, in bytes. The number is updated when counter updates are merged, and by
    /// [`Counters::prune`].
    replica_bytes: AtomicUsize,
    /// Memory of the records of calls of this node, in bytes.
    call_record_bytes: AtomicUsize,
    evicted: AtomicU64,
    /// The first shard that the next call of [`Counters::prune`] visits.
    next_pruned_shard: AtomicUsize,
    /// The next shard from which keys are evicted when the records of calls grow.
    next_evicted_shard: AtomicUsize,
    kinds: CounterKinds,
    progress: Arc<SharedProgress>,
    overshoot: OvershootHistogram,
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters")
            .field("incarnation", &self.incarnation)
            .field("keys", &self.keys)
            .field("max_keys", &self.max_keys)
            .finish_non_exhaustive()
    }
}

/// A shard aligned to its own cache line.
#[repr(align(64))]
struct CacheLineAlignedShard(Mutex<Shard>);

/// The location of the counter of a hit: the shard, the fingerprint of the key, and the type of the counter.
#[derive(Clone, Copy)]
struct CounterLocation {
    shard: usize,
    fingerprint: u64,
    /// Phase of the key at the time of the decision, in microseconds: an offset that is added to the time of the node. See
    /// [`Limit::phase_us`].
    phase_us: u64,
    counter: AnyAdditive,
}

/// The shards that one request has locked, with their indices, in ascending order.
type LockedShards<'s> = SmallVec<[(usize, MutexGuard<'s, Shard>); 4]>;

/// Settings of [`Counters`].
#[derive(Debug)]
pub struct CounterSettings {
    /// The incarnation of this node.
    pub incarnation: Incarnation,
    /// The secret key of the hash that computes key fingerprints.
    pub secret: FingerprintSecret,
    /// Maximum difference between the clocks of two nodes, in microseconds.
    pub max_clock_skew_us: u64,
    /// Interval at which nodes send changed counters to each other.
    pub sync_interval: Duration,
    /// Maximum number of keys.
    pub max_keys: usize,
    /// Maximum memory of the counters of all keys and of the records of calls, in bytes.
    pub max_memory: usize,
}

impl Counters {
    /// Creates the counters of a node, without any keys.
    pub fn new(settings: CounterSettings, now: Timestamp) -> Self {
        let shards = (settings.max_keys / 1024).next_power_of_two().clamp(64, MAX_SHARDS);
        Self {
            incarnation: settings.incarnation,
            secret: settings.secret,
            start_us: now.as_micros(),
            max_clock_skew_us: settings.max_clock_skew_us,
            last_time_us: AtomicU64::new(now.as_micros()),
            sync_interval: settings.sync_interval,
            shards: (0..shards).map(|_| CacheLineAlignedShard(Mutex::default())).collect(),
            max_keys: settings.max_keys,
            keys: AtomicUsize::new(0),
            max_memory: settings.max_memory,
            state_bytes: AtomicUsize::new(0),
            replica_bytes: AtomicUsize::new(0),
            call_record_bytes: AtomicUsize::new(0),
            evicted: AtomicU64::new(0),
            next_pruned_shard: AtomicUsize::new(0),
            next_evicted_shard: AtomicUsize::new(0),
            kinds: CounterKinds::default(),
            progress: Arc::default(),
            overshoot: OvershootHistogram::default(),
        }
    }

    /// Returns the replication progress of the other members. The replication engine publishes the progress, and
    /// decisions read it.
    pub fn progress(&self) -> &Arc<SharedProgress> {
        &self.progress
    }

    /// Returns the incarnation of this node.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Returns the number of keys, including expired keys that have not been removed yet.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Returns the memory of the counters of all keys in bytes: the states that decisions read, and the replicas that
    /// are exchanged with other nodes. The size of the replicas is recounted every few seconds. Queued messages to
    /// other nodes are not included.
    pub fn memory_bytes(&self) -> usize {
        self.state_bytes.load(Ordering::Relaxed) + self.replica_bytes.load(Ordering::Relaxed)
    }

    /// Returns the maximum memory of the counters of all keys and of the records of calls, in bytes.
    pub fn max_memory(&self) -> usize {
        self.max_memory
    }

    /// Returns the number of keys that were evicted before they expired, because of the key or memory limit.
    pub fn evicted_keys(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Returns the histogram of measured overshoot: the units of a key that are counted above the max of its limit.
    pub fn overshoot(&self) -> &OvershootHistogram {
        &self.overshoot
    }

    #[inline(always)]
    fn locate_counter(&self, hit: &Hit<'_>, now: Timestamp) -> Result<CounterLocation, StoreError> {
        let Some(counter) = hit.limit.additive() else {
            return Err(unsupported_limit_error(hit));
        };
        let fingerprint = self.fingerprint_of(hit);
        let phase_us = hit.limit.phase_us(&hit.key, now);
        Ok(CounterLocation { shard: self.shard_index(fingerprint), fingerprint, phase_us, counter })
    }

    /// Returns the fingerprint of the counter of a hit.
    #[inline(always)]
    pub(crate) fn fingerprint_of(&self, hit: &Hit<'_>) -> u64 {
        // 0 marks an empty slot.
        hit.key.fingerprint(&self.secret, hit.limit.cluster_shape()).max(1)
    }

    fn locate_counters(
        &self,
        hits: &[Hit<'_>],
        now: Timestamp,
    ) -> Result<SmallVec<[CounterLocation; 4]>, StoreError> {
        hits.iter().map(|hit| self.locate_counter(hit, now)).collect()
    }

    #[inline(always)]
    fn shard_index(&self, fingerprint: u64) -> usize {
        slidegate::internal::shard_index(fingerprint, self.shards.len())
    }

    /// Locks the shards of the given hits, in ascending order.
    fn lock_shards(&self, locations: &[CounterLocation]) -> LockedShards<'_> {
        let mut shards: SmallVec<[usize; 4]> =
            locations.iter().map(|location| location.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        shards.into_iter().map(|shard| (shard, self.shards[shard].0.lock())).collect()
    }

    /// Returns the current time minus the maximum clock skew. A bucket that expired before this time has expired on
    /// every node, even on a node whose clock is behind.
    fn cutoff_for_expiry_on_all_nodes(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_micros(now.as_micros().saturating_sub(self.max_clock_skew_us))
    }

    /// Converts a time in microseconds since the Unix epoch to coarse time, which counts units of 65.536 ms since the
    /// counters were created.
    fn to_coarse_time(&self, moment_us: u64) -> CoarseTime {
        let coarse = moment_us.saturating_sub(self.start_us) >> 16;
        CoarseTime::try_from(coarse).unwrap_or(CoarseTime::MAX)
    }

    /// Inserts a state with zero units for a new key. If the key limit or the memory limit is reached, evicts old keys
    /// first. Returns the index of the table slot that contains the new state.
    #[cold]
    fn insert_state<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        key: u64,
        kind: CounterKindId,
        now: Timestamp,
    ) -> SlotIndex {
        self.increment_key_count_and_evict_if_full(shard, now);
        self.evict_until_new_key_fits::<C>(shard, now);
        // Other nodes may have sent updates of this key before.
        let replica_expiry_us = shard.replicas.get(key).map(KeyReplica::prepare_for_new_state);
        let at = self.change_states_and_count_memory(&mut shard.states, |states| {
            C::state_table(states).insert(key)
        });
        let freshness = match replica_expiry_us {
            Some(_) => Freshness::Outdated,
            None => Freshness::UpToDate,
        };
        let slot = C::state_table(&mut shard.states).slot_mut(at);
        slot.state = KeyState { kind, freshness, ..KeyState::default() };
        let replica_expiry_us =
            replica_expiry_us.unwrap_or(0).saturating_add(self.max_clock_skew_us);
        slot.expires = self.to_coarse_time(replica_expiry_us).saturating_add(1);
        at
    }

    /// Removes expired keys from the shard, and then adds one to the number of keys. If the number exceeds the maximum,
    /// evicts an old key of the shard.
    fn increment_key_count_and_evict_if_full(&self, shard: &mut Shard, now: Timestamp) {
        let now = self.to_coarse_time(now.as_micros());
        self.remove_expired_keys_in_part_of_shard(shard, now);
        if self.keys.fetch_add(1, Ordering::Relaxed) >= self.max_keys {
            self.evict_selected_key(&mut shard.states, now, |states| states.evict_key(now));
        }
    }

    /// Removes expired counters and expired keys from some of the shards, and evicts further keys while the memory
    /// limit is exceeded. Each call continues with the shards after the previous call, so that repeated calls visit all
    /// shards.
    pub fn prune(&self, now: Timestamp) {
        self.rebuild_states_if_clock_was_set_back(now);
        let first = self.next_pruned_shard.fetch_add(SHARDS_PER_PRUNE_CALL, Ordering::Relaxed);
        let (expiry_cutoff, coarse) =
            (self.cutoff_for_expiry_on_all_nodes(now), self.to_coarse_time(now.as_micros()));
        for index in first..first + SHARDS_PER_PRUNE_CALL {
            let shard = &mut *self.shards[index % self.shards.len()].0.lock();
            shard.replicas.remove_expired(expiry_cutoff);
            self.update_replica_bytes(shard);
            self.remove_expired_keys_in_part_of_shard(shard, coarse);
            let max_evictions = shard.states.bucket_count() / 2;
            self.evict_while_over_memory_limit(shard, coarse, max_evictions);
        }
    }

    /// Removes expired keys from part of the shard, once every [`DECISIONS_BETWEEN_EXPIRED_KEY_SWEEPS`] decisions.
    #[inline(always)]
    fn remove_expired_keys_periodically(&self, shard: &mut Shard, now: Timestamp) {
        shard.decisions_since_expired_key_sweep =
            (shard.decisions_since_expired_key_sweep + 1) % DECISIONS_BETWEEN_EXPIRED_KEY_SWEEPS;
        if shard.decisions_since_expired_key_sweep == 0 {
            self.remove_expired_keys_in_part_of_shard(shard, self.to_coarse_time(now.as_micros()));
        }
    }

    /// Removes the expired keys in the next block of each table of the shard.
    #[inline(never)]
    fn remove_expired_keys_in_part_of_shard(&self, shard: &mut Shard, now: CoarseTime) {
        let swept = self.change_states_and_count_memory(&mut shard.states, |states| {
            states.sweep_expired_keys(now)
        });
        self.keys.fetch_sub(swept, Ordering::Relaxed);
    }
}

impl CounterLocation {
    /// Returns the time that the counter of this key uses to compute its windows. This time is the time of the node
    /// plus the phase of the key.
    #[inline(always)]
    fn to_counter_time(self, now: Timestamp) -> Timestamp {
        Timestamp::from_micros(now.as_micros() + self.phase_us)
    }
}

fn find_locked_shard<'h>(
    locked: &'h mut LockedShards<'_>,
    location: &CounterLocation,
) -> &'h mut Shard {
    let index = locked.partition_point(|(shard, _)| *shard < location.shard);
    &mut locked[index].1
}

/// Checks that several nodes can count a limit together, which depends on its algorithm.
///
/// # Errors
/// Returns the reason and an alternative algorithm if the limit cannot be counted by several nodes.
pub fn supports(limit: &Limit) -> Result<(), String> {
    let algorithm = limit.algorithm();
    let (reason, alternative) = match algorithm {
        Algorithm::SlidingLog => (
            "every node would need every single charge of all nodes",
            "`sliding_buckets`, which also never exceeds max",
        ),
        Algorithm::TokenBucket { .. } => (
            "the bucket levels of several nodes cannot be added up",
            "`sliding_window` or `sliding_buckets`",
        ),
        // The error names the field of a policy, because a policy does not name this algorithm.
        Algorithm::Concurrent => {
            return Err("`concurrent` is not available in a cluster, because the nodes learn of each other's permits too late; use the Redis store, or one node with the memory store, for limits on requests in flight".to_owned());
        }
        _ => return Ok(()),
    };
    Err(format!(
        "algorithm `{algorithm}` is not available in a cluster, because {reason}; use {alternative}"
    ))
}

fn unsupported_limit_error(hit: &Hit<'_>) -> StoreError {
    StoreError::Unsupported(supports(hit.limit).err().unwrap_or_default())
}
