//! Shards of the counters. Each shard holds a part of the keys, and has its own lock. A shard contains the states that
//! decisions read, and the replicas of keys that were changed on this node or on other nodes.

use std::collections::HashMap;

use slidegate::Timestamp;
use slidegate::algorithm::{
    AdditiveCounter, AnyAdditive, FixedWindow, SlidingBuckets, SlidingCounter,
};
use slidegate::store::HeapSize;
use slidegate::store::shards::ShardTables;
use slidegate::store::table::{CoarseTime, EvictableTable, Slot, Table};

use super::kinds::CounterKindId;
use crate::replica::KeyReplica;

/// The counter state of one key, and the flags that a decision needs. Only keys whose counters are exchanged between
/// nodes have further data, in a replica.
#[derive(Default)]
pub(super) struct KeyState<S> {
    pub(super) state: S,
    /// Upper bound of the unacknowledged units of the key. A unit is unacknowledged if this node has charged it, but
    /// not every member has confirmed that it has received the charge. [`u32::MAX`] stands for any larger number.
    pub(super) unsynced: u32,
    pub(super) kind: CounterKindId,
    /// Whether the counters of the key have changes that are not sent to the other nodes.
    pub(super) is_changed: bool,
    pub(super) freshness: StateFreshness,
}

/// Whether a state contains the updates of other nodes that its replica contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StateFreshness {
    /// The state contains all updates that its replica contains.
    #[default]
    UpToDate,
    /// The state contains all updates that its replica contains. Units of other nodes were added to it, and the
    /// overshoot is not recorded yet.
    UnitsAdded,
    /// The next decision must check the replica. Either the replica may contain updates that the state lacks, or the
    /// state contains units with a future timestamp.
    Outdated,
}

impl<S: HeapSize> HeapSize for KeyState<S> {
    fn heap_bytes(&self) -> usize {
        self.state.heap_bytes()
    }
}

/// An algorithm whose states have their own table in each shard.
pub(super) trait HasStateTable: AdditiveCounter {
    /// Returns the table of this algorithm among the tables of a shard.
    fn state_table(states: &mut StateTables) -> &mut Table<KeyState<Self::State>>;

    /// Returns the table of this algorithm in a shard.
    fn table(shard: &mut Shard) -> &mut Table<KeyState<Self::State>> {
        Self::state_table(&mut shard.states)
    }
}

type AlgorithmState<C> = <C as slidegate::algorithm::Counter>::State;

/// The states and replicas of a part of the keys, which one mutex protects.
#[derive(Default)]
pub(super) struct Shard {
    /// The number of decisions until the next sweep, which removes expired keys.
    decisions_until_sweep: u8,
    pub(super) states: StateTables,
    pub(super) replicas: ShardReplicas,
}

impl Shard {
    /// Removes expired counters, replicas without counters, and changed keys that have nothing to send any more. If
    /// `is_memory_scarce`, also removes the replicas of keys that this node has charged, if the state is evicted, or if
    /// the replica can be created again from the state.
    pub(super) fn prune_replicas(&mut self, cutoff: Timestamp, is_memory_scarce: bool) {
        let Self { states, replicas, .. } = self;
        replicas.remove_expired(cutoff, |key, replica| {
            !is_memory_scarce
                || !replica.has_own_counters()
                || (states.contains(key) && !replica.is_contained_in_state())
        });
        replicas.remove_obsolete_changed_keys(states);
    }
}

impl ShardTables for Shard {
    fn tables(&mut self) -> impl Iterator<Item = &mut dyn EvictableTable> {
        let StateTables { sliding_buckets, sliding_counter, fixed_window } = &mut self.states;
        let tables: [&mut dyn EvictableTable; 3] = [sliding_buckets, sliding_counter, fixed_window];
        tables.into_iter()
    }

    fn decisions_until_sweep(&mut self) -> &mut u8 {
        &mut self.decisions_until_sweep
    }
}

/// The tables that hold the states of a shard, one per algorithm.
#[derive(Default)]
pub(super) struct StateTables {
    sliding_buckets: Table<KeyState<AlgorithmState<SlidingBuckets>>>,
    sliding_counter: Table<KeyState<AlgorithmState<SlidingCounter>>>,
    fixed_window: Table<KeyState<AlgorithmState<FixedWindow>>>,
}

impl HasStateTable for SlidingBuckets {
    fn state_table(states: &mut StateTables) -> &mut Table<KeyState<Self::State>> {
        &mut states.sliding_buckets
    }
}

impl HasStateTable for SlidingCounter {
    fn state_table(states: &mut StateTables) -> &mut Table<KeyState<Self::State>> {
        &mut states.sliding_counter
    }
}

impl HasStateTable for FixedWindow {
    fn state_table(states: &mut StateTables) -> &mut Table<KeyState<Self::State>> {
        &mut states.fixed_window
    }
}

impl StateTables {
    fn contains(&mut self, key: u64) -> bool {
        self.kind(key).is_some()
    }

    /// Returns the kind of a key; `None` if the key has no state.
    pub(super) fn kind(&mut self, key: u64) -> Option<CounterKindId> {
        let Self { sliding_buckets, sliding_counter, fixed_window } = self;
        let kind = sliding_buckets.find_mut(key).map(|slot| slot.state.kind);
        let kind = kind.or_else(|| sliding_counter.find_mut(key).map(|slot| slot.state.kind));
        kind.or_else(|| fixed_window.find_mut(key).map(|slot| slot.state.kind))
    }

    pub(super) fn key_count(&self) -> usize {
        let Self { sliding_buckets, sliding_counter, fixed_window } = self;
        sliding_buckets.key_count() + sliding_counter.key_count() + fixed_window.key_count()
    }

    /// Calls `visit` for each key of all tables, with its kind.
    pub(super) fn for_each_key(&mut self, mut visit: impl FnMut(u64, CounterKindId)) {
        self.sliding_buckets.iter_mut().for_each(|(key, slot)| visit(key, slot.state.kind));
        self.sliding_counter.iter_mut().for_each(|(key, slot)| visit(key, slot.state.kind));
        self.fixed_window.iter_mut().for_each(|(key, slot)| visit(key, slot.state.kind));
    }

    /// Marks a key as changed, so that it is sent with the next flush. Returns the kind of the key, and `true` if the
    /// key was not marked before; `None` if the key has no state.
    pub(super) fn mark_key_changed(&mut self, key: u64) -> Option<(CounterKindId, bool)> {
        mark_changed_in_table(&mut self.sliding_buckets, key)
            .or_else(|| mark_changed_in_table(&mut self.sliding_counter, key))
            .or_else(|| mark_changed_in_table(&mut self.fixed_window, key))
    }

    /// Marks a key as outdated, so that the next decision reads its replica, and extends its expiry to at least
    /// `expires`.
    pub(super) fn mark_key_outdated(&mut self, key: u64, expires: CoarseTime) {
        mark_outdated_in_table(&mut self.sliding_buckets, key, expires);
        mark_outdated_in_table(&mut self.sliding_counter, key, expires);
        mark_outdated_in_table(&mut self.fixed_window, key, expires);
    }

    /// Adds units of another node to the state of a key, and extends the expiry of the key to at least `expires`.
    /// `counter_of_kind` returns the counter of a kind. Returns the number of added units; `None` without a change if
    /// the key has no state, if its state is outdated, or if `bucket` is not its current bucket.
    pub(super) fn add_units(
        &mut self,
        key: u64,
        (bucket, units): (u64, u64),
        expires: CoarseTime,
        counter_of_kind: impl Fn(CounterKindId) -> AnyAdditive,
    ) -> Option<u64> {
        let added = add_units_in_table(&mut self.sliding_buckets, key, expires, |kind, state| {
            match counter_of_kind(kind) {
                AnyAdditive::SlidingBuckets(counter) => {
                    counter.add_to_current_bucket(state, bucket, units)
                }
                AnyAdditive::SlidingCounter(_) | AnyAdditive::FixedWindow(_) => None,
            }
        });
        if added.is_some() {
            return added;
        }
        let added = add_units_in_table(&mut self.sliding_counter, key, expires, |kind, state| {
            match counter_of_kind(kind) {
                AnyAdditive::SlidingCounter(counter) => {
                    counter.add_to_current_bucket(state, bucket, units)
                }
                AnyAdditive::SlidingBuckets(_) | AnyAdditive::FixedWindow(_) => None,
            }
        });
        added.or_else(|| {
            add_units_in_table(&mut self.fixed_window, key, expires, |kind, state| {
                match counter_of_kind(kind) {
                    AnyAdditive::FixedWindow(counter) => {
                        counter.add_to_current_bucket(state, bucket, units)
                    }
                    AnyAdditive::SlidingBuckets(_) | AnyAdditive::SlidingCounter(_) => None,
                }
            })
        })
    }
}

/// Adds units to the state of a key of one table by calling `add`. See [`StateTables::add_units`].
fn add_units_in_table<S: Default + HeapSize>(
    table: &mut Table<KeyState<S>>,
    key: u64,
    expires: CoarseTime,
    add: impl FnOnce(CounterKindId, &mut S) -> Option<u64>,
) -> Option<u64> {
    let slot = table.find_mut(key)?;
    if slot.state.freshness == StateFreshness::Outdated {
        return None;
    }
    let added = add(slot.state.kind, &mut slot.state.state)?;
    slot.state.freshness = StateFreshness::UnitsAdded;
    slot.expires = slot.expires.max(expires);
    Some(added)
}

/// Marks a key of one table as changed. Returns the kind of the key, and `true` if the key was not marked before;
/// `None` if the table does not contain the key.
fn mark_changed_in_table<S: Default + HeapSize>(
    table: &mut Table<KeyState<S>>,
    key: u64,
) -> Option<(CounterKindId, bool)> {
    let index = table.find(key)?;
    let key_state = &mut table.slot_mut(index).state;
    Some((key_state.kind, !std::mem::replace(&mut key_state.is_changed, true)))
}

fn mark_outdated_in_table<S: Default + HeapSize>(
    table: &mut Table<KeyState<S>>,
    key: u64,
    expires: CoarseTime,
) {
    if let Some(index) = table.find(key) {
        let slot: &mut Slot<KeyState<S>> = table.slot_mut(index);
        slot.state.freshness = StateFreshness::Outdated;
        slot.expires = slot.expires.max(expires);
    }
}

/// The replicas of the keys of one shard, and the list of keys with unsent changes. Not allocated in a cluster of one
/// node.
#[derive(Default)]
pub(super) struct ShardReplicas(Option<Box<ReplicaTable>>);

/// The replicas of one shard by key fingerprint, and the keys with unsent changes.
#[derive(Default)]
struct ReplicaTable {
    replicas: HashMap<u64, KeyReplica, foldhash::fast::FixedState>,
    changed: Vec<(u64, CounterKindId)>,
    /// Heap memory of the replicas when expired counters were last removed, in bytes.
    heap_bytes: usize,
    /// Memory of the replicas at the last call of `take_memory_growth_bytes`, in bytes.
    counted_bytes: usize,
}

impl ReplicaTable {
    /// Returns the memory of all replicas in bytes. Estimates the memory of the hash table from its capacity: 4 slots
    /// for up to 3 keys, otherwise 8 slots for each 7 keys. Each slot has one control byte.
    fn memory_bytes(&self) -> usize {
        let slots = match self.replicas.capacity() {
            0 => 0,
            1..=3 => 4,
            keys => keys.div_ceil(7) * 8,
        };
        slots * (size_of::<(u64, KeyReplica)>() + 1)
            + self.changed.capacity() * size_of::<(u64, CounterKindId)>()
            + self.heap_bytes
    }
}

impl ShardReplicas {
    /// Returns `true` if the shard has never had a replica or a changed key.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn get_or_create_table(&mut self) -> &mut ReplicaTable {
        self.0.get_or_insert_default()
    }

    /// Returns the number of replicas.
    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |table| table.replicas.len())
    }

    /// Returns the replica of a key; `None` if the key has no replica.
    pub(super) fn get(&mut self, key: u64) -> Option<&mut KeyReplica> {
        self.0.as_mut()?.replicas.get_mut(&key)
    }

    /// Returns the replica of a key. Creates the replica with `create` if the key has none.
    pub(super) fn get_or_insert_with(
        &mut self,
        key: u64,
        create: impl FnOnce() -> KeyReplica,
    ) -> &mut KeyReplica {
        self.get_or_create_table().replicas.entry(key).or_insert_with(create)
    }

    /// Returns an iterator over the fingerprints and replicas of all keys.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut KeyReplica)> {
        let replicas = self.0.iter_mut().flat_map(|table| table.replicas.iter_mut());
        replicas.map(|(key, replica)| (*key, replica))
    }

    /// Removes counters that expired before `cutoff`, replicas without counters, and replicas for which `is_needed`
    /// returns `false`.
    pub(super) fn remove_expired(
        &mut self,
        cutoff: Timestamp,
        mut is_needed: impl FnMut(u64, &KeyReplica) -> bool,
    ) {
        if let Some(table) = &mut self.0 {
            table.heap_bytes = 0;
            table.replicas.retain(|key, replica| {
                let is_kept = replica.remove_expired(cutoff) && is_needed(*key, replica);
                table.heap_bytes += if is_kept { replica.heap_bytes() } else { 0 };
                is_kept
            });
            if table.replicas.capacity() > 4 * table.replicas.len() {
                table.replicas.shrink_to(2 * table.replicas.len());
            }
        }
    }

    /// Returns the number of bytes by which the memory of the replicas has grown since the last call; negative if the
    /// memory has shrunk.
    pub(super) fn take_memory_growth_bytes(&mut self) -> isize {
        self.0.as_mut().map_or(0, |table| {
            let bytes = table.memory_bytes();
            let previous = std::mem::replace(&mut table.counted_bytes, bytes);
            bytes as isize - previous as isize
        })
    }

    /// Adds a key to the list of changed keys. Not inlined: a key is added once per flush, not with each decision.
    pub(super) fn push_changed_key(&mut self, key: u64, kind: CounterKindId) {
        self.get_or_create_table().changed.push((key, kind));
    }

    /// Removes changed keys that have neither a state nor a replica, and repetitions of keys whose state was created
    /// again. Otherwise the list would grow while there is no node to send it to. Does nothing while the list is short.
    fn remove_obsolete_changed_keys(&mut self, states: &mut StateTables) {
        let Some(table) = &mut self.0 else { return };
        let ReplicaTable { replicas, changed, .. } = &mut **table;
        if changed.len() <= states.key_count() + replicas.len() {
            return;
        }
        changed.sort_unstable_by_key(|(key, _)| *key);
        changed.dedup_by_key(|(key, _)| *key);
        changed.retain(|(key, _)| replicas.contains_key(key) || states.contains(*key));
        changed.shrink_to(2 * changed.len());
    }

    pub(super) fn take_changed_keys(&mut self) -> Vec<(u64, CounterKindId)> {
        self.0.as_mut().map(|table| std::mem::take(&mut table.changed)).unwrap_or_default()
    }
}
