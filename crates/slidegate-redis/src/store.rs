//! The store: every request one script call.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use slidegate::store::Outcomes;
use slidegate::{Clock, Hit, Receipt, Store, StoreError, SystemClock, Taken, Timestamp};

use crate::breaker::{self, Admit, Breaker, Change};
use crate::call::{Call, Mode, Wording, give_back};
use crate::connect::{ConnectError, Link, Settings, Shared};
use crate::reply;
use crate::script::Scripts;

/// Counts in Redis.
pub struct RedisStore {
    wording: Wording,
    scripts: Scripts,
    link: Link,
    breaker: Breaker,
    /// For the breaker.
    time: SystemClock,
    /// For counting. None is Redis's own.
    clock: Option<Arc<dyn Clock>>,
    settings: Settings,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl RedisStore {
    /// A store at `redis://`, `rediss://` (TLS) or `unix://`. Connects in the background, within a tokio
    /// runtime.
    ///
    /// # Errors
    /// If this is no address. That nobody answers there is none: the store says so when it is asked.
    pub fn open(address: &str, settings: Settings) -> Result<Self, ConnectError> {
        let wording = Wording::of(&settings);
        let link = Link::open(address)?;
        let breaker = Breaker::new(breaker::Settings {
            probe_limit: 2 * settings.timeout,
            ..breaker::Settings::default()
        });
        let (scripts, time) = (Scripts::new(), SystemClock::new());
        Ok(Self { wording, scripts, link, breaker, time, clock: None, settings })
    }

    /// Tells Redis the time, instead of asking it: cheaper for Redis, and good where clocks agree.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock) -> Self {
        Self { clock: Some(Arc::new(clock)), ..self }
    }

    fn now(&self) -> Option<Timestamp> {
        self.clock.as_ref().map(|clock| clock.now())
    }

    /// Whether the breaker is open, so that Redis is not asked.
    pub fn is_open(&self) -> bool {
        self.breaker.is_open()
    }

    /// Calls a script, unless the breaker is open.
    async fn call(&self, call: &Call<'_>) -> Result<Vec<u8>, StoreError> {
        let (ticket, is_probe) = match self.breaker.admit(self.time.now()) {
            Admit::Call(ticket) => (ticket, false),
            Admit::Probe(ticket) => (ticket, true),
            Admit::Refuse => return Err(StoreError::Open),
        };
        let answer = self.call_in_time(call).await;
        let now = self.time.now();
        let change = match &answer {
            Err(Failure::Down(_)) => self.breaker.failed(ticket, now),
            _ => self.breaker.succeeded(ticket, now),
        };
        if matches!(change, Some(Change::Opened(_))) || (is_probe && answer.is_err()) {
            // Whoever hangs may do so for ever: a new connection finds out.
            self.link.replace_current();
        }
        match (change, &answer) {
            (Some(change @ Change::Opened(_)), Err(failure)) => {
                tracing::warn!(error = %failure.error(), "Redis: {change}");
            }
            (Some(change), _) => tracing::info!("Redis: {change}"),
            (None, _) => {}
        }
        answer.map_err(Failure::into_error)
    }

    /// Calls a script within the time-out.
    async fn call_in_time(&self, call: &Call<'_>) -> Result<Vec<u8>, Failure> {
        let mut sent = false;
        match tokio::time::timeout(self.settings.timeout, self.call_now(call, &mut sent)).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::Down(match sent {
                false => StoreError::Unavailable("no connection".to_owned()),
                true => {
                    StoreError::TimedOut(format!("no answer within {:?}", self.settings.timeout))
                }
            })),
        }
    }

    /// EVALSHA; and if Redis does not know the script, EVAL. Of many who find that at once, one sends the
    /// script, and the others wait for it.
    async fn call_now(&self, call: &Call<'_>, sent: &mut bool) -> Result<Vec<u8>, Failure> {
        let Some(shared) = self.link.connection().await else {
            return Err(Failure::Down(StoreError::Unavailable("the store is closed".to_owned())));
        };
        let script = call.script;
        let evalsha = command("EVALSHA", &script.sha, call);
        loop {
            let loads = script.loads();
            *sent = true;
            match evalsha.query_async(&mut shared.connection.clone()).await {
                Err(error) if is_no_script(&error) => {}
                answer => return self.understood(answer, &shared),
            }
            *sent = false;
            let loading = script.loading.lock().await;
            if script.loads() != loads {
                continue;
            }
            *sent = true;
            let eval = command("EVAL", &script.text, call);
            let answer = eval.query_async(&mut shared.connection.clone()).await;
            script.loads.fetch_add(1, Ordering::Release);
            drop(loading);
            return self.understood(answer, &shared);
        }
    }

    fn understood(
        &self,
        answer: Result<Value, RedisError>,
        shared: &Shared,
    ) -> Result<Vec<u8>, Failure> {
        match answer {
            Ok(Value::BulkString(bytes)) => Ok(bytes),
            Ok(Value::Okay) => Ok(Vec::new()),
            Ok(other) => {
                self.link.replace(shared);
                let error = StoreError::TimedOut(format!("no answer of a script: {other:?}"));
                Err(Failure::Down(error))
            }
            // Redis has answered: a script that fails has written nothing.
            Err(error) if is_of_a_key(&error) => {
                Err(Failure::Key(StoreError::Unavailable(error.to_string())))
            }
            Err(error) if matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) => {
                Err(Failure::Down(StoreError::Unavailable(error.to_string())))
            }
            Err(error) => {
                self.link.replace(shared);
                Err(Failure::Down(StoreError::TimedOut(error.to_string())))
            }
        }
    }
}

/// Why there is no answer.
enum Failure {
    /// Redis does not do its work: the breaker hears of it.
    Down(StoreError),
    /// Something else stands at this key; others are well.
    Key(StoreError),
}

impl Failure {
    fn error(&self) -> &StoreError {
        match self {
            Self::Down(error) | Self::Key(error) => error,
        }
    }

    fn into_error(self) -> StoreError {
        match self {
            Self::Down(error) | Self::Key(error) => error,
        }
    }
}

/// Whether it is the value of a key that the script could not work with.
fn is_of_a_key(error: &RedisError) -> bool {
    matches!(error.code(), Some("WRONGTYPE" | "FOREIGN"))
}

/// Calls a script, by the command of this name.
pub(crate) fn command(name: &str, script: &str, call: &Call<'_>) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(call.keys.len()).arg(&call.keys[..]).arg(&call.argument[..]);
    command
}

fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

fn strange() -> StoreError {
    StoreError::TimedOut("the answer of a script is not of its form".to_owned())
}

impl Store for RedisStore {
    async fn take(&self, hits: &[Hit<'_>]) -> Result<Taken, StoreError> {
        if hits.is_empty() {
            return Ok(Taken {
                allowed: true,
                outcomes: Outcomes::new(),
                receipt: Receipt::default(),
            });
        }
        let call = self.wording.ask(&self.scripts, Mode::Take, self.now(), hits);
        let reply = self.call(&call).await?;
        reply::taken(hits, |hit| self.wording.key(hit), &reply).ok_or_else(strange)
    }

    async fn take_many(&self, asks: &[&[Hit<'_>]]) -> Result<Vec<Taken>, StoreError> {
        let mut taken = Vec::with_capacity(asks.len());
        for hits in asks {
            taken.push(self.take(hits).await?);
        }
        Ok(taken)
    }

    async fn peek(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        if hits.is_empty() {
            return Ok(Outcomes::new());
        }
        let call = self.wording.ask(&self.scripts, Mode::Peek, self.now(), hits);
        let reply = self.call(&call).await?;
        reply::outcomes(hits, &reply).ok_or_else(strange)
    }

    async fn give_back(&self, receipt: &Receipt) -> Result<(), StoreError> {
        match give_back(&self.scripts, receipt) {
            Some(call) => self.call(&call).await.map(drop),
            None => Ok(()),
        }
    }

    async fn reset(&self, hits: &[Hit<'_>]) -> Result<(), StoreError> {
        if hits.is_empty() {
            return Ok(());
        }
        self.call(&self.wording.reset(&self.scripts, hits)).await.map(drop)
    }
}
