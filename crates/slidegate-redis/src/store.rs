//! The store: every request one script call.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use slidegate::store::Outcomes;
use slidegate::{Clock, Hit, Receipt, Store, StoreError, Taken, Timestamp};

use crate::call::{Call, Mode, Wording, give_back};
use crate::connect::{ConnectError, Link, Settings, Shared};
use crate::reply;
use crate::script::Scripts;

/// Counts in Redis.
pub struct RedisStore {
    wording: Wording,
    scripts: Scripts,
    link: Link,
    /// None is Redis's own.
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
        let wording = Wording {
            prefix: settings.prefix.clone(),
            keep_s: settings.keep.as_secs().try_into().unwrap_or(u32::MAX),
        };
        let link = Link::open(address)?;
        Ok(Self { wording, scripts: Scripts::new(), link, clock: None, settings })
    }

    /// Tells Redis the time, instead of asking it: cheaper for Redis, and good where clocks agree.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock) -> Self {
        Self { clock: Some(Arc::new(clock)), ..self }
    }

    fn now(&self) -> Option<Timestamp> {
        self.clock.as_ref().map(|clock| clock.now())
    }

    /// Calls a script within the time-out.
    async fn call(&self, call: &Call<'_>) -> Result<Vec<u8>, StoreError> {
        let mut sent = None;
        match tokio::time::timeout(self.settings.timeout, self.call_now(call, &mut sent)).await {
            Ok(answer) => answer,
            Err(_) if sent.is_none() => Err(StoreError::Unavailable("no connection".to_owned())),
            Err(_) => {
                Err(StoreError::TimedOut(format!("no answer within {:?}", self.settings.timeout)))
            }
        }
    }

    /// EVALSHA; and if Redis does not know the script, EVAL. Of many who find that at once, one sends the
    /// script, and the others wait for it.
    async fn call_now(
        &self,
        call: &Call<'_>,
        sent: &mut Option<Shared>,
    ) -> Result<Vec<u8>, StoreError> {
        let Some(shared) = self.link.connection().await else {
            return Err(StoreError::Unavailable("the store is closed".to_owned()));
        };
        let script = call.script;
        let evalsha = command("EVALSHA", &script.sha, call);
        loop {
            let loads = script.loads();
            *sent = Some(shared.clone());
            match evalsha.query_async(&mut shared.connection.clone()).await {
                Err(error) if is_no_script(&error) => {}
                answer => return self.understood(answer, &shared),
            }
            *sent = None;
            let loading = script.loading.lock().await;
            if script.loads() != loads {
                continue;
            }
            *sent = Some(shared.clone());
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
    ) -> Result<Vec<u8>, StoreError> {
        match answer {
            Ok(Value::BulkString(bytes)) => Ok(bytes),
            Ok(Value::Okay) => Ok(Vec::new()),
            Ok(Value::SimpleString(_)) => Ok(Vec::new()),
            Ok(other) => {
                self.link.replace(shared);
                Err(StoreError::TimedOut(format!("no answer of a script: {other:?}")))
            }
            // Redis has answered: a script that fails has written nothing.
            Err(error) if matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) => {
                Err(StoreError::Unavailable(error.to_string()))
            }
            Err(error) => {
                self.link.replace(shared);
                Err(StoreError::TimedOut(error.to_string()))
            }
        }
    }
}

fn command(name: &str, script: &str, call: &Call<'_>) -> Cmd {
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
