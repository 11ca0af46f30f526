//! The store of the server.
//!
//! Only this module selects the kind of store. `ServerStore` is an enum instead of a trait object, so that no call is
//! dynamically dispatched.

use std::pin::pin;
use std::sync::Arc;

use slidegate::clock::DriftCorrectedClock;
use slidegate::store::{
    Adjustment, CallIdentity, CallRecordTable, CallSettlement, ChargeOnceResult, ChargeResult,
    CounterId, Edit, Hit, Outcomes, PermitChange, Receipt, SettleResult,
};
use slidegate::{MemoryStore, StoreError};
use slidegate_cluster::ClusterStore;
use slidegate_redis::{ChargeSource, RedisStore};

use crate::telemetry::StoreRecorder;
use crate::telemetry::metrics::{ClusterStats, OvershootBuckets, StoreStats};

/// A node of a cluster.
pub type ClusterNode = ClusterStore<Arc<DriftCorrectedClock>>;

/// The store that holds the counters, with the recorder of its calls.
#[expect(
    clippy::large_enum_variant,
    reason = "a process has one value, and a pointer to the store in memory would cost time at each decision"
)]
pub enum ServerStore {
    /// The memory of this process.
    Memory(MemoryStore, StoreRecorder),
    /// A Redis that all instances share.
    Redis(Box<RedisStore>, StoreRecorder),
    /// A node of a cluster.
    Cluster(Box<ClusterNode>, StoreRecorder),
}

/// Runs a call to the store of any kind, and records it. The recorder gets a pointer to the call, because each function
/// that takes a future would store it once more. Calls to Redis are boxed, because their futures are large: without the
/// box, they would enlarge the future of every decision, even with another store.
macro_rules! record {
    ($store:expr, $name:ident => $call:expr) => {
        match $store {
            Self::Memory($name, recorder) => recorder.record(pin!($call)).await,
            Self::Redis($name, recorder) => recorder.record(Box::pin($call)).await,
            Self::Cluster($name, recorder) => recorder.record(pin!($call)).await,
        }
    };
}

impl ServerStore {
    /// Returns the kind of the store, as metrics and responses name it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Memory(_, _) => "memory",
            Self::Redis(_, _) => "redis",
            Self::Cluster(_, _) => "cluster",
        }
    }

    /// Returns the cluster node, or `None` if the store is not a cluster node.
    pub fn cluster_node(&self) -> Option<&ClusterNode> {
        match self {
            Self::Cluster(node, _) => Some(node),
            Self::Memory(_, _) | Self::Redis(_, _) => None,
        }
    }

    /// Returns the state of the cluster for metrics, or `None` if the store is not a cluster node or has no status.
    pub fn cluster_stats(&self) -> Option<ClusterStats> {
        let node = self.cluster_node()?;
        let (counts, sum) = node.counters().overshoot().snapshot();
        let overshoot = OvershootBuckets { counts, sum };
        let status = node.status()?;
        Some(ClusterStats::from_status(&status, node.unsynced_denials(), overshoot))
    }

    /// Returns the reason why the store is not available; `None` if it is. Redis is unavailable before the first
    /// connection and while its circuit breaker is open.
    pub fn unavailable_reason(&self) -> Option<StoreError> {
        match self {
            Self::Memory(_, _) | Self::Cluster(_, _) => None,
            Self::Redis(store, _) => store.unreachable_reason(),
        }
    }

    /// Returns whether a cluster node is still waiting for the counters of another node.
    pub fn is_joining(&self) -> bool {
        self.cluster_node().and_then(ClusterNode::status).is_some_and(|status| status.joining)
    }

    /// Returns the name of a background task of the store that has ended although the store is in use. `None` if there
    /// is none.
    pub fn ended_task(&self) -> Option<&'static str> {
        self.cluster_node().and_then(ClusterNode::ended_task)
    }

    /// Returns the records of idempotent calls and settled reservations in this process, or `None` if Redis holds them.
    fn idempotency_records(&self) -> Option<&CallRecordTable> {
        match self {
            Self::Memory(store, _) => Some(store.call_record_table()),
            Self::Cluster(store, _) => Some(store.call_record_table()),
            Self::Redis(_, _) => None,
        }
    }

    /// Returns the statistics of the store for metrics, such as the number of keys.
    pub fn stats(&self) -> StoreStats {
        let records = self.idempotency_records();
        let stats = match self {
            Self::Memory(store, _) => StoreStats {
                keys: store.keys(),
                key_bytes: store.memory_bytes(),
                evicted_keys: store.evicted_keys(),
                ..StoreStats::default()
            },
            Self::Cluster(store, _) => StoreStats {
                keys: store.counters().keys(),
                key_bytes: store.counters().memory_bytes(),
                evicted_keys: store.counters().evicted_keys(),
                ..StoreStats::default()
            },
            Self::Redis(store, _) => StoreStats {
                is_breaker_open: store.is_breaker_open(),
                deny_cache_hits: store.stats().deny_cache_hits,
                ..StoreStats::default()
            },
        };
        StoreStats {
            call_records: records.map_or(0, CallRecordTable::records),
            call_record_bytes: records.map_or(0, CallRecordTable::memory_bytes),
            evicted_call_records: records.map_or(0, CallRecordTable::evicted_records),
            ..stats
        }
    }
}

impl slidegate::Store for ServerStore {
    type Kind = slidegate::store::Asynchronous;

    async fn charge_async(&self, call: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        let (store, recorder) = match self {
            Self::Memory(store, recorder) => {
                return recorder.record(pin!(store.charge_async(call))).await;
            }
            Self::Cluster(store, recorder) => {
                return recorder.record(pin!(store.charge_async(call))).await;
            }
            Self::Redis(store, recorder) => (store, recorder),
        };
        let charge = Box::pin(store.charge_with_source(call));
        let is_call = |(_, source): &(_, ChargeSource)| *source == ChargeSource::Redis;
        recorder.record_if_store_called(charge, is_call).await.map(|(result, _)| result)
    }

    async fn charge_many_async(
        &self,
        calls: &[&[Hit<'_>]],
    ) -> Result<Vec<ChargeResult>, StoreError> {
        record!(self, store => store.charge_many_async(calls))
    }

    async fn charge_once_async(
        &self,
        call: &[Hit<'_>],
        identity: &CallIdentity,
    ) -> Result<ChargeOnceResult, StoreError> {
        record!(self, store => store.charge_once_async(call, identity))
    }

    async fn settle_async(&self, settlement: &CallSettlement) -> Result<SettleResult, StoreError> {
        record!(self, store => store.settle_async(settlement))
    }

    async fn peek_async(&self, call: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        record!(self, store => store.peek_async(call))
    }

    fn revert_later(&self, receipt: Receipt) {
        match self {
            Self::Memory(store, _) => store.revert_later(receipt),
            Self::Redis(store, _) => store.revert_later(receipt),
            Self::Cluster(store, _) => store.revert_later(receipt),
        }
    }

    async fn adjust_async(
        &self,
        receipt: &Receipt,
        adjustment: Adjustment,
    ) -> Result<(), StoreError> {
        record!(self, store => store.adjust_async(receipt, adjustment))
    }

    async fn change_permit_async(
        &self,
        permit: &Receipt,
        change: PermitChange,
    ) -> Result<bool, StoreError> {
        record!(self, store => store.change_permit_async(permit, change))
    }

    fn counter_id(&self, hit: &Hit<'_>) -> Option<CounterId> {
        match self {
            Self::Memory(store, _) => store.counter_id(hit),
            Self::Redis(store, _) => store.counter_id(hit),
            Self::Cluster(store, _) => store.counter_id(hit),
        }
    }

    async fn edit_async(&self, hits: &[Hit<'_>], edit: Edit) -> Result<Outcomes, StoreError> {
        record!(self, store => store.edit_async(hits, edit))
    }
}
