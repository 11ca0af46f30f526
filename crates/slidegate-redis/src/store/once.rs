//! Calls with an id, and settlements. The script that charges also writes the record of the call.
//!
//! A call with an id is not sampled, and is not served from the denial cache: it may have been admitted before. It does
//! not wait for other requests to share a script call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use slidegate::StoreError;
use slidegate::store::{CallIdentity, CallSettlement, ChargeOnceResult, Hit, SettleResult};
use tokio::time::{Instant, sleep};

use super::{RedisStoreInner, result_of_request_without_hits};
use crate::call_record::{
    CallRecordChange, CallRecordHeader, ChargeOnceCall, ChargeOnceReply, SettleCall,
};
use crate::failure::Failure;
use crate::reply::HitReply;
use crate::script_request::{KeyedHits, ScriptMode, ScriptRequest, parse_counter_id};
use crate::topology::Topology;

/// The time to live of a claim, the record of a call that is being decided. If the process dies before it has a result,
/// repetitions are rejected until the claim expires.
const CLAIM_TTL: Duration = Duration::from_secs(10);

/// Additional time for which the record of a settlement is kept. A reservation expires by the clocks of the processes
/// that settle it. A process whose clock is behind by less than this time still finds the record.
const SETTLED_RECORD_MARGIN: Duration = Duration::from_secs(60);

/// The interval at which a repetition checks whether the call has been decided.
const CLAIM_POLL_INTERVAL: Duration = Duration::from_millis(1);

impl RedisStoreInner {
    /// Decides a call with an id, unless its record exists.
    pub(super) async fn charge_once(
        self: &Arc<Self>,
        hits: &[Hit<'_>],
        identity: &CallIdentity,
    ) -> Result<ChargeOnceResult, StoreError> {
        let keyed: KeyedHits =
            hits.iter().map(|hit| self.keyspace.keyed_hit_without_sampling(hit)).collect();
        let head = CallRecordHeader::new(hits, identity);
        let Some(slot) = self.common_slot_of_hits(&keyed) else {
            return self.charge_once_in_several_slots(keyed, head, identity).await;
        };
        let record_key = self.call_record_key(slot, identity);
        let request = ScriptRequest { mode: ScriptMode::Take, hits: keyed };
        let call =
            ChargeOnceCall::new(request, head, record_key, self.call_record_ttl(identity.ttl));
        let pending_charges = self.deny_cache.register_unconfirmed_charges(&call.request.hits);
        let sent_at = self.clocks.local_now();
        let reply = self
            .topology
            .run_operation(slot, &call, self.new_request_deadline())
            .await
            .map_err(Failure::into_error)?;
        if let ChargeOnceReply::Decided(reply) = &reply {
            let versions = pending_charges.complete(reply.hits().iter().map(HitReply::is_charged));
            self.record_denials_in_cache(&call.request.hits, reply, sent_at, &versions);
        }
        Ok(reply.into_result(&call.request.hits))
    }

    /// Decides a call with an id whose keys are in several slots, so that no script call can both charge it and write
    /// its record. The record is in the slot of the first key. First writes a claim, during which a repetition waits,
    /// by its deadline at the latest. Then replaces the claim by the result, or removes it.
    async fn charge_once_in_several_slots(
        self: &Arc<Self>,
        keyed: KeyedHits,
        head: CallRecordHeader,
        identity: &CallIdentity,
    ) -> Result<ChargeOnceResult, StoreError> {
        let Some(first) = keyed.first() else {
            return Ok(ChargeOnceResult::Decided(result_of_request_without_hits()));
        };
        let slot = self.topology.slot(&first.key);
        let record_key = self.call_record_key(slot, identity);
        let deadline = self.new_request_deadline();
        let claim = CallRecordChange::claim(record_key.clone(), head, keyed.len(), CLAIM_TTL);
        loop {
            let found = self.topology.run_operation(slot, &claim, deadline).await;
            match found.map_err(Failure::into_error)? {
                None => break,
                Some(ChargeOnceReply::InProgress)
                    if Instant::now() + CLAIM_POLL_INTERVAL < deadline =>
                {
                    sleep(CLAIM_POLL_INTERVAL).await;
                }
                Some(found) => return Ok(found.into_result(&keyed)),
            }
        }
        // Runs to completion even if the caller is gone, so that the record agrees with the charges.
        let (this, ttl) = (self.clone(), self.call_record_ttl(identity.ttl));
        let charge = async move {
            let result = this.charge_in_redis(keyed.clone()).await;
            let change = match &result {
                Ok(result) if result.allowed => {
                    CallRecordChange::put(record_key, head, &keyed, result, ttl)
                }
                _ => CallRecordChange::remove(record_key, head, keyed.len()),
            };
            let changed =
                this.topology.run_operation(slot, &change, this.new_request_deadline()).await;
            if let Err(failure) = changed {
                let error = failure.into_error();
                tracing::debug!(
                    class = error.class(),
                    "cannot record a call with an idempotency key; a repetition is charged again"
                );
            }
            result.map(ChargeOnceResult::Decided)
        };
        let result = self.runtime.spawn(charge).await;
        result.unwrap_or_else(|error| Err(StoreError::TimedOut(error.to_string())))
    }

    /// Applies a settlement, with one script call for each slot. The slot of the settlement's owner is first: its
    /// record decides whether the settlement is applied. The record of each slot makes sure that its part is applied
    /// once.
    pub(super) async fn settle(
        self: &Arc<Self>,
        settlement: &CallSettlement,
    ) -> Result<SettleResult, StoreError> {
        let owner = settlement.owner.as_ref().and_then(parse_counter_id).map(|(key, _)| key);
        let Some(owner) = owner.map(|key| self.topology.slot(key)) else {
            // A settlement without charges has no owner. There is nothing to correct.
            return Ok(SettleResult::Settled);
        };
        let mut parts: BTreeMap<u16, SettleCall<'_>> = BTreeMap::new();
        let new_part = |slot| SettleCall {
            record_key: self.keyspace.call_record_key(self.call_record_slot(slot), settlement.id),
            value_digest: settlement.value_digest,
            record_ttl: self.call_record_ttl(settlement.ttl) + SETTLED_RECORD_MARGIN,
            reverted: Vec::new(),
            added: ScriptRequest { mode: ScriptMode::Take, hits: KeyedHits::new() },
        };
        let mut first = new_part(owner);
        let part_of = |key: &str| match self.topology.slot(key) {
            slot if slot == owner => None,
            slot => Some(slot),
        };
        for charge in &settlement.reverted {
            let Some((key, _)) = parse_counter_id(&charge.counter) else { continue };
            match part_of(key) {
                None => first.reverted.push(charge),
                Some(slot) => {
                    parts.entry(slot).or_insert_with(|| new_part(slot)).reverted.push(charge)
                }
            }
        }
        for charge in &settlement.added {
            let Some((key, _)) = parse_counter_id(&charge.counter) else { continue };
            let hit = self.keyspace.keyed_hit(&charge.reported_hit());
            match part_of(key) {
                None => first.added.hits.push(hit),
                Some(slot) => {
                    parts.entry(slot).or_insert_with(|| new_part(slot)).added.hits.push(hit)
                }
            }
        }
        let settled = self.settle_slots(owner, &first, &parts).await;
        // Removes the cached denials also after an error, because the settlement may have been applied.
        for charge in settlement.reverted.iter().chain(&settlement.added) {
            if let Some((key, tag)) = parse_counter_id(&charge.counter) {
                self.deny_cache.invalidate(key, tag);
            }
        }
        settled.map_err(Failure::into_error)
    }

    async fn settle_slots(
        &self,
        owner: u16,
        first: &SettleCall<'_>,
        others: &BTreeMap<u16, SettleCall<'_>>,
    ) -> Result<SettleResult, Failure> {
        let result = self.topology.run_operation(owner, first, self.new_request_deadline()).await?;
        if result == SettleResult::OtherValue {
            return Ok(result);
        }
        for (slot, part) in others {
            self.topology.run_operation(*slot, part, self.new_request_deadline()).await?;
        }
        Ok(result)
    }

    /// Returns the Redis key of the record that makes a call idempotent. `slot` is the slot of the call's other keys.
    fn call_record_key(&self, slot: u16, identity: &CallIdentity) -> String {
        self.keyspace.call_record_key(self.call_record_slot(slot), identity.id)
    }

    /// Returns the slot of the record of a call; `None` if the server is not a Cluster.
    fn call_record_slot(&self, slot: u16) -> Option<u16> {
        matches!(self.topology, Topology::Cluster(_)).then_some(slot)
    }

    /// Returns the time to live of a record that is needed for `ttl`: longer by the expiry margin, and at least by a
    /// second, because clocks differ.
    fn call_record_ttl(&self, ttl: Duration) -> Duration {
        ttl + Duration::from_secs(self.keyspace.expiry_margin_s.max(1).into())
    }
}
