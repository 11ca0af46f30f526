//! One server: its connection, its breaker, and who waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use slidegate::{StoreError, Timestamp};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use crate::ask::Ask;
use crate::breaker::{self, Admit, Breaker, Change};
use crate::call::{self, Call};
use crate::clocks::Clocks;
use crate::connect::{Link, Shared, Source};
use crate::errand::Errand;
use crate::failure::Failure;
use crate::queue::{Entered, Place, Queue, Waiting};
use crate::reply::{Answer, BYTES, Misread};
use crate::script::Scripts;

/// Hits that go in one call, at most; a request that has more goes alone.
const MAX_HITS: usize = 512;

/// What all servers of a store have in common.
#[derive(Clone, Debug)]
pub struct Manner {
    pub timeout: Duration,
    /// Seconds that a key is kept beyond what is known to be needed.
    pub keep_s: u32,
    pub clocks: Arc<Clocks>,
}

/// Calls of one lane go one after another. In a Cluster each slot has a lane, elsewhere there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lane {
    pub slot: u16,
    /// Of a slot that is just being moved here.
    pub asking: bool,
    /// Of those that cannot go with others.
    pub alone: bool,
}

/// What Redis has said of an ask, and when it was asked by the clock here.
pub type Told = Result<(Answer, Timestamp), Failure>;

/// An ask, and until when somebody waits for it.
type Job = (Arc<Ask>, Instant);

/// A server.
pub struct Server {
    /// As others of its Cluster name it; else it is empty.
    address: Box<str>,
    manner: Manner,
    link: Link,
    breaker: Arc<Breaker>,
    scripts: Scripts,
    queue: Arc<Queue<Lane, Job, Told>>,
    /// Where those that wait are called, whoever it is that has made them wait.
    runtime: Handle,
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

/// Holds a lane while a call is in flight. Dropped, it lets those go that wait.
pub struct Turn {
    server: Arc<Server>,
    lane: Lane,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = self.server.next(self.lane);
        if !next.is_empty() {
            self.server.runtime.spawn(self.server.clone().serve(self.lane, next));
        }
    }
}

impl Server {
    /// Begins to connect. Within a tokio runtime.
    pub fn open(address: &str, source: Source, manner: Manner) -> Self {
        let breaker = Arc::new(Breaker::new(breaker::Settings {
            probe_limit: 2 * manner.timeout,
            ..breaker::Settings::default()
        }));
        let regained = {
            let (breaker, clocks) = (breaker.clone(), manner.clocks.clone());
            move || breaker.probe_soon(clocks.machine())
        };
        Self {
            address: address.into(),
            link: Link::open(source, regained),
            breaker,
            scripts: Scripts::new(),
            queue: Arc::new(Queue::new()),
            runtime: Handle::current(),
            manner,
        }
    }

    /// Whether the breaker is open, so that the server is not asked.
    pub fn is_breaker_open(&self) -> bool {
        self.breaker.is_breaker_open()
    }

    /// Returns whether there has been a connection and the breaker allows a call. It allows a call also when a probe is
    /// due: a server that gets requests only while it is ready would otherwise never probe.
    pub fn answers(&self) -> bool {
        self.link.was_connected() && !self.breaker.refuses(self.manner.clocks.machine())
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// As the log names it.
    fn name(&self) -> String {
        match &*self.address {
            "" => "Redis".to_owned(),
            address => format!("Redis at {address}"),
        }
    }

    /// Decides an ask, by `until` at the latest. The breaker counts script calls, not the requests that wait for a call: a
    /// slow call is one failure, however many requests wait behind it.
    pub async fn decide(self: &Arc<Self>, lane: Lane, ask: &Arc<Ask>, until: Instant) -> Told {
        if self.breaker.refuses(self.manner.clocks.machine()) {
            return Err(Failure::Down(StoreError::BreakerOpen));
        }
        match self.queue.enter(lane, (ask.clone(), until)) {
            Entered::Alone((ask, _)) => {
                let _turn = Turn { server: self.clone(), lane };
                let sent = Sent::default();
                let asking = self.decide_one(&ask, lane, &sent);
                self.watched(self.in_time(until, &sent, asking)).await
            }
            Entered::Waits(mut place) => self.wait(&mut place, until).await,
            Entered::Refused => {
                Err(Failure::Down(StoreError::Unavailable("too many wait for it".to_owned())))
            }
        }
    }

    /// Holds a lane that nobody is called in, so that all who come go together once it is let go.
    pub fn hold(self: &Arc<Self>, lane: Lane) -> Option<Turn> {
        self.queue.hold(lane).then(|| Turn { server: self.clone(), lane })
    }

    /// Waits to be called together with others.
    async fn wait(&self, place: &mut Place<Lane, Job, Told>, until: Instant) -> Told {
        match timeout_at(until, place.answer()).await {
            Ok(Some(told)) => told,
            // The runtime ends.
            Ok(None) => Err(Failure::Down(self.too_late(true))),
            Err(_) => Err(Failure::Down(self.too_late(!place.give_up()))),
        }
    }

    /// Runs an errand. It does not wait in a lane.
    pub async fn run(
        &self,
        errand: &Errand<'_>,
        is_asking: bool,
        until: Instant,
    ) -> Result<Answer, Failure> {
        let sent = Sent::default();
        let running = async {
            let shared = self.connection().await?;
            let call = errand.call(&self.scripts, self.manner.clocks.counting());
            let value = self.query(&call, is_asking, &shared, &sent).await?;
            let answer = bytes(&value).and_then(|bytes| errand.read(bytes).ok());
            answer.ok_or_else(|| self.garbled(&shared))
        };
        self.watched(self.in_time(until, &sent, running)).await
    }

    /// Makes a call, unless the breaker is open; `asking` is not begun then.
    async fn watched<T>(
        &self,
        asking: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let (ticket, is_probe) = match self.breaker.admit(self.manner.clocks.machine()) {
            Admit::Call(ticket) => (ticket, false),
            Admit::Probe(ticket) => (ticket, true),
            Admit::Refuse => return Err(Failure::Down(StoreError::BreakerOpen)),
        };
        let answer = asking.await;
        let now = self.manner.clocks.machine();
        let down = match &answer {
            Err(Failure::Down(error)) => Some(error),
            _ => None,
        };
        let change = match down {
            Some(_) => self.breaker.failed(ticket, now),
            None => self.breaker.succeeded(ticket, now),
        };
        if matches!(change, Some(Change::Opened(_))) || (is_probe && down.is_some()) {
            // Whoever hangs may do so for ever, and another may have its name now: a new connection finds
            // out.
            self.link.replace_current();
        }
        match (change, down) {
            (Some(change @ Change::Opened(_)), Some(error)) => {
                tracing::warn!(%error, "{}: {change}", self.name());
            }
            (Some(change), _) => tracing::info!("{}: {change}", self.name()),
            (None, _) => {}
        }
        answer
    }

    /// Waits for an answer, but no longer than until a moment.
    async fn in_time<T>(
        &self,
        until: Instant,
        sent: &Sent,
        asking: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        match timeout_at(until, asking).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::Down(self.too_late(sent.get()))),
        }
    }

    fn too_late(&self, is_sent: bool) -> StoreError {
        match is_sent {
            true => StoreError::TimedOut(format!("no answer within {:?}", self.manner.timeout)),
            false => StoreError::Unavailable(match self.link.trouble() {
                Some(trouble) => format!("no connection: {trouble}"),
                None => format!("no turn within {:?}: earlier calls are slow", self.manner.timeout),
            }),
        }
    }

    async fn connection(&self) -> Result<Shared, Failure> {
        let closed = || Failure::Down(self.too_late(false));
        self.link.connection().await.ok_or_else(closed)
    }

    /// Who goes next in a lane, of those that somebody still waits for.
    fn next(&self, lane: Lane) -> Vec<Waiting<Job, Told>> {
        loop {
            let mut hits = 0;
            let next = self.queue.leave(lane, |(ask, _)| {
                hits += ask.hits.len();
                !lane.alone && hits <= MAX_HITS
            });
            let (now, came) = (Instant::now(), next.len());
            let mut waited_for = Vec::with_capacity(came);
            for waiting in next {
                if waiting.job.1 > now {
                    waited_for.push(waiting);
                } else {
                    let _ = waiting.answer.send(Err(Failure::Down(self.too_late(false))));
                }
            }
            if !waited_for.is_empty() || came == 0 {
                return waited_for;
            }
        }
    }

    /// Calls those that wait in a lane, until nobody does.
    async fn serve(self: Arc<Self>, lane: Lane, mut next: Vec<Waiting<Job, Told>>) {
        while !next.is_empty() {
            self.call_together(lane, next).await;
            next = self.next(lane);
        }
    }

    async fn call_together(&self, lane: Lane, together: Vec<Waiting<Job, Told>>) {
        let asks: Vec<&Ask> = together.iter().map(|waiting| &*waiting.job.0).collect();
        let until = Instant::now() + self.manner.timeout;
        let sent = Sent::default();
        let asking = self.decide_all(&asks, lane, &sent);
        let answer = self.watched(self.in_time(until, &sent, asking)).await;
        let each: Vec<Told> = match answer {
            Ok((answers, sent_at)) => answers
                .into_iter()
                .zip(&asks)
                .map(|(answer, ask)| {
                    let answer = answer.map_err(|_| Failure::Key(foreign(ask)))?;
                    Ok((answer, sent_at))
                })
                .collect(),
            // A script that stumbles over one may have charged others.
            Err(failure @ Failure::Key(_)) if asks.len() > 1 => {
                asks.iter().map(|_| Err(failure.clone().of_several())).collect()
            }
            Err(failure) => asks.iter().map(|_| Err(failure.clone())).collect(),
        };
        for (waiting, told) in together.into_iter().zip(each) {
            // Whoever does not listen any more has given up.
            let _ = waiting.answer.send(told);
        }
    }

    async fn decide_one(&self, ask: &Ask, lane: Lane, sent: &Sent) -> Told {
        let (mut answers, sent_at) = self.decide_all(&[ask], lane, sent).await?;
        match answers.pop() {
            Some(Ok(answer)) => Ok((answer, sent_at)),
            _ => Err(Failure::Key(foreign(ask))),
        }
    }

    /// Decides asks by one call: what is said of each, or that something else stands at its keys.
    async fn decide_all(
        &self,
        asks: &[&Ask],
        lane: Lane,
        sent: &Sent,
    ) -> Result<(Vec<Result<Answer, Misread>>, Timestamp), Failure> {
        let shared = self.connection().await?;
        let Manner { clocks, keep_s, .. } = &self.manner;
        let sent_at = clocks.here();
        let call = call::decide(&self.scripts, clocks.counting(), *keep_s, asks);
        let value = self.query(&call, lane.asking, &shared, sent).await?;
        let answers = read_all(asks, &value).ok_or_else(|| self.garbled(&shared))?;
        Ok((answers, sent_at))
    }

    /// EVALSHA; and if Redis does not know the script, EVAL. Of many who find that at once, one sends the
    /// script, and the others wait for it.
    async fn query(
        &self,
        call: &Call<'_, '_>,
        is_asking: bool,
        shared: &Shared,
        sent: &Sent,
    ) -> Result<Value, Failure> {
        let script = call.script;
        let evalsha = call.command("EVALSHA", &script.sha);
        loop {
            let loads = script.loads();
            sent.set(true);
            match query(&evalsha, is_asking, shared).await {
                // Nothing was charged.
                Err(error) if is_no_script(&error) => sent.set(false),
                answer => return answer.map_err(|error| self.failure(&error, shared)),
            }
            let loading = script.loading.lock().await;
            if script.loads() != loads {
                continue;
            }
            sent.set(true);
            let answer = query(&call.command("EVAL", &script.text), is_asking, shared).await;
            script.loads.fetch_add(1, Ordering::Release);
            drop(loading);
            return answer.map_err(|error| self.failure(&error, shared));
        }
    }

    fn failure(&self, error: &RedisError, shared: &Shared) -> Failure {
        if error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly) {
            // It is a master no more. Who is, a new connection finds out.
            self.link.replace(shared);
        }
        Failure::answered(error).unwrap_or_else(|| {
            // The connection was lost, and with it what became of calls.
            self.link.replace(shared);
            Failure::Down(StoreError::TimedOut(error.to_string()))
        })
    }

    /// Who knows whose answer this is: whatever else comes by this connection is as doubtful.
    fn garbled(&self, shared: &Shared) -> Failure {
        self.link.replace(shared);
        Failure::Down(StoreError::TimedOut("no answer of a script".to_owned()))
    }
}

/// Sends a command. Who asks for keys of a slot that is just being moved says so.
async fn query(command: &Cmd, is_asking: bool, shared: &Shared) -> RedisResult<Value> {
    let mut connection = shared.connection.clone();
    if !is_asking {
        return command.query_async(&mut connection).await;
    }
    let mut both = Pipeline::new();
    both.cmd("ASKING").add_command(command.clone()).ignore_errors();
    let mut answers: Vec<RedisResult<Value>> = both.query_async(&mut connection).await?;
    answers.pop().unwrap_or(Ok(Value::Nil))
}

/// The answers to asks, if it is one to them.
fn read_all(asks: &[&Ask], value: &Value) -> Option<Vec<Result<Answer, Misread>>> {
    let mut rest = bytes(value)?;
    let mut answers = Vec::with_capacity(asks.len());
    for ask in asks {
        let (own, others) = rest.split_at_checked(BYTES * ask.hits.len())?;
        rest = others;
        match Answer::read(ask.hits.len(), own) {
            Err(Misread::Garbled) => return None,
            answer => answers.push(answer),
        }
    }
    rest.is_empty().then_some(answers)
}

fn foreign(ask: &Ask) -> StoreError {
    let keys: Vec<&str> = ask.hits.iter().map(|hit| hit.key.as_str()).collect();
    StoreError::Unavailable(format!(
        "FOREIGN no value of slidegate stands at {}",
        keys.join(" or ")
    ))
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
