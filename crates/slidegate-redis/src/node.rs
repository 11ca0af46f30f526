//! A node: one Redis server with its circuit breaker, the deadlines of requests, and the calls that waiting requests
//! share.
//!
//! The breaker counts failed script calls, not failed requests. Only a call that may have reached Redis fails with
//! [`StoreError::TimedOut`], because it may have charged.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use slidegate::StoreError;
use slidegate::store::restart_on_panic;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use crate::breaker::{self, Breaker, BreakerDecision, BreakerStateChange};
use crate::call::{DecideBatch, ScriptOperation, ScriptProbe, ScriptResult};
use crate::coalescing::{
    Coalescer, EnqueueResult, LeaderGuard, LeaderReceiver, WaitingJob, WaitingJobHandle,
};
use crate::connect::{self, ConnectionSource};
use crate::execution::{CallSettings, ScriptExecutor};
use crate::failure::Failure;
use crate::script_request::ScriptRequest;

/// Maximum number of hits in a call that several requests share. A request with more hits is sent alone.
const MAX_HITS_PER_BATCH: usize = 512;

/// Time for which a due probe is left to a request. Then the node sends a probe of its own, which changes no key, so it
/// succeeds even if Redis refuses to write. A request as a probe detects this.
const BACKGROUND_PROBE_DELAY: Duration = Duration::from_secs(1);

/// A key by which waiting requests are grouped: only requests with the same key share a call, and the calls of a key
/// run one after another. A Cluster has a key for each slot, a single server has one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BatchKey {
    pub slot: u16,
    /// Whether the slot is being migrated to this server, so that the command `ASKING` must precede the call.
    pub is_asking: bool,
    /// Whether each request must be sent in its own call.
    pub one_request_per_call: bool,
}

/// A request and its deadline.
type QueuedRequest = (Arc<ScriptRequest>, Instant);

/// A guard of a batch key that has a call in flight. Requests with this key wait until the guard is dropped.
type BatchLeaderGuard = LeaderGuard<BatchKey, QueuedRequest, ScriptResult>;

/// A Redis server that calls are sent to.
pub struct Node {
    /// `host:port` as reported by the nodes of a Cluster; empty if the server is not part of a Cluster.
    address: Box<str>,
    /// The name of the server in log messages.
    log_name: Box<str>,
    call_settings: CallSettings,
    executor: ScriptExecutor,
    breaker: Arc<Breaker>,
    /// Notified when the connection is restored, so that the node sends a probe immediately.
    connection_restored: Arc<Notify>,
    /// Whether a task sends probes. There is at most one, also if the breaker opens again before its task has noticed
    /// that it was closed.
    is_probing: AtomicBool,
    /// The runtime on which probes run.
    runtime: Handle,
    weak_self: Weak<Self>,
    coalescer: Arc<Coalescer<BatchKey, QueuedRequest, ScriptResult>>,
}

impl Node {
    /// Creates a node and connects to its server in the background. `address` is empty if the server is not part of a
    /// Cluster. Must be called within a tokio runtime, on which the calls for waiting requests run.
    pub fn open(address: &str, source: ConnectionSource, call_settings: CallSettings) -> Arc<Self> {
        let breaker = Arc::new(Breaker::new(breaker::BreakerSettings {
            probe_timeout: 2 * call_settings.timeout,
            ..breaker::BreakerSettings::default()
        }));
        let connection_restored = Arc::new(Notify::new());
        let on_reconnect = {
            let (breaker, clocks) = (breaker.clone(), call_settings.clocks.clone());
            let connection_restored = connection_restored.clone();
            move || {
                breaker.allow_probe(clocks.machine_now());
                connection_restored.notify_one();
            }
        };
        let (coalescer, mut leader_receiver) = Coalescer::new();
        let log_name = format!("Redis at {}", source.server_name_for_log()).into();
        let connection = connect::open(source, call_settings.timeout, on_reconnect);
        let executor = ScriptExecutor::new(connection, call_settings.clone());
        let node = Arc::new_cyclic(|weak_self| Self {
            address: address.into(),
            log_name,
            executor,
            breaker,
            connection_restored,
            is_probing: AtomicBool::new(false),
            runtime: Handle::current(),
            weak_self: weak_self.clone(),
            coalescer,
            call_settings,
        });
        let weak_node = Arc::downgrade(&node);
        let run_batches =
            async move || run_batches_of_all_keys(&weak_node, &mut leader_receiver).await;
        tokio::spawn(restart_on_panic(run_batches, || {
            tracing::error!(
                "the task that runs the calls of waiting requests panicked; it runs again"
            );
        }));
        node
    }

    /// Returns `true` if the circuit breaker is open, so that calls fail immediately, except for probes.
    pub fn is_breaker_open(&self) -> bool {
        self.breaker.is_open()
    }

    /// Returns the reason why the server is not reachable: no connection has ever been established, or the circuit
    /// breaker is open. `None` if it is reachable. An open breaker closes also without requests, because the node sends
    /// probes of its own.
    pub fn unreachable_reason(&self) -> Option<StoreError> {
        let is_reachable = self.executor.was_connected() && !self.breaker.is_open();
        (!is_reachable).then(|| self.executor.connection_error().unwrap_or(StoreError::BreakerOpen))
    }

    /// Returns `host:port` as reported by the nodes of a Cluster, or an empty text if the server is not part of a
    /// Cluster.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Decides a request by `deadline` at the latest: with its own call, or with a call that it shares with other
    /// waiting requests.
    ///
    /// The breaker counts script calls, not the requests that wait for a call: a slow call is one failure, regardless
    /// of the number of requests that wait for it.
    pub async fn decide(
        &self,
        batch_key: BatchKey,
        request: &Arc<ScriptRequest>,
        deadline: Instant,
    ) -> ScriptResult {
        if self.breaker.would_reject_call(self.call_settings.clocks.machine_now()) {
            return Err(Failure::Server(StoreError::BreakerOpen));
        }
        match self.coalescer.enqueue(batch_key, (request.clone(), deadline)) {
            EnqueueResult::Leader((request, _), _leader_guard) => {
                let mut results = self.decide_batch(batch_key, &[&request], deadline).await;
                results
                    .pop()
                    .unwrap_or_else(|| Err(Failure::Server(self.executor.timeout_error(true))))
            }
            EnqueueResult::Follower(mut handle) => {
                self.wait_for_batch_result(&mut handle, deadline).await
            }
            EnqueueResult::Full => Err(Failure::Server(StoreError::Unavailable(
                "too many requests wait for earlier calls to Redis; check its latency".to_owned(),
            ))),
        }
    }

    /// Makes the requests of a batch key wait until the returned guard is dropped. Then they share a call. Returns
    /// `None` if the key has a call in flight already.
    pub fn try_pause_queue(&self, batch_key: BatchKey) -> Option<BatchLeaderGuard> {
        self.coalescer.try_pause_queue(batch_key)
    }

    /// Waits for the result of the batch that includes this request, until `deadline` at the latest.
    async fn wait_for_batch_result(
        &self,
        handle: &mut WaitingJobHandle<BatchKey, QueuedRequest, ScriptResult>,
        deadline: Instant,
    ) -> ScriptResult {
        match timeout_at(deadline, handle.reply()).await {
            Ok(Some(result)) => result,
            // The batch was dropped without a result, because the runtime is shutting down. The request may have been
            // sent.
            Ok(None) => Err(Failure::Server(self.executor.timeout_error(true))),
            Err(_) => Err(Failure::Server(self.executor.timeout_error(!handle.cancel()))),
        }
    }

    /// Decides all requests of a batch with one call. Returns their results in the order of the requests.
    async fn decide_batch(
        &self,
        batch_key: BatchKey,
        requests: &[&ScriptRequest],
        deadline: Instant,
    ) -> Vec<ScriptResult> {
        match self.run_operation(&DecideBatch(requests), batch_key.is_asking, deadline).await {
            Ok(results) => results,
            // A script that fails because of one request may have charged the others, so the effect on each request is
            // unknown.
            Err(failure @ Failure::Key(_)) if requests.len() > 1 => {
                requests.iter().map(|_| Err(failure.clone().into_partial_call_failure())).collect()
            }
            Err(failure) => requests.iter().map(|_| Err(failure.clone())).collect(),
        }
    }

    /// Runs an operation in one script call, by `deadline` at the latest, unless the circuit breaker rejects the call.
    /// Reports the result of the call to the breaker.
    pub async fn run_operation<O: ScriptOperation>(
        &self,
        operation: &O,
        is_asking: bool,
        deadline: Instant,
    ) -> Result<O::Reply, Failure> {
        let (pass, is_probe) = match self.breaker.admit(self.call_settings.clocks.machine_now()) {
            BreakerDecision::Call(pass) => (pass, false),
            BreakerDecision::Probe(pass) => (pass, true),
            BreakerDecision::Reject => return Err(Failure::Server(StoreError::BreakerOpen)),
        };
        let reply = self.executor.run_operation(operation, is_asking, deadline).await;
        let now = self.call_settings.clocks.machine_now();
        let server_error = match &reply {
            Err(Failure::Server(error)) => Some(error),
            _ => None,
        };
        let change = match server_error {
            // A lost connection is not a failure of the server: the next call needs a new connection, and shows whether
            // the server can be reached.
            Some(StoreError::ConnectionLost(_)) if !is_probe => None,
            Some(_) => self.breaker.record_failure(pass, now),
            None => self.breaker.record_success(pass, now),
        };
        if matches!(change, Some(BreakerStateChange::Opened(_)))
            || (is_probe && server_error.is_some())
        {
            // The server may hang forever, and its name may resolve to another server by now: connect again.
            self.executor.replace_connection();
        }
        match (change, server_error) {
            (Some(change @ BreakerStateChange::Opened(_)), Some(error)) => {
                if !self.is_probing.swap(true, Ordering::AcqRel) {
                    self.runtime.spawn(probe_while_breaker_is_open(
                        self.weak_self.clone(),
                        self.connection_restored.clone(),
                    ));
                }
                tracing::warn!(
                    class = error.class(),
                    error = error.to_string(),
                    "{}: {change}; requests are decided by on_store_error until Redis responds",
                    self.log_name
                );
            }
            (Some(change), _) => tracing::info!("{}: {change}", self.log_name),
            (None, _) => {}
        }
        reply
    }

    /// Returns the time until the next probe is allowed; `None` if the breaker is closed.
    fn time_until_probe(&self) -> Option<Duration> {
        self.breaker.time_until_probe(self.call_settings.clocks.machine_now())
    }

    /// Sends a probe that charges nothing, if one is due.
    async fn send_background_probe(&self) {
        let deadline = Instant::now() + self.call_settings.timeout;
        if let Err(failure) = self.run_operation(&ScriptProbe, false, deadline).await {
            tracing::debug!(
                class = failure.into_error().class(),
                "{}: probe failed",
                self.log_name
            );
        }
    }

    /// Takes the waiting requests for the next call of a batch key. Requests whose deadline has passed get an error and
    /// are not returned, and neither are canceled requests. Returns an empty list if no request is waiting.
    fn take_next_batch(
        &self,
        leader_guard: &BatchLeaderGuard,
    ) -> Vec<WaitingJob<QueuedRequest, ScriptResult>> {
        loop {
            let mut hits = 0;
            let batch = leader_guard.next_batch(|(request, _)| {
                hits += request.hits.len();
                !leader_guard.key().one_request_per_call && hits <= MAX_HITS_PER_BATCH
            });
            let (now, batch_len) = (Instant::now(), batch.len());
            let mut live = Vec::with_capacity(batch_len);
            for waiter in batch {
                if waiter.job.1 > now {
                    if waiter.claim() {
                        live.push(waiter);
                    }
                } else {
                    let _ =
                        waiter.reply.send(Err(Failure::Server(self.executor.timeout_error(false))));
                }
            }
            if !live.is_empty() || batch_len == 0 {
                return live;
            }
        }
    }

    /// Runs one batch of a key after another, until no request is waiting. Sends each waiting caller its result.
    async fn run_batches_until_none_waits(&self, leader_guard: BatchLeaderGuard) {
        loop {
            let batch = self.take_next_batch(&leader_guard);
            if batch.is_empty() {
                return;
            }
            let requests: Vec<&ScriptRequest> = batch.iter().map(|waiter| &*waiter.job.0).collect();
            let deadline = Instant::now() + self.call_settings.timeout;
            let results = self.decide_batch(leader_guard.key(), &requests, deadline).await;
            for (waiter, result) in batch.into_iter().zip(results) {
                // Sending fails if the request was canceled, which is no error.
                let _ = waiter.reply.send(result);
            }
        }
    }
}

/// Runs the calls of waiting requests, until the node is dropped. Each batch key gets its own task, so that the calls
/// of different keys run concurrently.
async fn run_batches_of_all_keys(
    node: &Weak<Node>,
    leader_receiver: &mut LeaderReceiver<BatchKey, QueuedRequest, ScriptResult>,
) {
    while let Some(leader_guard) = leader_receiver.next_leader().await {
        let Some(node) = node.upgrade() else { return };
        tokio::spawn(async move { node.run_batches_until_none_waits(leader_guard).await });
    }
}

/// Sends probes, until the circuit breaker is closed or the node is dropped. At first, for [`BACKGROUND_PROBE_DELAY`],
/// leaves a due probe to a request, unless the connection is restored. Boxed, because the future of a probe contains
/// the future of a call, which starts these probes.
fn probe_while_breaker_is_open(
    node: Weak<Node>,
    connection_restored: Arc<Notify>,
) -> BoxFuture<'static, ()> {
    let send_probes = async move || {
        loop {
            while let Some(wait) = node.upgrade().and_then(|node| node.time_until_probe()) {
                let _ =
                    timeout(wait + BACKGROUND_PROBE_DELAY, connection_restored.notified()).await;
                if let Some(node) = node.upgrade()
                    && node.time_until_probe() == Some(Duration::ZERO)
                {
                    node.send_background_probe().await;
                }
            }
            let Some(node) = node.upgrade() else { return };
            node.is_probing.store(false, Ordering::Release);
            // If the breaker opened again before the flag was cleared, no other task was started, so this task
            // continues.
            if node.time_until_probe().is_none() || node.is_probing.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    };
    Box::pin(restart_on_panic(send_probes, || {
        tracing::error!("the task that probes Redis panicked; it runs again");
    }))
}
