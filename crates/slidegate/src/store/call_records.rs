//! The records of admitted calls: idempotent calls, whose repetition is not charged again, and settled reservations,
//! whose charge is corrected only once.
//!
//! The number of records and their bytes are bounded. Above a bound, the record that expires first is evicted; all
//! records that live equally long are thus evicted oldest first. An evicted call would be charged again if it were
//! repeated. A reservation whose settlement may have been evicted cannot be settled any more, so that no reservation is
//! settled twice.
//!
//! A record has the results of all hits of its call, so the sizes of records differ by a factor of a thousand and more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{CallSettlement, Charge, ChargeOnceResult, ChargeResult, SettleResult};
use crate::algorithm::MAX_AHEAD_OF_CLOCK_US;
use crate::call::{CallId, CallIdentity};
use crate::clock::Timestamp;
use crate::hit::Hit;
use crate::layout::allocator_block_bytes;
use crate::outcome::Outcome;
use crate::sync::{AtomicUsize, Mutex, Ordering};

/// The default maximum number of records.
pub const DEFAULT_MAX_CALL_RECORDS: usize = 1_000_000;

/// Returns the largest number of bytes that the records of a store take: a quarter of the memory budget of the store.
/// So clients that create records leave memory for keys.
pub const fn max_call_record_bytes(max_memory: usize) -> usize {
    max_memory / 4
}

/// The largest number of shards of a table. Each shard has its own lock, which a call with an id holds while it is
/// decided.
const MAX_SHARDS: usize = 64;

/// The minimum memory of a shard in bytes, so that a shard of a small table has memory for the record of a large call.
const MIN_SHARD_BYTES: usize = 64 << 10;

/// The bytes that a record takes in the two B-trees of its shard, at most. A node of either tree takes 288 bytes, or
/// 384 if it has children, and has at least 5 entries of 24 bytes, and there is one further entry between two nodes: 61
/// bytes per entry. The root may have fewer entries.
const TREE_BYTES_PER_RECORD: usize = 2 * 64;

/// Additional time for which the record of a settled reservation is kept, because the reservation's own time is
/// measured with another clock.
const SETTLED_RECORD_MARGIN: Duration = Duration::from_secs(60);

/// The records of one shard. A pure data structure: the caller passes the time.
#[derive(Debug)]
struct CallRecordShard {
    records: BTreeMap<CallId, Box<CallRecord>>,
    by_expiry: BTreeSet<(Timestamp, CallId)>,
    max_records: usize,
    /// The sum of the [sizes](CallRecord::bytes) of all records.
    bytes: usize,
    max_bytes: usize,
    evicted: u64,
    /// The latest expiry of all evicted records of settled reservations. A reservation with a later expiry and without
    /// a record has not been settled.
    evicted_expiry: Option<Timestamp>,
}

/// The record of one call.
#[derive(Debug)]
struct CallRecord {
    created_at: Timestamp,
    expires_at: Timestamp,
    /// `None` if the record only says that a reservation has been settled.
    call: Option<RecordedCall>,
    /// A digest of the costs to which the charges have been corrected; `None` if they have not been corrected.
    settled_value: Option<u64>,
}

/// An admitted call with an id.
#[derive(Debug)]
struct RecordedCall {
    request_digest: u64,
    hits_digest: u64,
    /// `None` while the call is being decided.
    result: Option<RecordedResult>,
}

/// The result of an admitted call.
#[derive(Debug)]
struct RecordedResult {
    outcomes: Box<[Outcome]>,
    charges: Box<[Charge]>,
}

impl RecordedResult {
    fn new(result: &ChargeResult) -> Self {
        Self {
            outcomes: result.outcomes.iter().copied().collect(),
            charges: result.receipt.charges().iter().cloned().collect(),
        }
    }

    /// Converts the recorded result into the result of a repetition with the same hits.
    fn to_charge_result(&self) -> ChargeResult {
        ChargeResult {
            allowed: true,
            outcomes: self.outcomes.iter().copied().collect(),
            receipt: self.charges.iter().cloned().collect(),
        }
    }
}

impl CallRecord {
    /// Returns the bytes that the record takes: its entries in the trees, and its allocations with the allocator's
    /// overhead.
    fn bytes(&self) -> usize {
        let result = self.call.as_ref().and_then(|call| call.result.as_ref());
        let result_bytes = result.map_or(0, |result| {
            allocator_block_bytes(size_of_val(&*result.outcomes))
                + allocator_block_bytes(size_of_val(&*result.charges))
        });
        TREE_BYTES_PER_RECORD + allocator_block_bytes(size_of::<Self>()) + result_bytes
    }
}

impl CallRecordShard {
    /// Creates an empty table of at most `max_records` records and `max_bytes` bytes.
    fn new(max_records: usize, max_bytes: usize) -> Self {
        Self {
            records: BTreeMap::new(),
            by_expiry: BTreeSet::new(),
            max_records: max_records.max(1),
            bytes: 0,
            max_bytes,
            evicted: 0,
            evicted_expiry: None,
        }
    }

    /// Returns the result of a call that is remembered; `None` if the call must be decided now.
    fn find(
        &mut self,
        identity: &CallIdentity,
        hits: &[Hit<'_>],
        now: Timestamp,
    ) -> Option<ChargeOnceResult> {
        self.set_back_if_ahead(identity.id, now);
        self.remove_expired(now);
        let record = self.records.get(&identity.id)?;
        let Some(call) = &record.call else { return Some(ChargeOnceResult::OtherRequest) };
        if call.request_digest != identity.request_digest {
            return Some(ChargeOnceResult::OtherRequest);
        }
        let Some(result) = &call.result else { return Some(ChargeOnceResult::InProgress) };
        let has_same_hits = call.hits_digest == digest_hits(hits);
        Some(ChargeOnceResult::Repeated {
            result: has_same_hits.then(|| result.to_charge_result()),
            age: Duration::from_micros(
                now.as_micros().saturating_sub(record.created_at.as_micros()),
            ),
        })
    }

    /// Records a call. `result` is `None` if the call is still being decided; the record is then replaced later, or
    /// [removed](Self::remove) if the call is not admitted.
    fn insert(
        &mut self,
        identity: &CallIdentity,
        hits: &[Hit<'_>],
        result: Option<&ChargeResult>,
        now: Timestamp,
    ) {
        let call = RecordedCall {
            request_digest: identity.request_digest,
            hits_digest: digest_hits(hits),
            result: result.map(RecordedResult::new),
        };
        let expires_at = now.after(identity.ttl);
        self.insert_record(
            identity.id,
            CallRecord { created_at: now, expires_at, call: Some(call), settled_value: None },
        );
    }

    /// Removes a record, and returns it.
    fn remove(&mut self, id: CallId) -> Option<Box<CallRecord>> {
        let record = self.records.remove(&id)?;
        self.by_expiry.remove(&(record.expires_at, id));
        self.bytes -= record.bytes();
        Some(record)
    }

    /// Removes the record that expires first, and returns it.
    fn remove_first_to_expire(&mut self) -> Option<Box<CallRecord>> {
        let (_, id) = self.by_expiry.first().copied()?;
        self.remove(id)
    }

    /// Records a settlement. The caller must apply it, in the same critical section, if the result is
    /// [`SettleResult::Settled`].
    fn settle(&mut self, settlement: &CallSettlement, now: Timestamp) -> SettleResult {
        self.set_back_if_ahead(settlement.id, now);
        self.remove_expired(now);
        let expires_at = now.after(settlement.ttl).after(SETTLED_RECORD_MARGIN);
        let Some(record) = self.records.get_mut(&settlement.id) else {
            let latest_evicted = self.evicted_expiry.map(|at| at.after(SETTLED_RECORD_MARGIN));
            if latest_evicted.is_some_and(|evicted| expires_at <= evicted) {
                return SettleResult::Forgotten;
            }
            self.insert_record(
                settlement.id,
                CallRecord {
                    created_at: now,
                    expires_at,
                    call: None,
                    settled_value: Some(settlement.value_digest),
                },
            );
            return SettleResult::Settled;
        };
        match record.settled_value {
            Some(value) if value == settlement.value_digest => SettleResult::Repeated,
            Some(_) => SettleResult::OtherValue,
            None => {
                record.settled_value = Some(settlement.value_digest);
                if expires_at > record.expires_at {
                    self.by_expiry.remove(&(record.expires_at, settlement.id));
                    self.by_expiry.insert((expires_at, settlement.id));
                    record.expires_at = expires_at;
                }
                SettleResult::Settled
            }
        }
    }

    /// Inserts a record, and evicts the records that expire first while there are too many. A record that alone exceeds
    /// the memory of the shard is evicted immediately, because it would evict all others.
    fn insert_record(&mut self, id: CallId, record: CallRecord) {
        self.remove(id);
        if record.bytes() > self.max_bytes {
            self.count_eviction(&record);
            return;
        }
        self.bytes += record.bytes();
        self.by_expiry.insert((record.expires_at, id));
        self.records.insert(id, Box::new(record));
        while self.records.len() > self.max_records || self.bytes > self.max_bytes {
            let Some(evicted) = self.remove_first_to_expire() else { return };
            self.count_eviction(&evicted);
        }
    }

    fn count_eviction(&mut self, record: &CallRecord) {
        self.evicted += 1;
        if record.settled_value.is_some() {
            self.evicted_expiry = self.evicted_expiry.max(Some(record.expires_at));
        }
    }

    /// Moves a record to `now` if it was created more than a second later, which means that the clock has stepped back
    /// since. The record then expires as if it had been created at `now`.
    fn set_back_if_ahead(&mut self, id: CallId, now: Timestamp) {
        let Some(record) = self.records.get_mut(&id) else { return };
        let lead_us = record.created_at.as_micros().saturating_sub(now.as_micros());
        if lead_us > MAX_AHEAD_OF_CLOCK_US {
            self.by_expiry.remove(&(record.expires_at, id));
            record.created_at = now;
            record.expires_at = Timestamp::from_micros(record.expires_at.as_micros() - lead_us);
            self.by_expiry.insert((record.expires_at, id));
        }
    }

    fn remove_expired(&mut self, now: Timestamp) {
        while self.by_expiry.first().is_some_and(|(expires_at, _)| *expires_at <= now) {
            self.remove_first_to_expire();
        }
    }
}

/// Records that several threads share. The shard of a call is determined by its id. A store that counts in this process
/// implements [`charge_once`](super::SyncStore::charge_once) and [`settle`](super::SyncStore::settle) with a table.
pub struct CallRecordTable {
    shards: Box<[Mutex<CallRecordShard>]>,
    max_records: usize,
    /// The bytes of the records of all shards. Each change is made under the lock of the shard whose records have
    /// changed.
    bytes: AtomicUsize,
}

impl std::fmt::Debug for CallRecordTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallRecordTable").field("records", &self.records()).finish_non_exhaustive()
    }
}

impl CallRecordTable {
    /// Creates an empty table of at most `max_records` records and `max_bytes` bytes.
    pub fn new(max_records: usize, max_bytes: usize) -> Self {
        let shards = (max_bytes / MIN_SHARD_BYTES).min(max_records).clamp(1, MAX_SHARDS);
        let new_shard =
            || Mutex::new(CallRecordShard::new(max_records / shards, max_bytes / shards));
        Self {
            shards: (0..shards).map(|_| new_shard()).collect(),
            max_records,
            bytes: AtomicUsize::new(0),
        }
    }

    /// Returns an empty table with the same maximum number of records, and at most `max_bytes` bytes.
    #[must_use]
    pub fn with_max_bytes(self, max_bytes: usize) -> Self {
        Self::new(self.max_records, max_bytes)
    }

    /// Calls `update` with the records of the shard of a call, and then updates the number of bytes of the table.
    fn update_shard<R>(&self, id: CallId, update: impl FnOnce(&mut CallRecordShard) -> R) -> R {
        let mut records = self.shards[usize::from(id.as_bytes()[15]) % self.shards.len()].lock();
        let before = records.bytes;
        let result = update(&mut records);
        self.bytes.fetch_add(records.bytes.wrapping_sub(before), Ordering::Relaxed);
        result
    }

    /// Returns the bytes that the records take, including expired records that have not been removed. The shards
    /// themselves, at most 64 with less than 1 KiB each, are not included.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of records, including expired records that have not been removed.
    pub fn records(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().records.len()).sum()
    }

    /// Returns the number of records that were evicted before they expired.
    pub fn evicted_records(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().evicted).sum()
    }

    /// Returns the result of a call that is remembered. Otherwise marks the call as being decided, and returns `None`.
    /// The caller must then call [`finish_call`](Self::finish_call).
    pub fn begin_call(
        &self,
        identity: &CallIdentity,
        hits: &[Hit<'_>],
        now: Timestamp,
    ) -> Option<ChargeOnceResult> {
        self.update_shard(identity.id, |records| {
            let found = records.find(identity, hits, now);
            if found.is_none() {
                records.insert(identity, hits, None, now);
            }
            found
        })
    }

    /// Records the result of a call that [`begin_call`](Self::begin_call) has marked; `None` if the call was not
    /// decided. Only admitted calls are remembered.
    pub fn finish_call(
        &self,
        identity: &CallIdentity,
        hits: &[Hit<'_>],
        result: Option<&ChargeResult>,
        now: Timestamp,
    ) {
        self.update_shard(identity.id, |records| match result {
            Some(result) if result.allowed => records.insert(identity, hits, Some(result), now),
            _ => drop(records.remove(identity.id)),
        });
    }

    /// Returns the result of a call that is remembered. Otherwise decides it with `charge`, and remembers it if it is
    /// admitted. A repetition that arrives while the call is being decided waits for the result.
    pub fn charge_once(
        &self,
        identity: &CallIdentity,
        hits: &[Hit<'_>],
        now: Timestamp,
        charge: impl FnOnce() -> ChargeResult,
    ) -> ChargeOnceResult {
        self.update_shard(identity.id, |records| {
            if let Some(found) = records.find(identity, hits, now) {
                return found;
            }
            let result = charge();
            if result.allowed {
                records.insert(identity, hits, Some(&result), now);
            }
            ChargeOnceResult::Decided(result)
        })
    }

    /// Records a settlement, and calls `apply` if it must be applied now. Other settlements of the same call wait until
    /// `apply` has returned.
    pub fn settle(
        &self,
        settlement: &CallSettlement,
        now: Timestamp,
        apply: impl FnOnce(),
    ) -> SettleResult {
        self.update_shard(settlement.id, |records| {
            let result = records.settle(settlement, now);
            if result == SettleResult::Settled {
                apply();
            }
            result
        })
    }
}

/// Returns a digest of everything that determines the outcomes of hits except the state of their counters. It is the
/// same in every process, but not in every version.
pub fn digest_hits(hits: &[Hit<'_>]) -> u64 {
    use std::hash::{Hash, Hasher};
    let mut hasher = fnv::FnvHasher::default();
    for hit in hits {
        let params = hit.limit.params();
        hasher.write_u64(hit.key.stable_hash());
        hasher.write_u64(hit.limit.shape());
        hasher.write_u64(params.max);
        [params.extra, params.max_debt].iter().for_each(|part| hasher.write_u32(*part));
        hasher.write_u64(hit.cost);
        hasher.write_u64(hit.required);
        (hit.veto as u8, hit.charge).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests;
