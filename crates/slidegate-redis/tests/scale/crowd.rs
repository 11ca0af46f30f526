//! Callers that ask without a pause, at two stores as of two instances, and notes of all that they were told.
//!
//! For a person each store has one caller, who asks again only when he was told. So no two of a person's charges
//! are ever in one call, and each is written for the replicas by itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use slidegate::{
    Algorithm, Clock, Hit, Key, Limit, Quota, Scope, Store, StoreError, SystemClock, Timestamp,
    Value,
};
use slidegate_redis::{RedisStore, Settings};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;

use super::ledger::Record;
use crate::server::node::Node;
use crate::server::{LONG, Redis, poll_until};

/// Longer than by default: the tests share a machine.
const TIMEOUT: Duration = Duration::from_millis(200);

/// A wait that is longer than the time-out by this, and twice what the machine itself was late, is too long.
const SLACK: Duration = Duration::from_millis(100);

/// From the moment of a promotion, it takes no longer than this until the new master is asked.
pub const PROMOTION_RECOVERY: Duration = Duration::from_secs(2);

const STORES: usize = 2;

/// Who is counted, and how far.
#[derive(Clone, Debug)]
pub struct Person {
    pub name: String,
    /// The second has a key of its own, in the same slot.
    pub limits: Vec<Limit>,
}

impl Person {
    /// A person whose counts only grow: the window is a day.
    pub fn new(name: String, max: u64) -> Self {
        Self { name, limits: vec![a_day(max, Algorithm::SlidingWindow)] }
    }

    /// The same, with a second key.
    pub fn with_log(mut self, max: u64) -> Self {
        self.limits.push(a_day(max, Algorithm::SlidingLog));
        self
    }
}

fn a_day(max: u64, algorithm: Algorithm) -> Limit {
    Limit::new(Quota::new(max, Duration::from_secs(86_400)).unwrap(), algorithm).unwrap()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    Allowed,
    Denied,
    /// Charged, or not: nobody knows.
    TimedOut,
    /// Certainly not charged.
    Unavailable,
    Open,
}

impl CallOutcome {
    pub fn is_error(self) -> bool {
        !matches!(self, Self::Allowed | Self::Denied)
    }
}

/// What a caller was told.
#[derive(Clone, Copy, Debug)]
pub struct CallRecord {
    pub person: usize,
    pub began: Timestamp,
    ended: Timestamp,
    pub outcome: CallOutcome,
}

impl CallRecord {
    fn waited(&self) -> Duration {
        Duration::from_micros(self.ended.as_micros() - self.began.as_micros())
    }
}

pub struct Crowd {
    pub people: Arc<[Person]>,
    pub clock: SystemClock,
    address: String,
    records: Arc<Mutex<Vec<CallRecord>>>,
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<()>>,
    /// The longest that a task slept beyond what it meant to.
    max_lateness_us: Arc<AtomicU64>,
}

/// Few crowds at once: more would only wait for each other.
pub async fn crowd_permit() -> SemaphorePermit<'static> {
    static ROOM: Semaphore = Semaphore::const_new(2);
    ROOM.acquire().await.unwrap()
}

/// A clock that showed noon when the first was asked for the time: no day ends while a test runs.
#[derive(Clone, Copy)]
struct NoonClock;

impl Clock for NoonClock {
    fn now(&self) -> Timestamp {
        static BEGAN: OnceLock<(SystemClock, Timestamp)> = OnceLock::new();
        let (clock, began) = BEGAN.get_or_init(|| {
            let clock = SystemClock::new();
            (clock.clone(), clock.now())
        });
        let passed_us = clock.now().as_micros() - began.as_micros();
        Timestamp::from_secs(1_750_075_200).after(Duration::from_micros(passed_us))
    }
}

/// A store by that clock.
pub fn open(address: &str, timeout: Duration) -> RedisStore {
    let settings = Settings { timeout, ..Settings::default() };
    RedisStore::open(address, settings).unwrap().with_clock(NoonClock)
}

/// One unit of each limit, or a look at how they stand.
async fn with_hits<T>(person: &Person, call: impl AsyncFnOnce(&[Hit<'_>]) -> T) -> T {
    let scopes: Vec<Scope> = (0..person.limits.len())
        .map(|nth| Scope::new("scale", "rule", &nth.to_string(), &["client"]))
        .collect();
    let values = [Value::Text(&person.name)];
    let hit = |(scope, limit)| Hit::new(Key::new(scope, &values), limit, 1);
    let hits: Vec<Hit<'_>> = scopes.iter().zip(&person.limits).map(hit).collect();
    call(&hits).await
}

pub async fn take(store: &RedisStore, person: &Person) -> CallOutcome {
    match with_hits(person, async |hits| store.take(hits).await).await {
        Ok(taken) if taken.allowed => CallOutcome::Allowed,
        Ok(_) => CallOutcome::Denied,
        Err(StoreError::TimedOut(_)) => CallOutcome::TimedOut,
        Err(StoreError::BreakerOpen) => CallOutcome::Open,
        Err(_) => CallOutcome::Unavailable,
    }
}

/// How much of each limit is used up.
pub async fn counts(store: &RedisStore, person: &Person) -> Vec<u64> {
    let peeked = with_hits(person, async |hits| store.peek(hits).await).await.unwrap();
    let used =
        |(limit, outcome): (&Limit, &slidegate::Outcome)| limit.capacity() - outcome.remaining();
    person.limits.iter().zip(&peeked).map(used).collect()
}

impl Crowd {
    /// Begins, and goes on until many were told something.
    pub async fn begin(address: &str, people: Vec<Person>) -> Self {
        let mut crowd = Self {
            people: people.into(),
            clock: SystemClock::new(),
            address: address.to_owned(),
            records: Arc::default(),
            stop: Arc::default(),
            callers: Vec::new(),
            max_lateness_us: Arc::default(),
        };
        for _ in 0..STORES {
            let store = Arc::new(open(address, TIMEOUT));
            poll_until("the store answers", LONG, async || {
                !take(&store, &uncounted_person()).await.is_error()
            })
            .await;
            let callers =
                (0..crowd.people.len()).map(|person| tokio::spawn(crowd.caller(&store, person)));
            let callers: Vec<_> = callers.collect();
            crowd.callers.extend(callers);
        }
        crowd.callers.push(tokio::spawn(crowd.measure_lateness_task()));
        crowd.wait_for_decisions().await;
        crowd
    }

    fn caller(
        &self,
        store: &Arc<RedisStore>,
        person: usize,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (store, people) = (store.clone(), self.people.clone());
        let (clock, records, stop) = (self.clock.clone(), self.records.clone(), self.stop.clone());
        async move {
            while !stop.load(Ordering::Relaxed) {
                let began = clock.now();
                let outcome = take(&store, &people[person]).await;
                let ended = clock.now();
                records.lock().unwrap().push(CallRecord { person, began, ended, outcome });
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        }
    }

    /// Finds out how late the machine is.
    fn measure_lateness_task(&self) -> impl Future<Output = ()> + Send + 'static {
        crate::server::measure_lateness(
            self.clock.clone(),
            self.stop.clone(),
            self.max_lateness_us.clone(),
        )
    }

    fn late(&self) -> Duration {
        Duration::from_micros(self.max_lateness_us.load(Ordering::Relaxed))
    }

    /// Goes on for a while: until each person was told many times, by the store, how he fares.
    pub async fn wait_for_decisions(&self) {
        const DECISIONS_PER_PERSON: usize = 40;
        let from = self.records.lock().unwrap().len();
        let is_done = || {
            let mut answers = vec![0; self.people.len()];
            for records in self.records.lock().unwrap()[from..]
                .iter()
                .filter(|records| !records.outcome.is_error())
            {
                answers[records.person] += 1;
            }
            answers.iter().all(|&answers| answers >= DECISIONS_PER_PERSON)
        };
        poll_until("everybody is answered", LONG, async || is_done()).await;
    }

    /// Goes on until a person is denied.
    pub async fn wait_for_denial(&self, person: usize) {
        let from = self.records.lock().unwrap().len();
        let is = |records: &CallRecord| {
            records.person == person && records.outcome == CallOutcome::Denied
        };
        poll_until("a person is denied", LONG, async || {
            self.records.lock().unwrap()[from..].iter().any(is)
        })
        .await;
    }

    /// Goes on until some were told anything.
    pub async fn wait_for_a_few_calls(&self) {
        const CALLS: usize = 100;
        let from = self.records.lock().unwrap().len();
        poll_until("some are told something", LONG, async || {
            self.records.lock().unwrap().len() >= from + CALLS
        })
        .await;
    }

    /// Waits until a node that can be asked again since a moment is called by the stores, which it was so often
    /// before. The promise is that this takes them no longer than a span; and that all is well from then on, which
    /// is when this is over. The moment of that.
    pub async fn wait_for_recovery(
        &self,
        node: &Redis,
        calls_before: u64,
        since: Timestamp,
        within: Duration,
    ) -> Timestamp {
        poll_until("the new master is asked", LONG, async || calls(node) > calls_before).await;
        let took_us = self.clock.now().as_micros().saturating_sub(since.as_micros());
        let (took, late) = (Duration::from_micros(took_us), self.late());
        println!("resumed after {took:?}, the machine {late:?} late");
        assert!(took < within + 2 * late, "resumed only after {took:?}");
        let recovered_at = since.after(within + 2 * late);
        poll_until("all must be well", LONG, async || self.clock.now() >= recovered_at).await;
        recovered_at
    }

    /// Ends, and looks how all stand.
    pub async fn end(self) -> Record {
        self.stop.store(true, Ordering::Relaxed);
        let late = self.late();
        for caller in self.callers {
            // A caller that panicked has failed the test.
            caller.await.unwrap();
        }
        let records = self.records.lock().unwrap().clone();
        let longest = records.iter().map(CallRecord::waited).max().unwrap();
        println!("{} asks; the longest wait {longest:?}, the machine {late:?} late", records.len());
        assert!(longest < TIMEOUT + SLACK + 2 * late, "a caller waited for {longest:?}");
        // A new store finds the master, too.
        let store = open(&self.address, LONG);
        let mut charged = Vec::new();
        for person in &*self.people {
            charged.push(counts(&store, person).await);
        }
        Record { people: self.people, records, charged }
    }
}

/// Some are soon denied, some later, and some never.
pub fn person(name: String, nth: usize) -> Person {
    Person::new(name, [150, 1_000, 1_000_000, 1_000_000][nth % 4])
}

/// The place of one who is denied later.
pub const DENIED_LATER: usize = 1;

/// Pauses a replica, and has its master write so much that nothing later reaches it. Bytes of that.
pub fn fall_behind(master: &Node, replica: &Node, key: &str) -> u64 {
    // More than fits into what the system keeps of a connection.
    const MUCH: usize = 32 << 20;
    replica.pause();
    let skipped_bytes = "x".repeat(MUCH);
    let set = redis::cmd("SET").arg(key).arg(&skipped_bytes).to_owned();
    set.exec(&mut master.connection()).unwrap();
    set.get_packed_command().len() as u64
}

/// How often a node has called a script.
pub fn calls(node: &Redis) -> u64 {
    node.calls_of("evalsha") + node.calls_of("eval")
}

/// Bytes that one charge takes on its way to a replica: no fewer for anybody of a name as long, at the same master.
pub async fn bytes_per_charge(address: &str, master: &Node, person: &Person) -> u64 {
    let store = open(address, LONG);
    let mut least = u64::MAX;
    for _ in 0..8 {
        let before = master.offset();
        assert_eq!(take(&store, person).await, CallOutcome::Allowed);
        least = least.min(master.offset() - before);
    }
    assert!(least > 50, "{least} bytes are no charge");
    least
}

/// Somebody who is not counted.
fn uncounted_person() -> Person {
    Person::new("stranger".to_owned(), 1_000_000)
}
