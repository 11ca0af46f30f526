//! Concurrent callers that take units continuously from two stores, which represent two instances of a service. All
//! results are recorded.
//!
//! Each store has one caller for each client, and each caller waits for a result before its next call. So two charges
//! of a client never share a script call, and each charge is replicated separately.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use slidegate::clock::{Clock, SystemClock};
use slidegate::store::{Hit, Key, Scope, Value};
use slidegate::{Algorithm, Limit, Quota, Store, StoreError, Timestamp};
use slidegate_redis::{RedisSettings, RedisStore};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;

use super::load_result::LoadResult;
use crate::server::node::Node;
use crate::server::{LONG, Redis, elapsed_between, poll_until};

/// Timeout of the stores. It is longer than the default, because the tests share a machine.
const STORE_TIMEOUT: Duration = Duration::from_millis(200);

/// Maximum time by which a request may exceed its timeout, in addition to twice the lateness of the machine (the time
/// by which sleeps take too long).
const TIMEOUT_SLACK: Duration = Duration::from_millis(100);

/// Maximum time from the promotion of a replica until the stores call it as the new master.
pub const MAX_PROMOTION_RECOVERY: Duration = Duration::from_secs(2);

const STORE_COUNT: usize = 2;

/// A client of the service, and its limits.
#[derive(Clone, Debug)]
pub struct Client {
    pub name: String,
    /// The limits of the client. If it has a second limit, the counter of that limit has its own key in the same slot.
    pub limits: Vec<Limit>,
}

impl Client {
    /// Creates a client with a limit of `max` units per day. No unit leaves the window during a test, so counts only
    /// grow.
    pub fn new(name: String, max: u64) -> Self {
        Self { name, limits: vec![new_limit_per_day(max, Algorithm::SlidingCounter)] }
    }

    /// Adds a sliding log limit. Its counter has a Redis key of its own; counters of other algorithms share one key.
    pub fn with_sliding_log(mut self, max: u64) -> Self {
        self.limits.push(new_limit_per_day(max, Algorithm::SlidingLog));
        self
    }
}

fn new_limit_per_day(max: u64, algorithm: Algorithm) -> Limit {
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
    BreakerOpen,
}

impl CallOutcome {
    pub fn is_error(self) -> bool {
        !matches!(self, Self::Allowed | Self::Denied)
    }
}

/// The result of one call.
#[derive(Clone, Copy, Debug)]
pub struct CallRecord {
    pub client: usize,
    pub began: Timestamp,
    ended: Timestamp,
    pub outcome: CallOutcome,
}

impl CallRecord {
    fn call_duration(&self) -> Duration {
        elapsed_between(self.began, self.ended)
    }
}

pub struct CallerLoad {
    pub clients: Arc<[Client]>,
    pub clock: SystemClock,
    address: String,
    records: Arc<Mutex<Vec<CallRecord>>>,
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<()>>,
    /// The lateness of the machine: the maximum time in microseconds by which a sleep took too long.
    max_lateness_us: Arc<AtomicU64>,
}

/// Waits for a permit to run a load. At most two loads run at a time, because more would only slow each other down.
pub async fn acquire_load_permit() -> SemaphorePermit<'static> {
    static LOAD_PERMITS: Semaphore = Semaphore::const_new(2);
    LOAD_PERMITS.acquire().await.unwrap()
}

/// A clock that starts at noon when it is first read, so that no day ends during a test.
#[derive(Clone, Copy)]
struct ClockStartingAtNoon;

impl Clock for ClockStartingAtNoon {
    fn now(&self) -> Timestamp {
        static CLOCK_AND_START_TIME: OnceLock<(SystemClock, Timestamp)> = OnceLock::new();
        let (clock, began) = CLOCK_AND_START_TIME.get_or_init(|| {
            let clock = SystemClock::new();
            (clock.clone(), clock.now())
        });
        Timestamp::from_secs(1_750_075_200).after(elapsed_between(*began, clock.now()))
    }
}

/// Creates a store with a [`ClockStartingAtNoon`].
pub fn open_store(address: &str, timeout: Duration) -> RedisStore {
    let settings = RedisSettings { timeout, ..RedisSettings::default() };
    RedisStore::open(address, settings).unwrap().with_clock(ClockStartingAtNoon)
}

/// Calls a function with the hits of a client: one unit for each of its limits.
async fn call_with_hits_of_client<T>(
    client: &Client,
    call: impl AsyncFnOnce(&[Hit<'_>]) -> T,
) -> T {
    let scopes: Vec<Scope> = (0..client.limits.len())
        .map(|nth| Scope::new("scale", "rule", &nth.to_string(), &["client"]))
        .collect();
    let values = [Value::Text(&client.name)];
    let hit = |(scope, limit)| Hit::new(Key::new(scope, &values), limit, 1);
    let hits: Vec<Hit<'_>> = scopes.iter().zip(&client.limits).map(hit).collect();
    call(&hits).await
}

pub async fn take_one_unit(store: &RedisStore, client: &Client) -> CallOutcome {
    match call_with_hits_of_client(client, async |hits| store.charge_async(hits).await).await {
        Ok(taken) if taken.allowed => CallOutcome::Allowed,
        Ok(_) => CallOutcome::Denied,
        Err(StoreError::TimedOut(_)) => CallOutcome::TimedOut,
        Err(StoreError::BreakerOpen) => CallOutcome::BreakerOpen,
        Err(_) => CallOutcome::Unavailable,
    }
}

/// Returns the charged units of each limit of a client.
pub async fn charged_units_per_limit(store: &RedisStore, client: &Client) -> Vec<u64> {
    let peeked =
        call_with_hits_of_client(client, async |hits| store.peek_async(hits).await).await.unwrap();
    let used = |(limit, outcome): (&Limit, &slidegate::store::Outcome)| {
        limit.capacity() - outcome.remaining()
    };
    client.limits.iter().zip(&peeked).map(used).collect()
}

impl CallerLoad {
    /// Starts the callers, and waits until each client has many results.
    pub async fn begin(address: &str, clients: Vec<Client>) -> Self {
        let mut load = Self {
            clients: clients.into(),
            clock: SystemClock::new(),
            address: address.to_owned(),
            records: Arc::default(),
            stop: Arc::default(),
            callers: Vec::new(),
            max_lateness_us: Arc::default(),
        };
        for _ in 0..STORE_COUNT {
            let store = Arc::new(open_store(address, STORE_TIMEOUT));
            poll_until("the store responds", LONG, async || {
                !take_one_unit(&store, &new_unrecorded_client()).await.is_error()
            })
            .await;
            let callers = (0..load.clients.len())
                .map(|client| tokio::spawn(load.take_units_until_stopped(&store, client)));
            let callers: Vec<_> = callers.collect();
            load.callers.extend(callers);
        }
        load.callers.push(tokio::spawn(load.measure_machine_lateness()));
        load.wait_for_decisions().await;
        load
    }

    fn take_units_until_stopped(
        &self,
        store: &Arc<RedisStore>,
        client: usize,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (store, clients) = (store.clone(), self.clients.clone());
        let (clock, records, stop) = (self.clock.clone(), self.records.clone(), self.stop.clone());
        async move {
            while !stop.load(Ordering::Relaxed) {
                let began = clock.now();
                let outcome = take_one_unit(&store, &clients[client]).await;
                let ended = clock.now();
                records.lock().unwrap().push(CallRecord { client, began, ended, outcome });
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        }
    }

    /// Returns a task that measures the lateness of the machine while the load runs.
    fn measure_machine_lateness(&self) -> impl Future<Output = ()> + Send + 'static {
        crate::server::measure_lateness(
            self.clock.clone(),
            self.stop.clone(),
            self.max_lateness_us.clone(),
        )
    }

    fn machine_lateness(&self) -> Duration {
        Duration::from_micros(self.max_lateness_us.load(Ordering::Relaxed))
    }

    /// Waits until the stores have decided 40 more calls of each client.
    pub async fn wait_for_decisions(&self) {
        const DECISIONS_PER_CLIENT: usize = 40;
        let from = self.records.lock().unwrap().len();
        let is_done = || {
            let mut decisions = vec![0; self.clients.len()];
            for record in self.records.lock().unwrap()[from..]
                .iter()
                .filter(|record| !record.outcome.is_error())
            {
                decisions[record.client] += 1;
            }
            decisions.iter().all(|&count| count >= DECISIONS_PER_CLIENT)
        };
        poll_until("each client has decisions", LONG, async || is_done()).await;
    }

    /// Waits until a call of this client is denied.
    pub async fn wait_for_denial(&self, client: usize) {
        let from = self.records.lock().unwrap().len();
        let is_denial =
            |record: &CallRecord| record.client == client && record.outcome == CallOutcome::Denied;
        poll_until("a client is denied", LONG, async || {
            self.records.lock().unwrap()[from..].iter().any(is_denial)
        })
        .await;
    }

    /// Waits for 100 more results.
    pub async fn wait_for_more_calls(&self) {
        const ADDITIONAL_CALL_COUNT: usize = 100;
        let from = self.records.lock().unwrap().len();
        poll_until("there are more results", LONG, async || {
            self.records.lock().unwrap().len() >= from + ADDITIONAL_CALL_COUNT
        })
        .await;
    }

    /// Waits until the stores call a node. The node has been available from the time `since` on, and had run
    /// `calls_before` script calls before. Asserts that the first new call arrives in time: at most `within` plus twice
    /// the lateness of the machine after `since`. Then waits until the end of this period and returns the end. From
    /// then on, all requests must succeed.
    pub async fn wait_for_recovery(
        &self,
        node: &Redis,
        calls_before: u64,
        since: Timestamp,
        within: Duration,
    ) -> Timestamp {
        poll_until("the new master is called", LONG, async || script_calls_at(node) > calls_before)
            .await;
        let (took, late) = (elapsed_between(since, self.clock.now()), self.machine_lateness());
        println!("resumed after {took:?}, machine lateness {late:?}");
        assert!(took < within + 2 * late, "resumed only after {took:?}");
        let recovered_at = since.after(within + 2 * late);
        poll_until("all must work", LONG, async || self.clock.now() >= recovered_at).await;
        recovered_at
    }

    /// Stops the callers, reads the final number of charges, and returns them with all results.
    pub async fn end(self) -> LoadResult {
        self.stop.store(true, Ordering::Relaxed);
        let late = self.machine_lateness();
        for caller in self.callers {
            // A caller that panicked has failed the test.
            caller.await.unwrap();
        }
        let records = self.records.lock().unwrap().clone();
        let longest = records.iter().map(CallRecord::call_duration).max().unwrap();
        println!("{} calls; longest wait {longest:?}, machine lateness {late:?}", records.len());
        assert!(
            longest < STORE_TIMEOUT + TIMEOUT_SLACK + 2 * late,
            "a caller waited for {longest:?}"
        );
        // A new store must find the master, too.
        let store = open_store(&self.address, LONG);
        let mut charged = Vec::new();
        for client in &*self.clients {
            charged.push(charged_units_per_limit(&store, client).await);
        }
        LoadResult { clients: self.clients, records, charged }
    }
}

/// Creates the nth client. One client in four is denied soon, one in four is denied later, and the others are never
/// denied.
pub fn new_client(name: String, nth: usize) -> Client {
    Client::new(name, [150, 1_000, 1_000_000, 1_000_000][nth % 4])
}

/// The index of a client that is denied only after a while.
pub const LATE_DENIED_CLIENT: usize = 1;

/// Pauses a replica and fills its socket buffers with a large write to its master, so that no later write reaches the
/// replica. Returns the number of bytes of the large write.
pub fn make_replica_lag(master: &Node, replica: &Node, key: &str) -> u64 {
    // More bytes than the socket buffers of a connection hold.
    const LARGE_VALUE_BYTES: usize = 32 << 20;
    replica.pause();
    let skipped_bytes = "x".repeat(LARGE_VALUE_BYTES);
    let set = redis::cmd("SET").arg(key).arg(&skipped_bytes).to_owned();
    set.exec(&mut master.connection()).unwrap();
    set.get_packed_command().len() as u64
}

/// Returns the number of script calls that a node has run.
pub fn script_calls_at(node: &Redis) -> u64 {
    node.calls_of("evalsha") + node.calls_of("eval")
}

/// Returns a lower bound for the bytes that one charge takes in the replication stream of a master. The bound is valid
/// for clients whose names have the same length.
pub async fn bytes_per_charge(address: &str, master: &Node, client: &Client) -> u64 {
    let store = open_store(address, LONG);
    let mut min_bytes = u64::MAX;
    for _ in 0..8 {
        let before = master.offset();
        assert_eq!(take_one_unit(&store, client).await, CallOutcome::Allowed);
        min_bytes = min_bytes.min(master.offset() - before);
    }
    assert!(min_bytes > 50, "{min_bytes} bytes are too few for a charge");
    min_bytes
}

/// Creates a client whose calls are not recorded.
fn new_unrecorded_client() -> Client {
    Client::new("stranger".to_owned(), 1_000_000)
}
