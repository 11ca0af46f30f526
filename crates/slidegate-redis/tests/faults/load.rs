//! Callers that ask without a pause, and notes of all that they were told.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slidegate::{Clock, Descriptor, Gate, Policy, Request, SystemClock};
use slidegate_redis::{RedisStore, Settings};
use tokio::task::JoinHandle;

use crate::server::{Redis, poll_until};

/// Longer than by default: other tests need the machine too.
pub const TIMEOUT: Duration = Duration::from_millis(100);

/// A wait that is longer than the time-out by this, and twice what the machine itself was late, is too long.
const SLACK: Duration = Duration::from_millis(100);

/// Restarts apart, what recovers does so within this: the longest back-off of the breaker, a connection and
/// what the machine needs.
pub const RECOVERY: Duration = Duration::from_secs(10);

const CALLERS: usize = 24;
const IDENTITIES: [&str; 6] = ["ann", "bea", "cid", "dan", "eve", "fay"];

/// In a second, and in a day.
pub const MAX: u64 = 30;
pub const MAX_A_DAY: u64 = 400;
const SECOND_US: u64 = 1_000_000;

/// What a caller was told.
#[derive(Clone, Copy, Debug)]
pub struct LoadRecord {
    identity: usize,
    began_us: u64,
    ended_us: u64,
    pub allowed: bool,
    pub degraded: bool,
    pub is_refused: bool,
}

impl LoadRecord {
    pub fn waited(&self) -> Duration {
        Duration::from_micros(self.ended_us - self.began_us)
    }
}

/// Callers of one gate.
pub struct Load {
    pub gate: Arc<Gate<RedisStore>>,
    on_store_error: &'static str,
    clock: SystemClock,
    records: Arc<Mutex<Vec<LoadRecord>>>,
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<()>>,
    /// The longest that a task slept beyond what it meant to.
    max_lateness_us: Arc<AtomicU64>,
}

/// A gate over a store at an address, that does this while the store does not answer.
pub fn gate(address: &str, on_store_error: &str, settings: Settings) -> Gate<RedisStore> {
    let policy = format!(
        "rules:
  - name: {on_store_error}
    per: [client]
    limits: [{MAX}/s, {MAX_A_DAY}/d]
    algorithm: sliding_log
    on_store_error: {on_store_error}"
    );
    let store = RedisStore::open(address, settings).unwrap();
    Gate::new(Policy::from_yaml(&policy).unwrap(), store)
}

pub fn patient() -> Settings {
    Settings { timeout: TIMEOUT, ..Settings::default() }
}

impl Load {
    /// Begins, once the store answers.
    pub async fn begin(address: &str, on_store_error: &'static str) -> Self {
        let gate = Arc::new(gate(address, on_store_error, patient()));
        let load = Self {
            gate,
            on_store_error,
            clock: SystemClock::new(),
            records: Arc::default(),
            stop: Arc::default(),
            callers: Vec::new(),
            max_lateness_us: Arc::default(),
        };
        load.wait_for_recovery("at the start").await;
        let mut callers: Vec<_> = (0..CALLERS).map(|nth| tokio::spawn(load.caller(nth))).collect();
        callers.push(tokio::spawn(load.measure_lateness_task()));
        Self { callers, ..load }
    }

    fn caller(&self, nth: usize) -> impl Future<Output = ()> + Send + 'static {
        let (gate, clock) = (self.gate.clone(), self.clock.clone());
        let (records, stop) = (self.records.clone(), self.stop.clone());
        async move {
            let mut turn = nth;
            while !stop.load(Ordering::Relaxed) {
                turn += 1;
                let identity = turn % IDENTITIES.len();
                let began_us = clock.now().as_micros();
                let ruling = gate.check(&request(IDENTITIES[identity])).await;
                let ended_us = clock.now().as_micros();
                let decision = ruling.decision();
                records.lock().unwrap().push(LoadRecord {
                    identity,
                    began_us,
                    ended_us,
                    allowed: decision.is_allowed(),
                    degraded: decision.is_degraded(),
                    is_refused: decision.is_refused(),
                });
                tokio::time::sleep(Duration::from_millis(2)).await;
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

    /// Waits until a request is decided by the store.
    pub async fn wait_for_recovery(&self, when: &str) -> Duration {
        poll_until(when, RECOVERY, async || {
            !self.gate.check(&request("one more")).await.decision().is_degraded()
        })
        .await
    }

    /// Waits until callers were told so many more things like this.
    pub async fn wait_for_decisions(
        &self,
        what: &str,
        count: usize,
        is_match: impl Fn(&LoadRecord) -> bool,
    ) {
        let from = self.records.lock().unwrap().len();
        poll_until(what, RECOVERY, async || {
            self.records.lock().unwrap()[from..].iter().filter(|records| is_match(records)).count()
                >= count
        })
        .await;
    }

    /// How many have been told something.
    pub fn record_count(&self) -> usize {
        self.records.lock().unwrap().len()
    }

    /// Ends, and holds all that was told against the promises.
    pub async fn end(self) -> Vec<LoadRecord> {
        self.stop.store(true, Ordering::Relaxed);
        for caller in self.callers {
            // A caller that panicked has failed the test.
            caller.await.unwrap();
        }
        let records = self.records.lock().unwrap().clone();
        let late = Duration::from_micros(self.max_lateness_us.load(Ordering::Relaxed));
        let longest = records.iter().map(LoadRecord::waited).max().unwrap();
        println!(
            "{}: {} decisions, {} degraded; the longest wait {longest:?}, the machine {late:?} late",
            self.on_store_error,
            records.len(),
            records.iter().filter(|records| records.degraded).count(),
        );
        assert!(longest < TIMEOUT + SLACK + 2 * late, "a caller waited for {longest:?}");
        for records in records.iter().filter(|records| records.degraded) {
            match self.on_store_error {
                "deny" => assert!(!records.allowed && records.is_refused),
                "allow" => assert!(records.allowed),
                _ => assert!(!records.is_refused),
            }
        }
        records
    }
}

pub fn request(identity: &'static str) -> Request<'static> {
    Request::new("default", Descriptor::new([("client", identity)]))
}

/// What the store itself allowed is never above max: in a second, nor in all, unless Redis lost counts. Of a
/// decision is known only between which moments it fell; counted is what lies in a window for certain.
pub fn assert_never_above(records: &[LoadRecord], redis_lost: bool) {
    for identity in 0..IDENTITIES.len() {
        let mut passed: Vec<&LoadRecord> = records
            .iter()
            .filter(|records| records.identity == identity && records.allowed && !records.degraded)
            .collect();
        assert!(!passed.is_empty(), "a test that allows nothing shows nothing");
        assert!(redis_lost || passed.len() as u64 <= MAX_A_DAY, "{} in a day", passed.len());
        passed.sort_by_key(|records| records.began_us);
        for (nth, first) in passed.iter().enumerate() {
            let inside = |records: &&&LoadRecord| records.ended_us < first.began_us + SECOND_US;
            let count = passed[nth..].iter().filter(inside).count() as u64;
            assert!(redis_lost || count <= MAX, "{count} within a second");
        }
    }
}

/// Under load by gates of every kind: something happens, and then no more. All recover, and no key stays.
pub struct Trial {
    pub loads: Vec<Load>,
}

impl Trial {
    pub async fn begin(address: &str) -> Self {
        let mut loads = Vec::new();
        for on_store_error in ["allow", "deny", "local"] {
            loads.push(Load::begin(address, on_store_error).await);
        }
        let trial = Self { loads };
        trial.wait_for_all("decisions by the store", 100, |records| !records.degraded).await;
        trial
    }

    pub async fn wait_for_all(
        &self,
        what: &str,
        count: usize,
        is_match: impl Fn(&LoadRecord) -> bool,
    ) {
        for load in &self.loads {
            load.wait_for_decisions(what, count, &is_match).await;
        }
    }

    /// Everybody is answered by the store again, and goes on for a while.
    pub async fn wait_for_recovery(&self) {
        for load in &self.loads {
            let took = load.wait_for_recovery("after it is over").await;
            println!("recovered after {took:?} more");
        }
        self.wait_for_all("decisions by the store", 200, |records| !records.degraded).await;
    }

    pub async fn end(self, redis: &Redis, redis_lost: bool) -> Vec<Vec<LoadRecord>> {
        let mut all = Vec::new();
        for load in self.loads {
            let records = load.end().await;
            assert_never_above(&records, redis_lost);
            all.push(records);
        }
        redis.assert_all_expire();
        all
    }
}
