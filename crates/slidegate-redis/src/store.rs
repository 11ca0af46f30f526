//! The store: every request one script call.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
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
    /// If this is no address, or the file of certificates is none. That nobody answers there is none: the
    /// store says so when it is asked.
    pub fn open(address: &str, settings: Settings) -> Result<Self, ConnectError> {
        let wording = Wording::of(&settings);
        let link = Link::open(address, settings.ca_file.as_deref())?;
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

    /// Asks Redis, unless the breaker is open. `asking` is not begun then, so whatever it takes to word the
    /// question belongs into it.
    async fn ask<T>(
        &self,
        sent: &Sent,
        asking: impl Future<Output = Result<T, Failure>> + Send,
    ) -> Result<T, StoreError> {
        let (ticket, is_probe) = match self.breaker.admit(self.time.now()) {
            Admit::Call(ticket) => (ticket, false),
            Admit::Probe(ticket) => (ticket, true),
            Admit::Refuse => return Err(StoreError::Open),
        };
        let answer = self.in_time(sent, asking).await;
        let now = self.time.now();
        let is_down = matches!(answer, Err(Failure::Down(_)));
        let change = match is_down {
            true => self.breaker.failed(ticket, now),
            false => self.breaker.succeeded(ticket, now),
        };
        if matches!(change, Some(Change::Opened(_))) || (is_probe && is_down) {
            // Whoever hangs may do so for ever, and another may have its name now: a new connection finds
            // out.
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

    /// Waits for an answer, but no longer than the time-out.
    async fn in_time<T>(
        &self,
        sent: &Sent,
        asking: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        match tokio::time::timeout(self.settings.timeout, asking).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::Down(match sent.get() {
                false => StoreError::Unavailable(self.no_connection()),
                true => {
                    StoreError::TimedOut(format!("no answer within {:?}", self.settings.timeout))
                }
            })),
        }
    }

    fn no_connection(&self) -> String {
        format!("no connection: {}", self.link.trouble())
    }

    async fn connection(&self) -> Result<Shared, Failure> {
        let closed = || Failure::Down(StoreError::Unavailable(self.no_connection()));
        self.link.connection().await.ok_or_else(closed)
    }

    /// EVALSHA; and if Redis does not know the script, EVAL. Of many who find that at once, one sends the
    /// script, and the others wait for it.
    async fn call<T>(
        &self,
        call: &Call<'_>,
        sent: &Sent,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<T, Failure> {
        let shared = self.connection().await?;
        let script = call.script;
        let evalsha = command("EVALSHA", &script.sha, call);
        loop {
            let loads = script.loads();
            sent.set(true);
            match evalsha.query_async(&mut shared.connection.clone()).await {
                // Nothing was charged.
                Err(error) if is_no_script(&error) => sent.set(false),
                answer => return self.understood(answer, &shared, read),
            }
            let loading = script.loading.lock().await;
            if script.loads() != loads {
                continue;
            }
            sent.set(true);
            let eval = command("EVAL", &script.text, call);
            let answer = eval.query_async(&mut shared.connection.clone()).await;
            script.loads.fetch_add(1, Ordering::Release);
            drop(loading);
            return self.understood(answer, &shared, read);
        }
    }

    /// All calls in one round trip, in their order. Those whose script Redis has forgotten are called again
    /// after it was sent, in their order, behind the others.
    async fn call_each<T>(
        &self,
        calls: &[Call<'_>],
        sent: &Sent,
        read: impl Fn(usize, &Value) -> Option<T>,
    ) -> Result<Vec<T>, Failure> {
        let shared = self.connection().await?;
        for call in calls.iter().filter(|call| call.script.loads() == 0) {
            self.send_script(call, 0, &shared).await?;
        }
        let mut answers: Vec<Option<T>> = calls.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..calls.len()).collect();
        let mut error = None;
        while !open.is_empty() && error.is_none() {
            let loads: Vec<u64> = open.iter().map(|&nth| calls[nth].script.loads()).collect();
            sent.set(true);
            let replies = evalsha_each(open.iter().map(|&nth| &calls[nth]), &shared).await;
            let replies = replies.map_err(|error| self.lost(&error, &shared))?;
            let mut forgotten = Vec::new();
            for ((&nth, loads), reply) in open.iter().zip(loads).zip(replies) {
                match reply {
                    Err(error) if is_no_script(&error) => forgotten.push((nth, loads)),
                    reply => match self.understood(reply, &shared, |value| read(nth, value)) {
                        Ok(answer) => answers[nth] = Some(answer),
                        Err(failure) => error = Some(failure),
                    },
                }
            }
            for &(nth, loads) in &forgotten {
                self.send_script(&calls[nth], loads, &shared).await?;
            }
            open = forgotten.into_iter().map(|(nth, _)| nth).collect();
        }
        match error {
            None => Ok(answers.into_iter().flatten().collect()),
            Some(failure) if calls.len() > 1 => Err(failure.of_several()),
            Some(failure) => Err(failure),
        }
    }

    /// Sends a script alone, unless somebody else has sent it since it had been sent so often.
    async fn send_script(
        &self,
        call: &Call<'_>,
        loads: u64,
        shared: &Shared,
    ) -> Result<(), Failure> {
        let script = call.script;
        let _loading = script.loading.lock().await;
        if script.loads() != loads {
            return Ok(());
        }
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(&script.text);
        let answer = load.query_async(&mut shared.connection.clone()).await;
        script.loads.fetch_add(1, Ordering::Release);
        self.understood(answer, shared, |_| Some(()))
    }

    /// What Redis said of a call. `read` knows what it may say.
    fn understood<T>(
        &self,
        answer: RedisResult<Value>,
        shared: &Shared,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<T, Failure> {
        match answer {
            Ok(value) => read(&value).ok_or_else(|| {
                // Who knows whose answer this is: whatever else comes by this connection is as doubtful.
                self.link.replace(shared);
                Failure::Down(StoreError::TimedOut("no answer of a script".to_owned()))
            }),
            // Redis has answered: a script that fails has written nothing.
            Err(error) if is_of_a_key(&error) => {
                Err(Failure::Key(StoreError::Unavailable(error.to_string())))
            }
            Err(error) if matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) => {
                Err(Failure::Down(StoreError::Unavailable(error.to_string())))
            }
            Err(error) => Err(self.lost(&error, shared)),
        }
    }

    /// A connection was lost, and with it what became of calls.
    fn lost(&self, error: &RedisError, shared: &Shared) -> Failure {
        self.link.replace(shared);
        Failure::Down(StoreError::TimedOut(error.to_string()))
    }
}

/// Whether a call may have reached Redis: only then may it have been charged.
#[derive(Debug, Default)]
struct Sent(AtomicBool);

impl Sent {
    fn set(&self, sent: bool) {
        self.0.store(sent, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
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

    /// The same of several calls, of which others may have been charged.
    fn of_several(self) -> Self {
        let timed_out = |error: StoreError| StoreError::TimedOut(error.to_string());
        match self {
            Self::Down(error) => Self::Down(timed_out(error)),
            Self::Key(error) => Self::Key(timed_out(error)),
        }
    }
}

/// What Redis says when it cannot write at all. Up to 6.2 the error of a script only quotes it.
const CANNOT_WRITE: [&str; 4] = ["-OOM", "-READONLY", "-MISCONF", "-NOREPLICAS"];

/// Whether it is the value of a key that the script could not work with.
fn is_of_a_key(error: &RedisError) -> bool {
    let text = error.detail().unwrap_or_default();
    match error.code() {
        Some("WRONGTYPE" | "FOREIGN") => true,
        // The script stumbled, over what it has read: all else is the same for every key.
        Some("ERR") => {
            text.contains("user_script") && !CANNOT_WRITE.iter().any(|why| text.contains(why))
        }
        _ => false,
    }
}

/// Calls a script, by the command of this name.
pub(crate) fn command(name: &str, script: &str, call: &Call<'_>) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(call.keys.len()).arg(&call.keys[..]).arg(&call.argument[..]);
    command
}

/// One round trip. An error is one of the connection; what Redis says to each call stands in its place.
async fn evalsha_each<'c>(
    calls: impl Iterator<Item = &'c Call<'c>>,
    shared: &Shared,
) -> RedisResult<Vec<RedisResult<Value>>> {
    let mut pipeline = Pipeline::new();
    for call in calls {
        pipeline.add_command(command("EVALSHA", &call.script.sha, call));
    }
    pipeline.ignore_errors().query_async(&mut shared.connection.clone()).await
}

fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

/// The answer to no hits.
fn nothing() -> Taken {
    Taken { allowed: true, outcomes: Outcomes::new(), receipt: Receipt::default() }
}

impl RedisStore {
    fn read_taken(&self, hits: &[Hit<'_>], value: &Value) -> Option<Taken> {
        reply::taken(hits, |hit| self.wording.key(hit), bytes(value)?)
    }
}

impl Store for RedisStore {
    async fn take(&self, hits: &[Hit<'_>]) -> Result<Taken, StoreError> {
        if hits.is_empty() {
            return Ok(nothing());
        }
        let sent = Sent::default();
        let asking = async {
            let call = self.wording.ask(&self.scripts, Mode::Take, self.now(), hits);
            self.call(&call, &sent, |value| self.read_taken(hits, value)).await
        };
        self.ask(&sent, asking).await
    }

    async fn take_many(&self, asks: &[&[Hit<'_>]]) -> Result<Vec<Taken>, StoreError> {
        let some: Vec<&[Hit<'_>]> = asks.iter().copied().filter(|hits| !hits.is_empty()).collect();
        if some.is_empty() {
            return Ok(asks.iter().map(|_| nothing()).collect());
        }
        let sent = Sent::default();
        let asking = async {
            let now = self.now();
            let call = |hits: &&[Hit<'_>]| self.wording.ask(&self.scripts, Mode::Take, now, hits);
            let calls: Vec<Call<'_>> = some.iter().map(call).collect();
            self.call_each(&calls, &sent, |nth, value| self.read_taken(some[nth], value)).await
        };
        let mut taken = self.ask(&sent, asking).await?.into_iter();
        let one = |hits: &&[Hit<'_>]| match hits.is_empty() {
            true => Some(nothing()),
            false => taken.next(),
        };
        Ok(asks.iter().filter_map(one).collect())
    }

    async fn peek(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        if hits.is_empty() {
            return Ok(Outcomes::new());
        }
        let sent = Sent::default();
        let asking = async {
            let call = self.wording.ask(&self.scripts, Mode::Peek, self.now(), hits);
            self.call(&call, &sent, |value| reply::outcomes(hits, bytes(value)?)).await
        };
        self.ask(&sent, asking).await
    }

    async fn give_back(&self, receipt: &Receipt) -> Result<(), StoreError> {
        let Some(call) = give_back(&self.scripts, receipt) else { return Ok(()) };
        let sent = Sent::default();
        self.ask(&sent, self.call(&call, &sent, done)).await
    }

    async fn reset(&self, hits: &[Hit<'_>]) -> Result<(), StoreError> {
        if hits.is_empty() {
            return Ok(());
        }
        let call = self.wording.reset(&self.scripts, hits);
        let sent = Sent::default();
        self.ask(&sent, self.call(&call, &sent, done)).await
    }
}

/// The answer of a script that has nothing to say.
fn done(value: &Value) -> Option<()> {
    (bytes(value)? == b"OK").then_some(())
}
