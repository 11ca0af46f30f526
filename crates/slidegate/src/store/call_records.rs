//! The records of admitted calls: idempotent calls, whose repetition is not charged again, and settled reservations,
//! whose charge is corrected only once.
//!
//! The number of records is bounded. Above the bound, the record that expires first is evicted; all records that live
//! equally long are thus evicted oldest first. An evicted call would be charged again if it were repeated. A reservation
//! whose record may have been evicted cannot be settled any more, so that no reservation is settled twice.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::{ChargeResult, OnceResult, SettleResult, Settlement};
use crate::call::{CallId, CallIdentity};
use crate::clock::Timestamp;
use crate::hit::Hit;
use crate::sync::{Mutex, MutexGuard};

/// The default maximum number of records.
pub const DEFAULT_MAX_CALL_RECORDS: usize = 1_000_000;

/// The number of shards of a table. Each shard has its own lock, which a call with an id holds while it is decided.
const SHARDS: usize = 64;

/// Additional time for which the record of a settled reservation is kept, because the reservation's own time is measured
/// with another clock.
const SETTLED_RECORD_MARGIN: Duration = Duration::from_secs(60);

/// The records of one shard. A pure data structure: the caller passes the time.
#[derive(Debug)]
struct CallRecords {
    records: HashMap<CallId, CallRecord, foldhash::quality::RandomState>,
    by_expiry: BTreeSet<(Timestamp, CallId)>,
    max_records: usize,
    evicted: u64,
    /// The latest expiry of all evicted records. No record with a later expiry has been evicted.
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
    result: Option<Box<ChargeResult>>,
}

impl CallRecords {
    /// Creates an empty table of at most `max_records` records.
    fn new(max_records: usize) -> Self {
        Self {
            records: HashMap::default(),
            by_expiry: BTreeSet::new(),
            max_records: max_records.max(1),
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
    ) -> Option<OnceResult> {
        self.remove_expired(now);
        let record = self.records.get(&identity.id)?;
        let Some(call) = &record.call else { return Some(OnceResult::OtherRequest) };
        if call.request_digest != identity.request_digest {
            return Some(OnceResult::OtherRequest);
        }
        let Some(result) = &call.result else { return Some(OnceResult::InProgress) };
        let has_same_hits = call.hits_digest == digest_hits(hits);
        Some(OnceResult::Repeated {
            result: has_same_hits.then(|| (**result).clone()),
            age: Duration::from_micros(
                now.as_micros().saturating_sub(record.created_at.as_micros()),
            ),
        })
    }

    /// Records a call. `result` is `None` if the call is still being decided; it is then replaced later, or
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
            result: result.map(|result| Box::new(result.clone())),
        };
        let expires_at = now.after(identity.ttl);
        self.insert_record(
            identity.id,
            CallRecord { created_at: now, expires_at, call: Some(call), settled_value: None },
        );
    }

    /// Removes the record of a call that was not admitted.
    fn remove(&mut self, id: CallId) {
        if let Some(record) = self.records.remove(&id) {
            self.by_expiry.remove(&(record.expires_at, id));
        }
    }

    /// Records a settlement. The caller must apply it, in the same critical section, if the result is
    /// [`SettleResult::Settled`].
    fn settle(&mut self, settlement: &Settlement, now: Timestamp) -> SettleResult {
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

    fn insert_record(&mut self, id: CallId, record: CallRecord) {
        self.by_expiry.insert((record.expires_at, id));
        if let Some(replaced) = self.records.insert(id, record) {
            let kept = self.records.get(&id).map(|record| record.expires_at);
            if kept != Some(replaced.expires_at) {
                self.by_expiry.remove(&(replaced.expires_at, id));
            }
        }
        while self.records.len() > self.max_records {
            let Some((expires_at, evicted)) = self.by_expiry.pop_first() else { return };
            self.records.remove(&evicted);
            self.evicted += 1;
            self.evicted_expiry = self.evicted_expiry.max(Some(expires_at));
        }
    }

    fn remove_expired(&mut self, now: Timestamp) {
        while let Some((expires_at, id)) = self.by_expiry.first().copied()
            && expires_at <= now
        {
            self.by_expiry.pop_first();
            self.records.remove(&id);
        }
    }
}

/// Records that several threads share. The shard of a call is determined by its id. A store that counts in this process
/// implements [`charge_once`](super::SyncStore::charge_once) and [`settle`](super::SyncStore::settle) with a table.
pub struct CallRecordTable(Box<[Mutex<CallRecords>]>);

impl std::fmt::Debug for CallRecordTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallRecordTable").field("records", &self.records()).finish_non_exhaustive()
    }
}

impl CallRecordTable {
    /// Creates an empty table of at most `max_records` records.
    pub fn new(max_records: usize) -> Self {
        let per_shard = max_records.div_ceil(SHARDS);
        Self((0..SHARDS).map(|_| Mutex::new(CallRecords::new(per_shard))).collect())
    }

    /// Locks the records of the shard of a call.
    fn lock(&self, id: CallId) -> MutexGuard<'_, CallRecords> {
        self.0[usize::from(id.as_bytes()[15]) % SHARDS].lock()
    }

    /// Returns the number of records, including expired records that have not been removed.
    pub fn records(&self) -> usize {
        self.0.iter().map(|shard| shard.lock().records.len()).sum()
    }

    /// Returns the number of records that were evicted before they expired.
    pub fn evicted_records(&self) -> u64 {
        self.0.iter().map(|shard| shard.lock().evicted).sum()
    }

    /// Returns the result of a call that is remembered. Otherwise marks the call as being decided, and returns `None`.
    /// The caller must then call [`finish`](Self::finish).
    pub fn begin(
        &self,
        identity: &CallIdentity,
        hits: &[Hit<'_>],
        now: Timestamp,
    ) -> Option<OnceResult> {
        let mut records = self.lock(identity.id);
        let found = records.find(identity, hits, now);
        if found.is_none() {
            records.insert(identity, hits, None, now);
        }
        found
    }

    /// Records the result of a call that [`begin`](Self::begin) has marked; `None` if the call was not decided. Only
    /// admitted calls are remembered.
    pub fn finish(
        &self,
        identity: &CallIdentity,
        hits: &[Hit<'_>],
        result: Option<&ChargeResult>,
        now: Timestamp,
    ) {
        let mut records = self.lock(identity.id);
        match result {
            Some(result) if result.allowed => records.insert(identity, hits, Some(result), now),
            _ => records.remove(identity.id),
        }
    }

    /// Returns the result of a call that is remembered. Otherwise decides it with `charge`, and remembers it if it is
    /// admitted. A repetition that arrives in the meantime waits.
    pub fn charge_once(
        &self,
        identity: &CallIdentity,
        hits: &[Hit<'_>],
        now: Timestamp,
        charge: impl FnOnce() -> ChargeResult,
    ) -> OnceResult {
        let mut records = self.lock(identity.id);
        if let Some(found) = records.find(identity, hits, now) {
            return found;
        }
        let result = charge();
        if result.allowed {
            records.insert(identity, hits, Some(&result), now);
        }
        OnceResult::Decided(result)
    }

    /// Records a settlement, and calls `apply` if it must be applied now. Other settlements of the same call wait until
    /// then.
    pub fn settle(
        &self,
        settlement: &Settlement,
        now: Timestamp,
        apply: impl FnOnce(),
    ) -> SettleResult {
        let mut records = self.lock(settlement.id);
        let result = records.settle(settlement, now);
        if result == SettleResult::Settled {
            apply();
        }
        result
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
        [params.max, params.extra, params.max_debt].iter().for_each(|part| hasher.write_u32(*part));
        hasher.write_u64(hit.cost);
        hasher.write_u64(hit.required);
        (hit.veto as u8, hit.charge as u8).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests;
