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
mod remove;
mod replicate;
mod shard;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use slidegate::algorithm::AnyAdditive;
use slidegate::store::shards::{LockedShards, Shards};
use slidegate::store::table::SlotIndex;
use slidegate::store::{Hit, KeyGroup, OneOrMany};
use slidegate::{Algorithm, Limit, StoreError, Timestamp};

use crate::overshoot::OvershootHistogram;
use crate::pn_counter::Incarnation;
use crate::progress::SharedReplicationProgress;
use crate::replica::KeyReplica;

use kinds::{CounterKindId, CounterKinds};
use shard::{HasStateTable, KeyState, Shard, ShardReplicas, StateFreshness};

pub use decide::{ChargeAttempt, MaxUnsyncedAction};
pub use fingerprint::FingerprintSecret;

/// Number of shards from which one call of [`Counters::prune`] removes expired counters and keys.
const SHARDS_PER_PRUNE_CALL: usize = 64;

/// The largest number of times that one call of [`Counters::prune`] evicts an eighth of the keys of a shard while the
/// states and replicas exceed the memory limit.
const MAX_EVICTION_ROUNDS: usize = 8;

/// The counters of all keys on this node.
pub struct Counters {
    incarnation: Incarnation,
    secret: FingerprintSecret,
    max_clock_skew_us: u64,
    /// The time of the last merge or prune, in microseconds since the Unix epoch. An earlier time shows that the clock
    /// was set back.
    last_time_us: AtomicU64,
    sync_interval: Duration,
    /// The states and replicas of all keys. The shards count the memory of the replicas as reserved memory. It is
    /// updated when counter updates are merged, and by [`Counters::prune`].
    shards: Shards<Shard>,
    /// The first shard that the next call of [`Counters::prune`] visits.
    next_pruned_shard: AtomicUsize,
    kinds: CounterKinds,
    progress: Arc<SharedReplicationProgress>,
    overshoot: OvershootHistogram,
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters")
            .field("incarnation", &self.incarnation)
            .field("shards", &self.shards)
            .finish_non_exhaustive()
    }
}

/// The location of the counter of a hit: the shard, the fingerprint of the key, and the type of the counter.
#[derive(Clone, Copy)]
struct CounterLocation {
    shard: usize,
    fingerprint: u64,
    /// Phase of the key at the time of the decision, in microseconds: an offset that is added to the time of the node.
    /// See [`Limit::phase_us`].
    phase_us: u64,
    counter: AnyAdditive,
}

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
        Self {
            incarnation: settings.incarnation,
            secret: settings.secret,
            max_clock_skew_us: settings.max_clock_skew_us,
            last_time_us: AtomicU64::new(now.as_micros()),
            sync_interval: settings.sync_interval,
            shards: Shards::new(now, settings.max_keys, settings.max_memory),
            next_pruned_shard: AtomicUsize::new(0),
            kinds: CounterKinds::default(),
            progress: Arc::default(),
            overshoot: OvershootHistogram::default(),
        }
    }

    /// Returns the replication progress of the other members. The replication engine publishes the progress, and
    /// decisions read it.
    pub fn progress(&self) -> &Arc<SharedReplicationProgress> {
        &self.progress
    }

    /// Returns the incarnation of this node.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Returns the number of keys, including expired keys that have not been removed yet.
    pub fn keys(&self) -> usize {
        self.shards.keys()
    }

    /// Returns the memory of the counters of all keys in bytes: the states that decisions read, and the replicas that
    /// are exchanged with other nodes. The size of the replicas is recounted every few seconds. Queued messages to
    /// other nodes are not included.
    pub fn memory_bytes(&self) -> usize {
        self.shards.bytes() + self.shards.unevictable_bytes()
    }

    /// Returns the maximum memory of the counters of all keys and of the records of calls, in bytes.
    pub fn max_memory(&self) -> usize {
        self.shards.max_bytes()
    }

    /// Returns the number of keys that were evicted before they expired, because of the key or memory limit.
    pub fn evicted_keys(&self) -> u64 {
        self.shards.evicted_keys()
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
        let fingerprint = self.counter_fingerprint(hit);
        let phase_us = hit.limit.phase_us(&hit.key, now);
        Ok(CounterLocation {
            shard: self.shards.shard_index_of(fingerprint),
            fingerprint,
            phase_us,
            counter,
        })
    }

    /// Returns the fingerprint of the counter of a hit.
    #[inline(always)]
    pub(crate) fn counter_fingerprint(&self, hit: &Hit<'_>) -> u64 {
        // The fingerprint is never 0, because nodes ignore updates of the key 0.
        hit.key.fingerprint(&self.secret, hit.limit.cluster_counter_shape()).max(1)
    }

    /// Returns the location of the counter of each hit.
    fn locate_counters(
        &self,
        hits: &[Hit<'_>],
        now: Timestamp,
    ) -> Result<OneOrMany<CounterLocation>, StoreError> {
        let mut locations = OneOrMany::with_capacity(hits.len());
        for hit in hits {
            locations.push(self.locate_counter(hit, now)?);
        }
        Ok(locations)
    }

    /// Locks the shards of the given hits.
    fn lock_shards(&self, locations: &[CounterLocation]) -> LockedShards<'_, Shard> {
        self.shards.lock_all(locations.iter().map(|location| location.shard))
    }

    /// Returns the current time minus the maximum clock skew. A bucket that expired before this time has expired on
    /// every node, even on a node whose clock is behind.
    fn cutoff_for_expiry_on_all_nodes(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_micros(now.as_micros().saturating_sub(self.max_clock_skew_us))
    }

    /// Inserts a state with zero units for a new key. If the key limit or the memory limit is reached, evicts old keys
    /// first. Returns the index of the table slot that contains the new state.
    #[cold]
    fn insert_state<C: HasStateTable>(
        &self,
        shard: &mut Shard,
        (key, group): (u64, KeyGroup),
        kind: CounterKindId,
        now: Timestamp,
    ) -> SlotIndex {
        let at = self.shards.insert(shard, (key, group), C::table, now);
        // If other nodes have sent updates of this key before, the key has a replica, and the new state must be built
        // from it.
        let replica_expiry_us = shard.replicas.get(key).map(KeyReplica::prepare_for_new_state);
        let freshness = match replica_expiry_us {
            Some(_) => StateFreshness::Outdated,
            None => StateFreshness::UpToDate,
        };
        let slot = C::table(shard).slot_mut(at);
        slot.state = KeyState { kind, freshness, ..KeyState::default() };
        let replica_expiry_us =
            replica_expiry_us.unwrap_or(0).saturating_add(self.max_clock_skew_us);
        slot.expires = self.shards.to_coarse_expiry(Timestamp::from_micros(replica_expiry_us));
        at
    }

    /// Removes expired counters and expired keys from some of the shards, and evicts further keys while the memory
    /// limit is exceeded. Each call continues with the shards after the previous call, so that repeated calls visit all
    /// shards.
    pub fn prune(&self, now: Timestamp) {
        self.rebuild_states_if_clock_was_set_back(now);
        let first = self.next_pruned_shard.fetch_add(SHARDS_PER_PRUNE_CALL, Ordering::Relaxed);
        let expiry_cutoff = self.cutoff_for_expiry_on_all_nodes(now);
        for index in first..first + SHARDS_PER_PRUNE_CALL {
            let shard = &mut *self.shards[index % self.shards.shard_count()].shard.lock();
            self.prune_replicas(shard, expiry_cutoff);
            self.shards.sweep(shard, now);
            self.shards.evict_while_over_budget(shard, now);
            for _ in 0..MAX_EVICTION_ROUNDS {
                if self.memory_bytes() <= self.max_memory() {
                    break;
                }
                // The states are within their part of the budget, but each may have a replica, which is larger.
                self.shards.evict_keys(shard, shard.states.key_count().div_ceil(8), now);
                self.prune_replicas(shard, expiry_cutoff);
            }
        }
    }

    fn prune_replicas(&self, shard: &mut Shard, expiry_cutoff: Timestamp) {
        shard.prune_replicas(expiry_cutoff, self.is_memory_scarce());
        self.update_replica_bytes(shard);
    }

    /// Updates the counted memory of all replicas: adds the number of bytes by which the replicas of `shard` have grown
    /// since the previous call for this shard.
    fn update_replica_bytes(&self, shard: &mut Shard) {
        self.shards.add_unevictable_bytes(shard.replicas.take_memory_growth_bytes());
    }

    /// Returns `true` if the replicas use half of the memory limit or more. Updates of other nodes are then ignored for
    /// keys that this node does not know.
    fn replicas_use_half_of_memory(&self) -> bool {
        self.shards.unevictable_bytes() >= self.max_memory() / 2
    }

    /// Returns `true` if there is so little memory that replicas are created only if they are needed, and otherwise
    /// removed.
    fn is_memory_scarce(&self) -> bool {
        self.replicas_use_half_of_memory() || self.memory_bytes() >= self.max_memory()
    }

    /// Sets the memory of the records of calls, which counts against the memory limit. Evicts keys if the limit is then
    /// exceeded.
    pub(crate) fn set_call_record_bytes(&self, bytes: usize, now: Timestamp) {
        self.shards.update_call_record_bytes(bytes, now);
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
        // A policy has no algorithm with this name, but a field `concurrent`, so the error names the field.
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
