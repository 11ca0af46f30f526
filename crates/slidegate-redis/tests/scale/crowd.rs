//! A load of callers that take units continuously from two stores, which represent two instances of a service. All
//! results are recorded.
//!
//! Each store has one caller for each client, and each caller waits for a result before its next call. So two charges
//! of a client never share a script call, and each charge is replicated separately.

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

/// Timeout of the stores. It is longer than the default, because the tests share a machine.
const TIMEOUT: Duration = Duration::from_millis(200);

/// Maximum time by which a request may exceed its timeout, in addition to twice the lateness of the machine (the time
/// by which sleeps take too long).
const SLACK: Duration = Duration::from_millis(100);

/// Maximum time from the promotion of a replica until the stores call it as the new master.
pub const PROMOTION_RECOVERY: Duration = Duration::from_secs(2);

const STORES: usize = 2;

/// A client of the service, and its limits.
#[derive(Clone, Debug)]
pub struct Person {
    pub name: String,
    /// The limits of the client. If it has a second limit, the counter of that limit has its own key in the same slot.
    pub limits: Vec<Limit>,
}

impl Person {
    /// Creates a client with a limit of `max` units per day. No unit leaves the window during a test, so counts only
    /// grow.
    pub fn new(name: String, max: u64) -> Self {
        Self { name, limits: vec![a_day(max, Algorithm::SlidingWindow)] }
    }

    /// Adds a sliding log limit, whose counter has its own key.
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
    /// The call timed out: it may have charged.
    TimedOut,
    /// The call failed and has certainly not charged.
    Unavailable,
    Open,
}

impl CallOutcome {
    pub fn is_error(self) -> bool {
        !matches!(self, Self::Allowed | Self::Denied)
    }
}

/// The result of one call.
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
    /// The lateness of the machine: the maximum time in microseconds by which a sleep took too long.
    max_lateness_us: Arc<AtomicU64>,
}

/// Waits for a permit to run a load. At most two loads run at a time, because more would only slow each other down.
pub async fn crowd_permit() -> SemaphorePermit<'static> {
    static ROOM: Semaphore = Semaphore::const_new(2);
    ROOM.acquire().await.unwrap()
}

/// A clock that starts at noon when it is first read, so that no day ends during a test.
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

/// Creates a store with a [`NoonClock`].
pub fn open(address: &str, timeout: Duration) -> RedisStore {
    let settings = Settings { timeout, ..Settings::default() };
    RedisStore::open(address, settings).unwrap().with_clock(NoonClock)
}

/// Calls a function with the hits of a client: one unit for each of its limits.
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

/// Returns the charged units of each limit of a client.
pub async fn counts(store: &RedisStore, person: &Person) -> Vec<u64> {
    let peeked = with_hits(person, async |hits| store.peek(hits).await).await.unwrap();
    let used =
        |(limit, outcome): (&Limit, &slidegate::Outcome)| limit.capacity() - outcome.remaining();
    person.limits.iter().zip(&peeked).map(used).collect()
}

impl Crowd {
    /// Starts the callers, and waits until each client has many results.
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
            poll_until("the store responds", LONG, async || {
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

    /// Returns a task that measures the lateness of the machine while the load runs.
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

    /// Waits until the stores have decided 40 more calls of each client.
    pub async fn wait_for_decisions(&self) {
        const DECISIONS_PER_PERSON: usize = 40;
        let from = self.records.lock().unwrap().len();
        let is_done = || {
            let mut decisions = vec![0; self.people.len()];
            for record in self.records.lock().unwrap()[from..]
                .iter()
                .filter(|record| !record.outcome.is_error())
            {
                decisions[record.person] += 1;
            }
            decisions.iter().all(|&count| count >= DECISIONS_PER_PERSON)
        };
        poll_until("each person has decisions", LONG, async || is_done()).await;
    }

    /// Waits until a call of this client is denied.
    pub async fn wait_for_denial(&self, person: usize) {
        let from = self.records.lock().unwrap().len();
        let is_denial =
            |record: &CallRecord| record.person == person && record.outcome == CallOutcome::Denied;
        poll_until("a person is denied", LONG, async || {
            self.records.lock().unwrap()[from..].iter().any(is_denial)
        })
        .await;
    }

    /// Waits for 100 more results.
    pub async fn wait_for_a_few_calls(&self) {
        const CALLS: usize = 100;
        let from = self.records.lock().unwrap().len();
        poll_until("there are more results", LONG, async || {
            self.records.lock().unwrap().len() >= from + CALLS
        })
        .await;
    }

    /// Waits until the stores call a node, which is available since the time `since` and had run `calls_before` script
    /// calls then. Asserts that this takes no longer than `within`, plus twice the lateness of the machine. Waits until
    /// that time has passed and returns its end: from then on, all requests must succeed.
    pub async fn wait_for_recovery(
        &self,
        node: &Redis,
        calls_before: u64,
        since: Timestamp,
        within: Duration,
    ) -> Timestamp {
        poll_until("the new master is called", LONG, async || calls(node) > calls_before).await;
        let took_us = self.clock.now().as_micros().saturating_sub(since.as_micros());
        let (took, late) = (Duration::from_micros(took_us), self.late());
        println!("resumed after {took:?}, machine lateness {late:?}");
        assert!(took < within + 2 * late, "resumed only after {took:?}");
        let recovered_at = since.after(within + 2 * late);
        poll_until("all must work", LONG, async || self.clock.now() >= recovered_at).await;
        recovered_at
    }

    /// Stops the callers, reads the final number of charges, and returns them with all results.
    pub async fn end(self) -> Record {
        self.stop.store(true, Ordering::Relaxed);
        let late = self.late();
        for caller in self.callers {
            // A caller that panicked has failed the test.
            caller.await.unwrap();
        }
        let records = self.records.lock().unwrap().clone();
        let longest = records.iter().map(CallRecord::waited).max().unwrap();
        println!("{} calls; longest wait {longest:?}, machine lateness {late:?}", records.len());
        assert!(longest < TIMEOUT + SLACK + 2 * late, "a caller waited for {longest:?}");
        // A new store must find the master, too.
        let store = open(&self.address, LONG);
        let mut charged = Vec::new();
        for person in &*self.people {
            charged.push(counts(&store, person).await);
        }
        Record { people: self.people, records, charged }
    }
}

/// Creates the nth client. One client in four is denied soon, one in four is denied later, and the others are never
/// denied.
pub fn person(name: String, nth: usize) -> Person {
    Person::new(name, [150, 1_000, 1_000_000, 1_000_000][nth % 4])
}

/// The index of a client that is denied only after a while.
pub const DENIED_LATER: usize = 1;

/// Pauses a replica and fills its socket buffers with a large write to its master, so that no later write reaches the
/// replica. Returns the number of bytes of the large write.
pub fn fall_behind(master: &Node, replica: &Node, key: &str) -> u64 {
    // More bytes than the socket buffers of a connection hold.
    const MUCH: usize = 32 << 20;
    replica.pause();
    let skipped_bytes = "x".repeat(MUCH);
    let set = redis::cmd("SET").arg(key).arg(&skipped_bytes).to_owned();
    set.exec(&mut master.connection()).unwrap();
    set.get_packed_command().len() as u64
}

/// Returns the number of script calls that a node has run.
pub fn calls(node: &Redis) -> u64 {
    node.calls_of("evalsha") + node.calls_of("eval")
}

/// Returns a lower bound for the bytes that one charge takes in the replication stream of a master. The bound is valid
/// for clients whose names have the same length.
pub async fn bytes_per_charge(address: &str, master: &Node, person: &Person) -> u64 {
    let store = open(address, LONG);
    let mut min_bytes = u64::MAX;
    for _ in 0..8 {
        let before = master.offset();
        assert_eq!(take(&store, person).await, CallOutcome::Allowed);
        min_bytes = min_bytes.min(master.offset() - before);
    }
    assert!(min_bytes > 50, "{min_bytes} bytes are too few for a charge");
    min_bytes
}

/// Creates a client whose calls are not recorded.
fn uncounted_person() -> Person {
    Person::new("stranger".to_owned(), 1_000_000)
}
