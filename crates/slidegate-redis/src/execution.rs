//! Executes the scripts of one Redis server: sends them, as source text if Redis does not know them, and decodes the
//! replies.
//!
//! A connection is replaced if it was lost, if its server is not the master, if a reply on it cannot be decoded, or if a
//! call on it timed out and nothing was received during the call.
//!
//! A call whose connection is lost is sent again on a new connection, until its deadline, if it cannot be carried out
//! twice: because nothing was written to the connection since the call was passed to it, so that Redis has not received
//! the call; or because a repetition has no further effect ([`ScriptOperation::is_repeatable`]). Any other call fails
//! with [`StoreError::ConnectionLost`]: Redis may have received it just before the connection was closed, and a second
//! charge would be worse than a decision without Redis.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::poll_immediate;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use slidegate::{RejectionClass, StoreError, Timestamp};

use crate::call::{self, ScriptCall};
use crate::clocks::Clocks;
use crate::connect::{ConnectionHandle, ConnectionSource, ReconnectingConnection};
use crate::failure::{self, Failure};
use crate::reply::{DecodeError, HIT_REPLY_BYTES, ScriptReply};
use crate::script::Scripts;
use crate::script_operation::ScriptOperation;
use crate::script_request::{ScriptMode, ScriptRequest};

/// Settings that all servers of a store share.
#[derive(Clone, Debug)]
pub struct CallSettings {
    pub timeout: Duration,
    /// Additional time to live of a key in seconds, beyond the time until which its counters are needed.
    pub expiry_margin_s: u32,
    pub clocks: Arc<Clocks>,
}

/// The reply to a request and the local time at which the request was sent, or the reason why the call failed.
pub type ScriptResult = Result<(ScriptReply, Timestamp), Failure>;

/// The connection on which a call may have reached Redis, and thus may have charged.
#[derive(Debug, Default)]
pub struct SentCall {
    /// The number of the connection; 0 if the call has not reached Redis.
    connection: AtomicU64,
    /// The number of reads that the connection had made before the call.
    reads_before: AtomicU64,
}

impl SentCall {
    fn set_sent(&self, handle: &ConnectionHandle) {
        self.reads_before.store(handle.connection.reads(), Ordering::Relaxed);
        self.connection.store(handle.number, Ordering::Relaxed);
    }

    fn clear(&self) {
        self.connection.store(0, Ordering::Relaxed);
    }

    /// Returns `true` if the call may have reached Redis.
    pub fn is_sent(&self) -> bool {
        self.connection.load(Ordering::Relaxed) != 0
    }
}

/// The options with which a call is sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendOptions {
    /// Whether the command `ASKING` precedes the call, because the slot is being migrated to the server.
    pub is_asking: bool,
    /// Whether a repetition of the call has no further effect.
    pub is_repeatable: bool,
}

/// The connection to a Redis server, and the scripts that it may know.
pub struct ScriptExecutor {
    connection: ReconnectingConnection,
    scripts: Scripts,
    call_settings: CallSettings,
}

impl ScriptExecutor {
    /// Creates an executor and connects to the server in the background. `on_reconnect` is called as documented at
    /// [`ReconnectingConnection::open`].
    pub fn open(
        source: ConnectionSource,
        call_settings: CallSettings,
        on_reconnect: impl Fn() + Send + 'static,
    ) -> Self {
        let connection = ReconnectingConnection::open(source, call_settings.timeout, on_reconnect);
        Self { connection, scripts: Scripts::new(), call_settings }
    }

    /// Returns `true` if a connection has ever been established.
    pub fn was_connected(&self) -> bool {
        self.connection.was_connected()
    }

    /// Requests that another connection is opened and replaces the current one.
    pub fn replace_connection(&self) {
        self.connection.replace_current();
    }

    /// Decides one request with one call.
    pub async fn decide_request(
        &self,
        request: &ScriptRequest,
        is_asking: bool,
        sent: &SentCall,
    ) -> ScriptResult {
        let (mut replies, sent_at) =
            self.decide_requests_in_one_call(&[request], is_asking, sent).await?;
        match replies.pop() {
            Some(Ok(reply)) => Ok((reply, sent_at)),
            _ => Err(foreign_value_failure(request)),
        }
    }

    /// Decides all requests of a batch with one call. Returns their results in the order of the requests.
    pub async fn decide_batch(
        &self,
        requests: &[&ScriptRequest],
        is_asking: bool,
        sent: &SentCall,
    ) -> Result<Vec<ScriptResult>, Failure> {
        let (replies, sent_at) =
            self.decide_requests_in_one_call(requests, is_asking, sent).await?;
        let results = replies.into_iter().zip(requests).map(|(reply, request)| {
            let reply = reply.map_err(|_| foreign_value_failure(request))?;
            Ok((reply, sent_at))
        });
        Ok(results.collect())
    }

    /// Runs an operation in its own call, which it shares with no other request.
    pub async fn run_operation<O: ScriptOperation>(
        &self,
        operation: &O,
        is_asking: bool,
        sent: &SentCall,
    ) -> Result<O::Reply, Failure> {
        self.wait_for_connection(0).await?;
        let CallSettings { clocks, expiry_margin_s, .. } = &self.call_settings;
        let call = operation.call(&self.scripts, clocks.counting_now(), *expiry_margin_s);
        let options = SendOptions { is_asking, is_repeatable: operation.is_repeatable() };
        self.run_script(&call, options, sent, |value| {
            operation.decode(string_reply_bytes(value)?).ok()
        })
        .await
    }

    /// Runs a script that uses no key. In contrast to `PING`, this needs no other access rights than a decision.
    pub async fn run_empty_script(&self, sent: &SentCall) -> Result<(), Failure> {
        let mut command = redis::cmd("EVAL");
        command.arg("return 1").arg(0);
        let options = SendOptions { is_repeatable: true, ..SendOptions::default() };
        let (reply, handle) = self.send(&command, options, sent).await?;
        reply.map(drop).map_err(|error| self.classify_error_and_replace_connection(&error, &handle))
    }

    /// Returns the error for a call that did not finish by its deadline, and replaces its connection if nothing was
    /// received on it during the call.
    pub fn end_call_after_timeout(&self, sent: &SentCall) -> StoreError {
        let number = sent.connection.load(Ordering::Relaxed);
        self.connection.replace_if_silent(number, sent.reads_before.load(Ordering::Relaxed));
        self.timeout_error(sent.is_sent())
    }

    /// Returns the error for a call that did not finish by its deadline. `is_sent` is `true` if the call may have
    /// reached Redis, and thus may have charged.
    pub fn timeout_error(&self, is_sent: bool) -> StoreError {
        if is_sent {
            StoreError::TimedOut(format!(
                "no response from Redis within {:?}; check its latency, or increase the timeout",
                self.call_settings.timeout
            ))
        } else {
            match self.connection.last_error() {
                Some(last_error) => failure::no_connection_error(&last_error),
                None => StoreError::Unavailable(format!(
                    "earlier calls to Redis were still running after {:?}, so the call was not sent; \
                     check the latency of Redis, or increase the timeout",
                    self.call_settings.timeout
                )),
            }
        }
    }

    /// Waits until there is a connection to the server with a higher number than `lost`.
    async fn wait_for_connection(&self, lost: u64) -> Result<ConnectionHandle, Failure> {
        let closed = || Failure::Server(self.timeout_error(false));
        self.connection.connection(lost).await.ok_or_else(closed)
    }

    /// Decides requests with one call. Returns the local time at which the call was sent, and for each request its
    /// reply, or an error if a key of the request has a value of the wrong type.
    async fn decide_requests_in_one_call(
        &self,
        requests: &[&ScriptRequest],
        is_asking: bool,
        sent: &SentCall,
    ) -> Result<(Vec<Result<ScriptReply, DecodeError>>, Timestamp), Failure> {
        self.wait_for_connection(0).await?;
        let CallSettings { clocks, expiry_margin_s, .. } = &self.call_settings;
        let sent_at = clocks.local_now();
        let call =
            call::build_decide(&self.scripts, clocks.counting_now(), *expiry_margin_s, requests);
        let is_repeatable = requests.iter().all(|request| request.mode == ScriptMode::Peek);
        let options = SendOptions { is_asking, is_repeatable };
        let decode = |value: &Value| decode_reply_to_each_request(requests, value);
        let replies = self.run_script(&call, options, sent, decode).await?;
        Ok((replies, sent_at))
    }

    /// Sends `EVALSHA`, and then `EVAL` with the source text if Redis does not know the script. If concurrent calls
    /// find that the script is missing, one of them sends the text and the others wait for it. Decodes the reply.
    async fn run_script<T>(
        &self,
        call: &ScriptCall<'_, '_>,
        options: SendOptions,
        sent: &SentCall,
        decode: impl Fn(&Value) -> Option<T>,
    ) -> Result<T, Failure> {
        let script = call.script;
        let evalsha = call.command("EVALSHA", &script.sha);
        let (reply, handle) = loop {
            let loads = script.loads();
            match self.send(&evalsha, options, sent).await? {
                // Nothing was charged.
                (Err(error), _) if is_missing_script_error(&error) => sent.clear(),
                reply => break reply,
            }
            let loading = script.loading.lock().await;
            if script.loads() != loads {
                continue;
            }
            let reply = self.send(&call.command("EVAL", &script.text), options, sent).await;
            script.loads.fetch_add(1, Ordering::Release);
            drop(loading);
            break reply?;
        };
        let value = reply.map_err(|error| {
            self.classify_error_and_replace_connection(&error, &handle).with_keys(&call.keys)
        })?;
        decode(&value).ok_or_else(|| self.replace_connection_after_malformed_reply(&handle))
    }

    /// Sends a command, again if its connection is lost and it cannot be carried out twice (see the documentation of this
    /// module). Returns the response, which may be an error, and the connection.
    async fn send(
        &self,
        command: &Cmd,
        options: SendOptions,
        sent: &SentCall,
    ) -> Result<(RedisResult<Value>, ConnectionHandle), Failure> {
        let mut lost = 0;
        loop {
            let handle = self.wait_for_connection(lost).await?;
            let writes_before = handle.connection.writes();
            sent.set_sent(&handle);
            let error = match send_command(command, options.is_asking, &handle).await {
                Err(error) if Failure::from_redis_error(&error).is_none() => error,
                response => return Ok((response, handle)),
            };
            // The connection has been closed, or an invalid response closes it.
            self.connection.replace_closed(&handle);
            let is_written = handle.connection.writes() != writes_before;
            if is_written && !options.is_repeatable {
                return Err(Failure::Server(if error.is_io_error() {
                    StoreError::ConnectionLost(error.to_string())
                } else {
                    StoreError::TimedOut(error.to_string())
                }));
            }
            if !is_written {
                sent.clear();
            }
            lost = handle.number;
        }
    }

    /// Classifies the error response to a call. Replaces the connection if its server is not the master.
    fn classify_error_and_replace_connection(
        &self,
        error: &RedisError,
        handle: &ConnectionHandle,
    ) -> Failure {
        if failure::rejection_class(error) == Some(RejectionClass::ReadOnly) {
            // The server is no longer the master. A new connection finds the current one.
            self.connection.replace(handle);
        }
        Failure::from_redis_error(error)
            .unwrap_or_else(|| Failure::Server(StoreError::TimedOut(error.to_string())))
    }

    /// Replaces the connection and returns the failure for a reply that cannot be decoded. This reply, and all later
    /// replies on the connection, may belong to other calls.
    fn replace_connection_after_malformed_reply(&self, handle: &ConnectionHandle) -> Failure {
        self.connection.replace(handle);
        Failure::Server(StoreError::TimedOut(
            "Redis returned an invalid reply to the script; reconnecting".to_owned(),
        ))
    }
}

/// Sends a command. If `is_asking` is set, `ASKING` precedes the command, because the slot is being migrated to the
/// server.
///
/// Fails as soon as the connection has been closed. The `redis` crate alone could wait forever: a command that enters its
/// queue at the moment at which the connection is closed is neither sent nor dropped.
async fn send_command(
    command: &Cmd,
    is_asking: bool,
    handle: &ConnectionHandle,
) -> RedisResult<Value> {
    let mut response = pin!(query(command, is_asking, handle));
    tokio::select! {
        biased;
        response = &mut response => response,
        // The response may have arrived just before.
        () = handle.connection.closed() => poll_immediate(response)
            .await
            .unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::BrokenPipe).into())),
    }
}

async fn query(command: &Cmd, is_asking: bool, handle: &ConnectionHandle) -> RedisResult<Value> {
    let mut connection = handle.connection.commands.clone();
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

/// Returns the failure of a request with a key whose value was not written by slidegate.
fn foreign_value_failure(request: &ScriptRequest) -> Failure {
    Failure::foreign_value(request.hits.iter().map(|hit| hit.key.as_str()))
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
