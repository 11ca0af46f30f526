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
use crate::server::{LONG, Redis, until};

/// Longer than by default: the tests share a machine.
const TIMEOUT: Duration = Duration::from_millis(200);

/// A wait that is longer than the time-out by this, and twice what the machine itself was late, is too long.
const SLACK: Duration = Duration::from_millis(100);

/// From the moment of a promotion, it takes no longer than this until the new master is asked.
pub const AFTER_A_PROMOTION: Duration = Duration::from_secs(2);

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
    pub fn with_a_log(mut self, max: u64) -> Self {
        self.limits.push(a_day(max, Algorithm::SlidingLog));
        self
    }
}

fn a_day(max: u64, algorithm: Algorithm) -> Limit {
    Limit::new(Quota::new(max, Duration::from_secs(86_400)).unwrap(), algorithm).unwrap()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Allowed,
    Denied,
    /// Charged, or not: nobody knows.
    TimedOut,
    /// Certainly not charged.
    Unavailable,
    Open,
}

impl Answer {
    pub fn is_error(self) -> bool {
        !matches!(self, Self::Allowed | Self::Denied)
    }
}

/// What a caller was told.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    pub who: usize,
    pub began: Timestamp,
    ended: Timestamp,
    pub answer: Answer,
}

impl Told {
    fn waited(&self) -> Duration {
        Duration::from_micros(self.ended.as_micros() - self.began.as_micros())
    }
}

pub struct Crowd {
    pub people: Arc<[Person]>,
    pub clock: SystemClock,
    address: String,
    told: Arc<Mutex<Vec<Told>>>,
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<()>>,
    /// The longest that a task slept beyond what it meant to.
    late_us: Arc<AtomicU64>,
}

/// Few crowds at once: more would only wait for each other.
pub async fn room() -> SemaphorePermit<'static> {
    static ROOM: Semaphore = Semaphore::const_new(2);
    ROOM.acquire().await.unwrap()
}

/// A clock that showed noon when the first was asked for the time: no day ends while a test runs.
#[derive(Clone, Copy)]
struct FromNoon;

impl Clock for FromNoon {
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
    RedisStore::open(address, settings).unwrap().with_clock(FromNoon)
}

/// One unit of each limit, or a look at how they stand.
async fn with_hits<T>(person: &Person, ask: impl AsyncFnOnce(&[Hit<'_>]) -> T) -> T {
    let scopes: Vec<Scope> = (0..person.limits.len())
        .map(|nth| Scope::new("scale", "rule", &nth.to_string(), &["who"]))
        .collect();
    let who = [Value::Text(&person.name)];
    let hit = |(scope, limit)| Hit::new(Key::new(scope, &who), limit, 1);
    let hits: Vec<Hit<'_>> = scopes.iter().zip(&person.limits).map(hit).collect();
    ask(&hits).await
}

pub async fn take(store: &RedisStore, person: &Person) -> Answer {
    match with_hits(person, async |hits| store.take(hits).await).await {
        Ok(taken) if taken.allowed => Answer::Allowed,
        Ok(_) => Answer::Denied,
        Err(StoreError::TimedOut(_)) => Answer::TimedOut,
        Err(StoreError::BreakerOpen) => Answer::Open,
        Err(_) => Answer::Unavailable,
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
            told: Arc::default(),
            stop: Arc::default(),
            callers: Vec::new(),
            late_us: Arc::default(),
        };
        for _ in 0..STORES {
            let store = Arc::new(open(address, TIMEOUT));
            until("the store answers", LONG, async || !take(&store, &stranger()).await.is_error())
                .await;
            let callers =
                (0..crowd.people.len()).map(|who| tokio::spawn(crowd.caller(&store, who)));
            let callers: Vec<_> = callers.collect();
            crowd.callers.extend(callers);
        }
        crowd.callers.push(tokio::spawn(crowd.sleeper()));
        crowd.goes_on().await;
        crowd
    }

    fn caller(
        &self,
        store: &Arc<RedisStore>,
        who: usize,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (store, people) = (store.clone(), self.people.clone());
        let (clock, told, stop) = (self.clock.clone(), self.told.clone(), self.stop.clone());
        async move {
            while !stop.load(Ordering::Relaxed) {
                let began = clock.now();
                let answer = take(&store, &people[who]).await;
                let ended = clock.now();
                told.lock().unwrap().push(Told { who, began, ended, answer });
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        }
    }

    /// Finds out how late the machine is.
    fn sleeper(&self) -> impl Future<Output = ()> + Send + 'static {
        crate::server::find_lateness(self.clock.clone(), self.stop.clone(), self.late_us.clone())
    }

    fn late(&self) -> Duration {
        Duration::from_micros(self.late_us.load(Ordering::Relaxed))
    }

    /// Goes on for a while: until each person was told many times, by the store, how he fares.
    pub async fn goes_on(&self) {
        const MANY: usize = 40;
        let from = self.told.lock().unwrap().len();
        let is_done = || {
            let mut answers = vec![0; self.people.len()];
            for told in
                self.told.lock().unwrap()[from..].iter().filter(|told| !told.answer.is_error())
            {
                answers[told.who] += 1;
            }
            answers.iter().all(|&answers| answers >= MANY)
        };
        until("everybody is answered", LONG, async || is_done()).await;
    }

    /// Goes on until a person is denied.
    pub async fn is_denied(&self, who: usize) {
        let from = self.told.lock().unwrap().len();
        let is = |told: &Told| told.who == who && told.answer == Answer::Denied;
        until("a person is denied", LONG, async || {
            self.told.lock().unwrap()[from..].iter().any(is)
        })
        .await;
    }

    /// Goes on until some were told anything.
    pub async fn a_few_asks(&self) {
        const FEW: usize = 100;
        let from = self.told.lock().unwrap().len();
        until("some are told something", LONG, async || {
            self.told.lock().unwrap().len() >= from + FEW
        })
        .await;
    }

    /// Waits until a node that can be asked again since a moment is called by the stores, which it was so often
    /// before. The promise is that this takes them no longer than a span; and that all is well from then on, which
    /// is when this is over. The moment of that.
    pub async fn resumes(
        &self,
        node: &Redis,
        calls_before: u64,
        since: Timestamp,
        within: Duration,
    ) -> Timestamp {
        until("the new master is asked", LONG, async || calls(node) > calls_before).await;
        let took_us = self.clock.now().as_micros().saturating_sub(since.as_micros());
        let (took, late) = (Duration::from_micros(took_us), self.late());
        println!("resumed after {took:?}, the machine {late:?} late");
        assert!(took < within + 2 * late, "resumed only after {took:?}");
        let well = since.after(within + 2 * late);
        until("all must be well", LONG, async || self.clock.now() >= well).await;
        well
    }

    /// Ends, and looks how all stand.
    pub async fn end(self) -> Record {
        self.stop.store(true, Ordering::Relaxed);
        let late = self.late();
        for caller in self.callers {
            // A caller that panicked has failed the test.
            caller.await.unwrap();
        }
        let told = self.told.lock().unwrap().clone();
        let longest = told.iter().map(Told::waited).max().unwrap();
        println!("{} asks; the longest wait {longest:?}, the machine {late:?} late", told.len());
        assert!(longest < TIMEOUT + SLACK + 2 * late, "a caller waited for {longest:?}");
        // A new store finds the master, too.
        let store = open(&self.address, LONG);
        let mut stands = Vec::new();
        for person in &*self.people {
            stands.push(counts(&store, person).await);
        }
        Record { people: self.people, told, stands }
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
    let much = "x".repeat(MUCH);
    let set = redis::cmd("SET").arg(key).arg(&much).to_owned();
    set.exec(&mut master.connection()).unwrap();
    set.get_packed_command().len() as u64
}

/// How often a node has called a script.
pub fn calls(node: &Redis) -> u64 {
    node.calls_of("evalsha") + node.calls_of("eval")
}

/// Bytes that one charge takes on its way to a replica: no fewer for anybody of a name as long, at the same master.
pub async fn bytes_of_a_charge(address: &str, master: &Node, person: &Person) -> u64 {
    let store = open(address, LONG);
    let mut least = u64::MAX;
    for _ in 0..8 {
        let before = master.offset();
        assert_eq!(take(&store, person).await, Answer::Allowed);
        least = least.min(master.offset() - before);
    }
    assert!(least > 50, "{least} bytes are no charge");
    least
}

/// Somebody who is not counted.
fn stranger() -> Person {
    Person::new("stranger".to_owned(), 1_000_000)
}
