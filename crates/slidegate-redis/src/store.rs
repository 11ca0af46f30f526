//! The Redis store: serves denials from the denial cache, and sends all other requests to Redis, one script call per
//! slot of a Cluster.

mod batch;
mod cached_denials;
mod edits;
mod once;
mod permits;
mod revert_queue;
mod sampled;
mod stats;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slidegate::clock::Clock;
use slidegate::store::{
    Adjustment, CallIdentity, CallSettlement, ChargeOnceResult, ChargeResult, CounterId, Edit, Hit,
    Outcomes, PermitChange, Receipt, SettleResult,
};
use slidegate::{Store, StoreError};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::address::{Address, AddressTarget, redact_password};
use crate::clocks::Clocks;
use crate::cluster::Cluster;
use crate::connect::ConnectionSource;
use crate::deny_cache::DenyCache;
use crate::error::ConnectError;
use crate::execution::CallSettings;
use crate::failure::{self, Failure};
use crate::foreign_value_log::ForeignValueLog;
use crate::multi_slot::{self, split_by_slot};
use crate::node::Node;
use crate::reply::HitReply;
use crate::script_request::{
    KeyedHits, RedisKeyspace, ScriptMode, ScriptRequest, reject_too_many_hits,
};
use crate::settings::RedisSettings;
use crate::tls::ClientTls;
use crate::topology::Topology;

use revert_queue::RevertQueue;
use stats::CallCounts;

pub use stats::RedisStats;

/// A store with counters in Redis: in one server, in the master that Sentinels report, or in a Cluster. Clones share
/// the connections, the circuit breaker and the denial cache.
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<RedisStoreInner>,
    settings: RedisSettings,
    revert_queue: Arc<RevertQueue>,
    foreign_value_log: Arc<ForeignValueLog>,
    counts: Arc<CallCounts>,
}

/// The origin of the result of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeSource {
    /// Redis has decided.
    Redis,
    /// The denial cache has denied the request, without a call of Redis.
    DenialCache,
}

/// The part of a store that is shared with background tasks.
struct RedisStoreInner {
    keyspace: RedisKeyspace,
    topology: Topology,
    deny_cache: DenyCache,
    deny_cache_hits: AtomicU64,
    clocks: Arc<Clocks>,
    timeout: Duration,
    runtime: Handle,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl RedisStore {
    /// Creates a store for an [`Address`]. Must be called within a tokio runtime; connects in the background.
    ///
    /// # Errors
    /// If the address is invalid, or the file of certificates cannot be used. An unreachable server is not an error
    /// here: requests to the store fail then.
    pub fn open(address: &str, settings: RedisSettings) -> Result<Self, ConnectError> {
        let address: Address = address.parse().map_err(|source| ConnectError::Address {
            address: redact_password(address),
            source,
        })?;
        Self::from_address(&address, settings)
    }

    /// Creates a store for an address and connects in the background.
    pub(crate) fn from_address(
        address: &Address,
        settings: RedisSettings,
    ) -> Result<Self, ConnectError> {
        let clocks = Arc::new(Clocks::new());
        let keyspace = RedisKeyspace::new(&settings, clocks.clone());
        let call_settings = CallSettings {
            timeout: settings.timeout,
            expiry_margin_s: keyspace.expiry_margin_s,
            clocks: clocks.clone(),
        };
        let tls = ClientTls::from_files(&settings)?;
        let topology = match address.target() {
            AddressTarget::Server(info) => ConnectionSource::for_server(&info, &tls)
                .map(|source| Topology::Single(Node::open("", source, call_settings))),
            AddressTarget::Sentinel(target) => ConnectionSource::for_master(&target, &tls)
                .map(|source| Topology::Single(Node::open("", source, call_settings))),
            AddressTarget::Cluster(seeds) => {
                Cluster::open(seeds, tls, call_settings).map(Topology::Cluster)
            }
        };
        let topology = topology.map_err(|error| ConnectError::Client {
            address: address.to_string(),
            message: error.to_string(),
        })?;
        let inner = Arc::new(RedisStoreInner {
            keyspace,
            topology,
            deny_cache: DenyCache::new(settings.deny_cache_ttl),
            deny_cache_hits: AtomicU64::new(0),
            clocks,
            timeout: settings.timeout,
            runtime: Handle::current(),
        });
        Ok(Self {
            revert_queue: Arc::new(RevertQueue::start(&inner)),
            inner,
            settings,
            foreign_value_log: Arc::default(),
            counts: Arc::default(),
        })
    }

    /// Uses the given clock for counting, instead of the clock of Redis. This is cheaper for Redis, and suitable if the
    /// clocks of all clients agree.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock) -> Self {
        self.inner.clocks.set_counting_clock(clock);
        self
    }

    /// Returns the numbers of calls, failures and denials since the store was opened.
    pub fn stats(&self) -> RedisStats {
        RedisStats {
            deny_cache_hits: self.inner.deny_cache_hits.load(Ordering::Relaxed),
            dropped_reverts: self.revert_queue.dropped(),
            ..self.counts.stats()
        }
    }

    /// Charges like [`charge_async`](Store::charge_async), and returns whether Redis or the denial cache has decided.
    ///
    /// # Errors
    /// As for [`charge_async`](Store::charge_async).
    pub async fn charge_with_source(
        &self,
        call: &[Hit<'_>],
    ) -> Result<(ChargeResult, ChargeSource), StoreError> {
        reject_too_many_hits(call)?;
        let charge = self.inner.charge(self.inner.keyspace.keyed_hits(call));
        self.count_call_if(charge, |(_, source)| *source == ChargeSource::Redis).await
    }

    /// Runs a call and counts it. Logs its error if a value of another program caused it.
    async fn count_call<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.count_call_if(call, |_| true).await
    }

    /// Runs a call, and counts it unless it succeeds with a result for which `is_call` returns `false`.
    async fn count_call_if<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
        is_call: impl FnOnce(&T) -> bool,
    ) -> Result<T, StoreError> {
        let started = Instant::now();
        let result = call.await;
        if result.as_ref().is_ok_and(|value| !is_call(value)) {
            return result;
        }
        self.counts.record(started, &result);
        if let Some(error) = result.as_ref().err().filter(|_| self.settings.logs_foreign_values) {
            self.foreign_value_log.log(error);
        }
        result
    }

    /// Returns `true` if the circuit breaker is open, so that requests fail without a call. In a Cluster, returns
    /// `true` if the breakers of all known masters are open, or if no master is known.
    pub fn is_breaker_open(&self) -> bool {
        self.inner.topology.is_breaker_open()
    }

    /// Returns `true` if a connection to Redis has ever been established and the circuit breaker is closed. In a
    /// Cluster, one master for which both hold is enough. The store sends probes while the breaker is open, so that the
    /// breaker also closes without requests.
    pub fn is_reachable(&self) -> bool {
        self.unreachable_reason().is_none()
    }

    /// Returns the reason why Redis is not [reachable](Self::is_reachable), such as a wrong password; `None` if it is.
    /// The reason contains no password.
    pub fn unreachable_reason(&self) -> Option<StoreError> {
        self.inner.topology.unreachable_reason()
    }
}

impl Address {
    /// Creates a store for this address, like [`RedisStore::open`]. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If no client can be created with the settings.
    pub fn open(&self, settings: RedisSettings) -> Result<RedisStore, ConnectError> {
        RedisStore::from_address(self, settings)
    }
}

/// Returns the result of a request without hits: an admission that charges nothing.
fn result_of_request_without_hits() -> ChargeResult {
    ChargeResult { allowed: true, outcomes: Outcomes::new(), receipt: Receipt::default() }
}

impl RedisStoreInner {
    /// Returns the deadline of a request that arrives now.
    fn new_request_deadline(&self) -> Instant {
        Instant::now() + self.timeout
    }

    /// Decides and charges a request. A denial is served from the denial cache if possible; otherwise Redis is called.
    async fn charge(
        self: &Arc<Self>,
        hits: KeyedHits,
    ) -> Result<(ChargeResult, ChargeSource), StoreError> {
        if hits.is_empty() {
            return Ok((result_of_request_without_hits(), ChargeSource::Redis));
        }
        // With an open breaker the request must fail, even if the cache has a denial.
        let is_breaker_open =
            hits.iter().any(|hit| self.topology.is_breaker_open_for_key(&hit.key));
        if !is_breaker_open && let Some(denial) = self.find_cached_denial(&hits) {
            self.deny_cache_hits.fetch_add(1, Ordering::Relaxed);
            return Ok((denial, ChargeSource::DenialCache));
        }
        let result = if !is_breaker_open && hits.iter().any(|hit| hit.sample > 1) {
            self.charge_request_with_sampled_hits(hits).await
        } else {
            self.charge_in_redis(hits).await
        };
        Ok((result?, ChargeSource::Redis))
    }

    /// Decides and charges a request in Redis. If all its keys are in one slot, one call decides it, and its denials
    /// are recorded in the denial cache. Otherwise, each slot needs calls of its own.
    async fn charge_in_redis(
        self: &Arc<Self>,
        hits: KeyedHits,
    ) -> Result<ChargeResult, StoreError> {
        let Some(slot) = self.common_slot_of_hits(&hits) else {
            // Runs to completion even if the caller is gone, so that charges of a denied request are reverted.
            let charge = self.clone().charge_in_several_slots(hits);
            let result = self.runtime.spawn(charge).await;
            return result.unwrap_or_else(|error| Err(StoreError::TimedOut(error.to_string())));
        };
        let request = Arc::new(ScriptRequest { mode: ScriptMode::Take, hits });
        let pending_charges = self.deny_cache.register_unconfirmed_charges(&request.hits);
        let sent_at = self.clocks.local_now();
        let reply = self
            .topology
            .decide(slot, &request, self.new_request_deadline())
            .await
            .map_err(Failure::into_error)?;
        let versions = pending_charges.complete(reply.hits().iter().map(HitReply::is_charged));
        self.record_denials_in_cache(&request.hits, &reply, sent_at, &versions);
        Ok(reply.charge_result(&request.hits))
    }

    /// Returns the Cluster slot that contains the keys of all these hits, or `None` if the keys are in several slots or
    /// there are no hits.
    fn common_slot_of_hits(&self, hits: &KeyedHits) -> Option<u16> {
        let (first, others) = hits.split_first()?;
        let slot = self.topology.slot(&first.key);
        others.iter().all(|hit| self.topology.slot(&hit.key) == slot).then_some(slot)
    }

    /// Evaluates a request without charging.
    async fn peek(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        let (hits, deadline) = (self.keyspace.keyed_hits(hits), self.new_request_deadline());
        if hits.is_empty() {
            return Ok(Outcomes::new());
        }
        let Some(slot) = self.common_slot_of_hits(&hits) else {
            let parts = split_by_slot(&self.topology, ScriptMode::Peek, hits);
            return multi_slot::evaluate_slot_parts(&self.topology, &parts, deadline).await;
        };
        let request = Arc::new(ScriptRequest { mode: ScriptMode::Peek, hits });
        let reply = self.topology.decide(slot, &request, deadline).await;
        reply.map(|reply| reply.outcomes()).map_err(Failure::into_error)
    }
}

impl Store for RedisStore {
    type Kind = slidegate::store::Asynchronous;

    async fn charge_async(&self, call: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        self.charge_with_source(call).await.map(|(result, _)| result)
    }

    async fn charge_many_async(
        &self,
        calls: &[&[Hit<'_>]],
    ) -> Result<Vec<ChargeResult>, StoreError> {
        calls.iter().try_for_each(|hits| reject_too_many_hits(hits))?;
        let requests = calls.iter().map(|hits| self.inner.keyspace.keyed_hits(hits));
        let decide = async {
            let results = self.inner.decide_requests_in_order_per_slot(requests).await;
            let any_charged = results.iter().any(Result::is_ok);
            results.into_iter().collect::<Result<_, _>>().map_err(|error: StoreError| {
                if any_charged { failure::into_partial_call_error(error) } else { error }
            })
        };
        self.count_call(decide).await
    }

    async fn charge_once_async(
        &self,
        call: &[Hit<'_>],
        identity: &CallIdentity,
    ) -> Result<ChargeOnceResult, StoreError> {
        reject_too_many_hits(call)?;
        if call.is_empty() {
            return Ok(ChargeOnceResult::Decided(result_of_request_without_hits()));
        }
        self.count_call(self.inner.charge_once(call, identity)).await
    }

    async fn settle_async(&self, settlement: &CallSettlement) -> Result<SettleResult, StoreError> {
        self.count_call(self.inner.settle(settlement)).await
    }

    async fn peek_async(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        reject_too_many_hits(hits)?;
        self.count_call(self.inner.peek(hits)).await
    }

    fn revert_later(&self, receipt: Receipt) {
        self.revert_queue.push(receipt);
    }

    async fn adjust_async(
        &self,
        receipt: &Receipt,
        adjustment: Adjustment,
    ) -> Result<(), StoreError> {
        self.count_call(self.inner.adjust(receipt, adjustment)).await
    }

    async fn change_permit_async(
        &self,
        permit: &Receipt,
        change: PermitChange,
    ) -> Result<bool, StoreError> {
        self.count_call(self.inner.change_permit(permit, change)).await
    }

    fn counter_id(&self, hit: &Hit<'_>) -> Option<CounterId> {
        Some(self.inner.keyspace.counter_id(hit))
    }

    async fn edit_async(&self, hits: &[Hit<'_>], edit: Edit) -> Result<Outcomes, StoreError> {
        reject_too_many_hits(hits)?;
        match edit {
            Edit::Refund => self.count_call(self.inner.refund(hits)).await,
            Edit::Reset => self.count_call(self.inner.reset(hits)).await,
        }
    }
}
