//! Executes the scripts of one Redis server: sends them, as source text if Redis does not know them, and decodes the
//! replies.
//!
//! A connection is replaced if it was lost, if its server is not the master, if a reply on it cannot be decoded, or if
//! a call on it timed out and nothing was received during the call.
//!
//! A call whose connection is lost is sent again on a new connection, until its deadline, if it cannot be carried out
//! twice: because nothing was written to the connection since the call was passed to it, so that Redis has not received
//! the call; or because a repetition has no further effect ([`ScriptOperation::is_repeatable`]). Any other call fails
//! with [`StoreError::ConnectionLost`]: Redis may have received it just before the connection was closed, and a second
//! charge would be worse than a decision without Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use slidegate::StoreError;
use slidegate::store::RejectionClass;
use tokio::time::{Instant, timeout_at};

use crate::call::ScriptOperation;
use crate::clocks::Clocks;
use crate::connection::{ConnectionHandle, ReconnectingConnection};
use crate::failure::{self, Failure};
use crate::reply::DecodeError;
use crate::script::Scripts;

/// Settings that all servers of a store share.
#[derive(Clone, Debug)]
pub struct CallSettings {
    pub timeout: Duration,
    /// Additional time to live of a key in seconds, beyond the time until which its counters are needed.
    pub expiry_margin_s: u32,
    pub clocks: Arc<Clocks>,
}

/// A call, and the connection on which it may have reached Redis, and thus may have charged.
#[derive(Debug)]
struct SentCall {
    /// Whether the command `ASKING` precedes the call, because the slot is being migrated to the server.
    is_asking: bool,
    /// Whether a repetition of the call has no further effect.
    is_repeatable: bool,
    /// The number of the connection; 0 if the call has not reached Redis.
    connection: AtomicU64,
    /// The number of reads that the connection had made before the call. If it is the same when the call times out,
    /// nothing was received during the call.
    reads_before: AtomicU64,
}

impl SentCall {
    /// Creates a call that has not been sent.
    fn new(is_asking: bool, is_repeatable: bool) -> Self {
        Self { is_asking, is_repeatable, connection: 0.into(), reads_before: 0.into() }
    }

    fn set_sent(&self, handle: &ConnectionHandle) {
        self.reads_before.store(handle.connection.reads(), Ordering::Relaxed);
        self.connection.store(handle.number, Ordering::Relaxed);
    }

    fn clear(&self) {
        self.connection.store(0, Ordering::Relaxed);
    }

    /// Returns `true` if the call may have reached Redis.
    fn is_sent(&self) -> bool {
        self.connection.load(Ordering::Relaxed) != 0
    }
}

/// The connection to a Redis server, and the scripts that it may know.
pub struct ScriptExecutor {
    connection: ReconnectingConnection,
    scripts: Scripts,
    call_settings: CallSettings,
}

impl ScriptExecutor {
    /// Creates an executor of scripts on a connection.
    pub fn new(connection: ReconnectingConnection, call_settings: CallSettings) -> Self {
        Self { connection, scripts: Scripts::new(), call_settings }
    }

    /// Returns `true` if a connection has ever been established.
    pub fn was_connected(&self) -> bool {
        self.connection.was_connected()
    }

    /// Returns the reason why there is no connection; `None` if there is one.
    pub fn connection_error(&self) -> Option<StoreError> {
        self.connection.last_error().map(|cause| failure::no_connection_error(&cause))
    }

    /// Requests that another connection is opened and replaces the current one.
    pub fn replace_connection(&self) {
        self.connection.replace_current();
    }

    /// Runs an operation in one script call, by `deadline` at the latest. If `is_asking` is set, the slot of its keys
    /// is being migrated to this server, so the command `ASKING` precedes the call.
    pub async fn run_operation<O: ScriptOperation>(
        &self,
        operation: &O,
        is_asking: bool,
        deadline: Instant,
    ) -> Result<O::Reply, Failure> {
        let sent = SentCall::new(is_asking, operation.is_repeatable());
        match timeout_at(deadline, self.call_script(operation, &sent)).await {
            Ok(reply) => reply,
            Err(_) => Err(Failure::Server(self.end_call_after_timeout(&sent))),
        }
    }

    /// Returns the error for a call that did not finish by its deadline, and replaces its connection if nothing was
    /// received on it during the call.
    fn end_call_after_timeout(&self, sent: &SentCall) -> StoreError {
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
            self.connection_error().unwrap_or_else(|| {
                StoreError::Unavailable(format!(
                    "earlier calls to Redis were still running after {:?}, so the call was not sent; \
                     check the latency of Redis, or increase the timeout",
                    self.call_settings.timeout
                ))
            })
        }
    }

    /// Sends `EVALSHA`, and then `EVAL` with the source text if Redis does not know the script. If concurrent calls
    /// find that the script is missing, one of them sends the text and the others wait for it. Decodes the reply.
    async fn call_script<O: ScriptOperation>(
        &self,
        operation: &O,
        sent: &SentCall,
    ) -> Result<O::Reply, Failure> {
        // Waits for a connection first, so that the time of the call is read when the call can be sent.
        self.connection.connection(0).await?;
        let CallSettings { clocks, expiry_margin_s, .. } = &self.call_settings;
        let call = operation.call(&self.scripts, clocks.counting_clock_now(), *expiry_margin_s);
        let script = call.script;
        let evalsha = call.command("EVALSHA", &script.sha);
        let (reply, handle) = loop {
            let load_count = script.load_count();
            match self.send(&evalsha, sent).await? {
                // Redis does not know the script, so the call has charged nothing, and counts as not sent.
                (Err(error), _) if is_missing_script_error(&error) => sent.clear(),
                reply => break reply,
            }
            let loading = script.loading.lock().await;
            if script.load_count() != load_count {
                continue;
            }
            let reply = self.send(&call.command("EVAL", &script.text), sent).await;
            script.load_count.fetch_add(1, Ordering::Release);
            drop(loading);
            break reply?;
        };
        match reply {
            Ok(Value::BulkString(bytes)) => operation.decode(&bytes).map_err(|error| match error {
                DecodeError::WrongType => Failure::foreign_value(call.keys.iter().copied()),
                DecodeError::Malformed => self.replace_connection_after_malformed_reply(&handle),
            }),
            Ok(_) => Err(self.replace_connection_after_malformed_reply(&handle)),
            Err(error) => Err(self
                .classify_error_and_replace_connection(&error, &handle)
                .with_keys(&call.keys)),
        }
    }

    /// Sends a command. If its connection is lost, sends it again, unless it could then be carried out twice (see the
    /// documentation of this module). Returns the response, which may be an error, and the connection.
    async fn send(
        &self,
        command: &Cmd,
        sent: &SentCall,
    ) -> Result<(RedisResult<Value>, ConnectionHandle), Failure> {
        let mut lost = 0;
        loop {
            let handle = self.connection.connection(lost).await?;
            let writes_before = handle.connection.writes();
            sent.set_sent(&handle);
            let error = match handle.connection.send(command, sent.is_asking).await {
                Err(error) if Failure::from_redis_error(&error).is_none() => error,
                response => return Ok((response, handle)),
            };
            // The server has closed the connection, or sent an invalid response, after which the connection cannot be
            // used.
            self.connection.replace_closed(&handle);
            let is_written = handle.connection.writes() != writes_before;
            if is_written && !sent.is_repeatable {
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

/// Returns `true` if Redis did not know the script. Such a call has charged nothing.
fn is_missing_script_error(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
