//! One Redis server: its connection, its circuit breaker, the timeout of calls, and the coalescing of waiting requests
//! into one call.
//!
//! The breaker counts failed script calls, not failed requests. Only a call that may have reached Redis fails with
//! [`StoreError::TimedOut`], because it may have charged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use slidegate::{StoreError, Timestamp};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use crate::breaker::{self, Breaker, BreakerDecision, StateChange};
use crate::call::{self, ScriptCall};
use crate::clocks::Clocks;
use crate::coalesce::{Coalescer, Enqueued, WaitHandle, Waiter};
use crate::connect::{ConnectionHandle, ConnectionSource, ReconnectingConnection};
use crate::failure::Failure;
use crate::maintenance_op::MaintenanceOp;
use crate::reply::{DecodeError, HIT_REPLY_BYTES, ScriptReply};
use crate::script::Scripts;
use crate::script_request::ScriptRequest;

/// Maximum number of hits in a call that several requests share. A request with more hits is sent alone.
const MAX_HITS_PER_BATCH: usize = 512;

/// Settings that all servers of a store share.
#[derive(Clone, Debug)]
pub struct CallSettings {
    pub timeout: Duration,
    /// Additional time to live of a key in seconds, beyond the time until which its counters are needed.
    pub expiry_margin_s: u32,
    pub clocks: Arc<Clocks>,
}

/// A key by which waiting requests are grouped: only requests with the same key share a call, and the calls of a key
/// run one after another. A Cluster has a key for each slot, a single server has one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BatchKey {
    pub slot: u16,
    /// Whether the slot is being migrated to this server, so that the command `ASKING` must precede the call.
    pub is_asking: bool,
    /// Whether each request must be sent in its own call.
    pub is_alone: bool,
}

/// The reply to a request and the local time at which the request was sent, or the reason why the call failed.
pub type ScriptResult = Result<(ScriptReply, Timestamp), Failure>;

/// A request and its deadline.
type QueuedRequest = (Arc<ScriptRequest>, Instant);

/// A Redis server that calls are sent to.
pub struct Server {
    /// `host:port` as reported by the nodes of a Cluster; empty if the server is not part of a Cluster.
    address: Box<str>,
    call_settings: CallSettings,
    connection: ReconnectingConnection,
    breaker: Arc<Breaker>,
    scripts: Scripts,
    coalescer: Arc<Coalescer<BatchKey, QueuedRequest, ScriptResult>>,
    /// Runtime on which calls for waiting requests run.
    runtime: Handle,
}

/// A flag that is set while a call may have reached Redis, and thus may have charged.
#[derive(Debug, Default)]
struct CommandSentFlag(AtomicBool);

impl CommandSentFlag {
    fn set_sent(&self, sent: bool) {
        self.0.store(sent, Ordering::Relaxed);
    }

    fn is_sent(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A guard of a batch key that has a call in flight. Dropping the guard sends the requests that wait for this key as
/// the next batch.
pub struct LeaderGuard {
    server: Arc<Server>,
    batch_key: BatchKey,
}

impl Drop for LeaderGuard {
    fn drop(&mut self) {
        let batch = self.server.end_call_and_take_next_batch(self.batch_key);
        if !batch.is_empty() {
            self.server
                .runtime
                .spawn(self.server.clone().run_batches_until_none_waits(self.batch_key, batch));
        }
    }
}

impl Server {
    /// Creates a server and connects to it in the background. `address` is empty if the server is not part of a
    /// Cluster. Must be called within a tokio runtime.
    pub fn open(address: &str, source: ConnectionSource, call_settings: CallSettings) -> Self {
        let breaker = Arc::new(Breaker::new(breaker::Settings {
            probe_timeout: 2 * call_settings.timeout,
            ..breaker::Settings::default()
        }));
        let on_reconnect = {
            let (breaker, clocks) = (breaker.clone(), call_settings.clocks.clone());
            move || breaker.allow_probe(clocks.machine_now())
        };
        Self {
            address: address.into(),
            connection: ReconnectingConnection::open(source, on_reconnect),
            breaker,
            scripts: Scripts::new(),
            coalescer: Arc::new(Coalescer::new()),
            runtime: Handle::current(),
            call_settings,
        }
    }

    /// Returns `true` if the circuit breaker is open, so that calls fail immediately, except for probes.
    pub fn is_breaker_open(&self) -> bool {
        self.breaker.is_open()
    }

    /// Returns `true` if a connection has ever been established and the circuit breaker allows a call. An open breaker
    /// allows a call when its next probe is due. Otherwise an instance of slidegate that gets requests only while it
    /// reports Redis as reachable would never send the probe.
    pub fn is_reachable(&self) -> bool {
        self.connection.was_connected()
            && !self.breaker.rejects(self.call_settings.clocks.machine_now())
    }

    /// Returns `host:port` as reported by the nodes of a Cluster, or an empty text if the server is not part of a
    /// Cluster.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the name of the server for log messages.
    fn server_name_for_log(&self) -> String {
        match &*self.address {
            "" => "Redis".to_owned(),
            address => format!("Redis at {address}"),
        }
    }

    /// Decides a request by `deadline` at the latest: with its own call, or with a call that it shares with other
    /// waiting requests.
    ///
    /// The breaker counts script calls, not the requests that wait for a call: a slow call is one failure, regardless
    /// of the number of requests that wait for it.
    pub async fn decide(
        self: &Arc<Self>,
        batch_key: BatchKey,
        request: &Arc<ScriptRequest>,
        deadline: Instant,
    ) -> ScriptResult {
        if self.breaker.rejects(self.call_settings.clocks.machine_now()) {
            return Err(Failure::Server(StoreError::BreakerOpen));
        }
        match self.coalescer.enqueue(batch_key, (request.clone(), deadline)) {
            Enqueued::Leader((request, _)) => {
                let _leader_guard = LeaderGuard { server: self.clone(), batch_key };
                let sent = CommandSentFlag::default();
                let call_future = self.decide_request_in_own_call(&request, batch_key, &sent);
                self.make_call_with_breaker(self.wait_for_call_until_deadline(
                    deadline,
                    &sent,
                    call_future,
                ))
                .await
            }
            Enqueued::Follower(mut handle) => {
                self.wait_for_batch_result(&mut handle, deadline).await
            }
            Enqueued::Full => Err(Failure::Server(StoreError::Unavailable(
                "too many waiting requests".to_owned(),
            ))),
        }
    }

    /// Makes the requests of a batch key wait until the returned guard is dropped. Then they share a call. Returns
    /// `None` if the key has a call in flight already.
    pub fn try_hold(self: &Arc<Self>, batch_key: BatchKey) -> Option<LeaderGuard> {
        self.coalescer.try_hold(batch_key).then(|| LeaderGuard { server: self.clone(), batch_key })
    }

    /// Waits for the result of the batch that includes this request, until `deadline` at the latest.
    async fn wait_for_batch_result(
        &self,
        handle: &mut WaitHandle<BatchKey, QueuedRequest, ScriptResult>,
        deadline: Instant,
    ) -> ScriptResult {
        match timeout_at(deadline, handle.reply()).await {
            Ok(Some(result)) => result,
            // The runtime is shutting down.
            Ok(None) => Err(Failure::Server(self.timeout_error(true))),
            Err(_) => Err(Failure::Server(self.timeout_error(!handle.cancel()))),
        }
    }

    /// Runs a maintenance operation in its own call, which it shares with no other request.
    pub async fn run_maintenance(
        &self,
        operation: &MaintenanceOp<'_>,
        is_asking: bool,
        deadline: Instant,
    ) -> Result<ScriptReply, Failure> {
        let sent = CommandSentFlag::default();
        let call_future = async {
            let handle = self.wait_for_connection().await?;
            let call = operation.call(&self.scripts, self.call_settings.clocks.counting_now());
            let value = self.run_script(&call, is_asking, &handle, &sent).await?;
            let reply = string_reply_bytes(&value).and_then(|bytes| operation.decode(bytes).ok());
            reply.ok_or_else(|| self.replace_connection_after_malformed_reply(&handle))
        };
        self.make_call_with_breaker(self.wait_for_call_until_deadline(deadline, &sent, call_future))
            .await
    }

    /// Makes a call and reports its result to the circuit breaker. If the breaker rejects the call, `call_future` is
    /// never polled.
    async fn make_call_with_breaker<T>(
        &self,
        call_future: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let (pass, is_probe) = match self.breaker.admit(self.call_settings.clocks.machine_now()) {
            BreakerDecision::Call(pass) => (pass, false),
            BreakerDecision::Probe(pass) => (pass, true),
            BreakerDecision::Reject => return Err(Failure::Server(StoreError::BreakerOpen)),
        };
        let reply = call_future.await;
        let now = self.call_settings.clocks.machine_now();
        let server_error = match &reply {
            Err(Failure::Server(error)) => Some(error),
            _ => None,
        };
        let change = match server_error {
            Some(_) => self.breaker.record_failure(pass, now),
            None => self.breaker.record_success(pass, now),
        };
        if matches!(change, Some(StateChange::Opened(_))) || (is_probe && server_error.is_some()) {
            // The server may hang forever, and its name may resolve to another server by now: connect again.
            self.connection.replace_current();
        }
        match (change, server_error) {
            (Some(change @ StateChange::Opened(_)), Some(error)) => {
                tracing::warn!(%error, "{}: {change}", self.server_name_for_log());
            }
            (Some(change), _) => tracing::info!("{}: {change}", self.server_name_for_log()),
            (None, _) => {}
        }
        reply
    }

    /// Waits for a call. Returns an error if the call has not finished by the deadline. The error reports a possible
    /// charge if the flag `sent` of the call is set.
    async fn wait_for_call_until_deadline<T>(
        &self,
        deadline: Instant,
        sent: &CommandSentFlag,
        call_future: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        match timeout_at(deadline, call_future).await {
            Ok(reply) => reply,
            Err(_) => Err(Failure::Server(self.timeout_error(sent.is_sent()))),
        }
    }

    /// Returns the error for a call that did not finish by its deadline. `is_sent` is `true` if the call may have
    /// reached Redis, and thus may have charged.
    fn timeout_error(&self, is_sent: bool) -> StoreError {
        match is_sent {
            true => {
                StoreError::TimedOut(format!("no response within {:?}", self.call_settings.timeout))
            }
            false => StoreError::Unavailable(match self.connection.last_error() {
                Some(last_error) => format!("no connection: {last_error}"),
                None => format!(
                    "not sent within {:?}: earlier calls are slow",
                    self.call_settings.timeout
                ),
            }),
        }
    }

    /// Waits until there is a connection to the server.
    async fn wait_for_connection(&self) -> Result<ConnectionHandle, Failure> {
        let closed = || Failure::Server(self.timeout_error(false));
        self.connection.connection().await.ok_or_else(closed)
    }

    /// Ends the current call of a batch key and returns the waiting requests for its next call. Requests whose deadline
    /// has passed get an error and are not returned.
    fn end_call_and_take_next_batch(
        &self,
        batch_key: BatchKey,
    ) -> Vec<Waiter<QueuedRequest, ScriptResult>> {
        loop {
            let mut hits = 0;
            let batch = self.coalescer.next_batch(batch_key, |(request, _)| {
                hits += request.hits.len();
                !batch_key.is_alone && hits <= MAX_HITS_PER_BATCH
            });
            let (now, batch_len) = (Instant::now(), batch.len());
            let mut live = Vec::with_capacity(batch_len);
            for waiter in batch {
                if waiter.job.1 > now {
                    live.push(waiter);
                } else {
                    let _ = waiter.reply.send(Err(Failure::Server(self.timeout_error(false))));
                }
            }
            if !live.is_empty() || batch_len == 0 {
                return live;
            }
        }
    }

    /// Runs this batch, and further batches of the same key until no request is waiting.
    async fn run_batches_until_none_waits(
        self: Arc<Self>,
        batch_key: BatchKey,
        mut batch: Vec<Waiter<QueuedRequest, ScriptResult>>,
    ) {
        while !batch.is_empty() {
            self.run_one_batch(batch_key, batch).await;
            batch = self.end_call_and_take_next_batch(batch_key);
        }
    }

    /// Decides all requests of a batch with one call, and sends each waiting caller its result.
    async fn run_one_batch(
        &self,
        batch_key: BatchKey,
        batch: Vec<Waiter<QueuedRequest, ScriptResult>>,
    ) {
        let requests: Vec<&ScriptRequest> = batch.iter().map(|waiter| &*waiter.job.0).collect();
        let deadline = Instant::now() + self.call_settings.timeout;
        let sent = CommandSentFlag::default();
        let call_future = self.decide_requests_in_one_call(&requests, batch_key, &sent);
        let reply = self
            .make_call_with_breaker(self.wait_for_call_until_deadline(deadline, &sent, call_future))
            .await;
        let results: Vec<ScriptResult> = match reply {
            Ok((replies, sent_at)) => replies
                .into_iter()
                .zip(&requests)
                .map(|(reply, request)| {
                    let reply = reply.map_err(|_| Failure::Key(wrong_type_error(request)))?;
                    Ok((reply, sent_at))
                })
                .collect(),
            // A script that fails on one request may have charged the others.
            Err(failure @ Failure::Key(_)) if requests.len() > 1 => {
                requests.iter().map(|_| Err(failure.clone().into_partial())).collect()
            }
            Err(failure) => requests.iter().map(|_| Err(failure.clone())).collect(),
        };
        for (waiter, result) in batch.into_iter().zip(results) {
            // The receiver is gone if the request was canceled.
            let _ = waiter.reply.send(result);
        }
    }

    /// Decides one request with one call.
    async fn decide_request_in_own_call(
        &self,
        request: &ScriptRequest,
        batch_key: BatchKey,
        sent: &CommandSentFlag,
    ) -> ScriptResult {
        let (mut replies, sent_at) =
            self.decide_requests_in_one_call(&[request], batch_key, sent).await?;
        match replies.pop() {
            Some(Ok(reply)) => Ok((reply, sent_at)),
            _ => Err(Failure::Key(wrong_type_error(request))),
        }
    }

    /// Decides requests with one call. Returns the local time at which the call was sent, and for each request its
    /// reply, or an error if a key of the request has a value of the wrong type.
    async fn decide_requests_in_one_call(
        &self,
        requests: &[&ScriptRequest],
        batch_key: BatchKey,
        sent: &CommandSentFlag,
    ) -> Result<(Vec<Result<ScriptReply, DecodeError>>, Timestamp), Failure> {
        let handle = self.wait_for_connection().await?;
        let CallSettings { clocks, expiry_margin_s, .. } = &self.call_settings;
        let sent_at = clocks.local_now();
        let call =
            call::build_decide(&self.scripts, clocks.counting_now(), *expiry_margin_s, requests);
        let value = self.run_script(&call, batch_key.is_asking, &handle, sent).await?;
        let replies = decode_reply_to_each_request(requests, &value)
            .ok_or_else(|| self.replace_connection_after_malformed_reply(&handle))?;
        Ok((replies, sent_at))
    }

    /// Sends `EVALSHA`, and then `EVAL` with the source text if Redis does not know the script. If concurrent calls
    /// find that the script is missing, one of them sends the text and the others wait for it.
    async fn run_script(
        &self,
        call: &ScriptCall<'_, '_>,
        is_asking: bool,
        handle: &ConnectionHandle,
        sent: &CommandSentFlag,
    ) -> Result<Value, Failure> {
        let script = call.script;
        let evalsha = call.command("EVALSHA", &script.sha);
        loop {
            let loads = script.loads();
            sent.set_sent(true);
            match send_command(&evalsha, is_asking, handle).await {
                // Nothing was charged.
                Err(error) if is_missing_script_error(&error) => sent.set_sent(false),
                reply => {
                    return reply.map_err(|error| {
                        self.classify_error_and_replace_connection(&error, handle)
                    });
                }
            }
            let loading = script.loading.lock().await;
            if script.loads() != loads {
                continue;
            }
            sent.set_sent(true);
            let reply = send_command(&call.command("EVAL", &script.text), is_asking, handle).await;
            script.loads.fetch_add(1, Ordering::Release);
            drop(loading);
            return reply
                .map_err(|error| self.classify_error_and_replace_connection(&error, handle));
        }
    }

    /// Classifies the error of a call. Replaces the connection if it was lost, or if it is a connection to a server
    /// that is not the master.
    fn classify_error_and_replace_connection(
        &self,
        error: &RedisError,
        handle: &ConnectionHandle,
    ) -> Failure {
        if error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly) {
            // The server is no longer the master. A new connection finds the current one.
            self.connection.replace(handle);
        }
        Failure::from_redis_error(error).unwrap_or_else(|| {
            // The connection was lost, so the effect of its calls is unknown.
            self.connection.replace(handle);
            Failure::Server(StoreError::TimedOut(error.to_string()))
        })
    }

    /// Replaces the connection and returns the failure for a reply that cannot be decoded. This reply, and all later
    /// replies on the connection, may belong to other calls.
    fn replace_connection_after_malformed_reply(&self, handle: &ConnectionHandle) -> Failure {
        self.connection.replace(handle);
        Failure::Server(StoreError::TimedOut("malformed script reply".to_owned()))
    }
}

/// Sends a command. If `is_asking` is set, `ASKING` precedes the command, because the slot is being migrated to the
/// server.
async fn send_command(
    command: &Cmd,
    is_asking: bool,
    handle: &ConnectionHandle,
) -> RedisResult<Value> {
    let mut connection = handle.connection.clone();
    if !is_asking {
        return command.query_async(&mut connection).await;
    }
    let mut pipeline = Pipeline::new();
    pipeline.cmd("ASKING").add_command(command.clone()).ignore_errors();
    let mut replies: Vec<RedisResult<Value>> = pipeline.query_async(&mut connection).await?;
    replies.pop().unwrap_or(Ok(Value::Nil))
}

/// Decodes a value into the replies to several requests. A reply is an error if a key of its request has a value of the
/// wrong type. Returns `None` if the value is malformed.
fn decode_reply_to_each_request(
    requests: &[&ScriptRequest],
    value: &Value,
) -> Option<Vec<Result<ScriptReply, DecodeError>>> {
    let mut rest = string_reply_bytes(value)?;
    let mut replies = Vec::with_capacity(requests.len());
    for request in requests {
        let (reply, others) = rest.split_at_checked(HIT_REPLY_BYTES * request.hits.len())?;
        rest = others;
        match ScriptReply::decode(request.hits.len(), reply) {
            Err(DecodeError::Malformed) => return None,
            reply => replies.push(reply),
        }
    }
    rest.is_empty().then_some(replies)
}

/// Returns the error for a request with a key whose value was not written by slidegate.
fn wrong_type_error(request: &ScriptRequest) -> StoreError {
    let keys: Vec<&str> = request.hits.iter().map(|hit| hit.key.as_str()).collect();
    StoreError::Unavailable(format!(
        "FOREIGN value not written by slidegate at {}",
        keys.join(" or ")
    ))
}

/// Returns `true` if Redis did not know the script. Such a call has charged nothing.
fn is_missing_script_error(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Returns the bytes of a string reply, or `None` for a reply of another type.
fn string_reply_bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}
