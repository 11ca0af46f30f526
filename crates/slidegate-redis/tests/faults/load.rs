//! Runs concurrent callers that check requests continuously, and records all results.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slidegate::clock::{Clock, SystemClock};
use slidegate::{Descriptor, Gate, Policy, Reason, Request, Timestamp};
use slidegate_redis::{RedisSettings, RedisStore};
use tokio::task::JoinHandle;

use crate::server::{Redis, poll_until};

/// Timeout of the stores. It is longer than the default, because tests share the machine.
pub const STORE_TIMEOUT: Duration = Duration::from_millis(100);

/// Maximum time by which a request may exceed its timeout, in addition to twice the lateness of the machine (the time
/// by which sleeps take too long).
const TIMEOUT_SLACK: Duration = Duration::from_millis(100);

/// Maximum time from the end of a fault until the store decides again, excluding restarts. The time includes the
/// maximum backoff of the circuit breaker, a connection attempt, and delays of the machine.
pub const MAX_RECOVERY_TIME: Duration = Duration::from_secs(10);

const CALLER_COUNT: usize = 24;
const IDENTITY_NAMES: [&str; 6] = ["ann", "bea", "cid", "dan", "eve", "fay"];

/// Maximum units per second of each identity.
pub const MAX_PER_SECOND: u64 = 30;
/// Maximum units per day of each identity.
pub const MAX_PER_DAY: u64 = 400;
const MICROS_PER_SECOND: u64 = 1_000_000;

/// The result of one request.
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
        Duration::from_micros(self.ended_us.saturating_sub(self.began_us))
    }

    /// Returns `true` if the request began and ended within a time range.
    pub fn is_within(&self, from: Timestamp, to: Timestamp) -> bool {
        self.began_us >= from.as_micros() && self.ended_us <= to.as_micros()
    }
}

/// Callers that send requests to one gate, and the records of their results.
pub struct Load {
    pub gate: Arc<Gate<RedisStore>>,
    on_store_error: &'static str,
    clock: SystemClock,
    records: Arc<Mutex<Vec<LoadRecord>>>,
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<()>>,
    /// The lateness of the machine: the maximum time in microseconds by which a sleep took too long.
    max_lateness_us: Arc<AtomicU64>,
}

/// Creates a gate whose store is at an address. `on_store_error` is the behavior of the policy while the store fails.
pub fn new_gate(address: &str, on_store_error: &str, settings: RedisSettings) -> Gate<RedisStore> {
    let policy = format!(
        "rules:
  - name: {on_store_error}
    per: [client]
    limits: [{MAX_PER_SECOND}/s, {MAX_PER_DAY}/d]
    algorithm: sliding_log
    on_store_error: {on_store_error}"
    );
    let store = RedisStore::open(address, settings).unwrap();
    Gate::new(Policy::from_yaml(&policy).unwrap(), store)
}

pub fn patient_settings() -> RedisSettings {
    RedisSettings { timeout: STORE_TIMEOUT, ..RedisSettings::default() }
}

impl Load {
    /// Starts the callers as soon as the store responds.
    pub async fn begin(address: &str, on_store_error: &'static str) -> Self {
        let gate = Arc::new(new_gate(address, on_store_error, patient_settings()));
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
        let mut callers: Vec<_> = (0..CALLER_COUNT)
            .map(|nth| tokio::spawn(load.send_requests_until_stopped(nth)))
            .collect();
        callers.push(tokio::spawn(load.measure_machine_lateness()));
        Self { callers, ..load }
    }

    fn send_requests_until_stopped(&self, nth: usize) -> impl Future<Output = ()> + Send + 'static {
        let (gate, clock) = (self.gate.clone(), self.clock.clone());
        let (records, stop) = (self.records.clone(), self.stop.clone());
        async move {
            let mut turn = nth;
            while !stop.load(Ordering::Relaxed) {
                turn += 1;
                let identity = turn % IDENTITY_NAMES.len();
                let began_us = clock.now().as_micros();
                let decision = gate.check_async(&new_request(IDENTITY_NAMES[identity])).await;
                let ended_us = clock.now().as_micros();
                records.lock().unwrap().push(LoadRecord {
                    identity,
                    began_us,
                    ended_us,
                    allowed: decision.is_allowed(),
                    degraded: decision.is_degraded(),
                    is_refused: decision.reason() == Some(Reason::StoreUnavailable),
                });
                tokio::time::sleep(Duration::from_millis(2)).await;
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

    /// Waits until the store decides a request. Returns the time that this took.
    pub async fn wait_for_recovery(&self, when: &str) -> Duration {
        poll_until(when, MAX_RECOVERY_TIME, async || {
            !self.gate.check_async(&new_request("one more")).await.is_degraded()
        })
        .await
    }

    /// Waits for `count` more results for which `is_match` returns `true`.
    pub async fn wait_for_decisions(
        &self,
        context: &str,
        count: usize,
        is_match: impl Fn(&LoadRecord) -> bool,
    ) {
        let from = self.records.lock().unwrap().len();
        poll_until(context, MAX_RECOVERY_TIME, async || {
            self.records.lock().unwrap()[from..].iter().filter(|record| is_match(record)).count()
                >= count
        })
        .await;
    }

    /// Returns the time by the clock of the records.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the lateness of the machine so far.
    pub fn machine_lateness(&self) -> Duration {
        Duration::from_micros(self.max_lateness_us.load(Ordering::Relaxed))
    }

    /// Stops the callers, checks all results, and returns them.
    pub async fn end(self) -> Vec<LoadRecord> {
        self.stop.store(true, Ordering::Relaxed);
        let late = self.machine_lateness();
        for caller in self.callers {
            // A caller that panicked has failed the test.
            caller.await.unwrap();
        }
        let records = self.records.lock().unwrap().clone();
        let longest = records.iter().map(LoadRecord::waited).max().unwrap();
        println!(
            "{}: {} decisions, {} degraded; the longest wait {longest:?}, the machine {late:?} late",
            self.on_store_error,
            records.len(),
            records.iter().filter(|record| record.degraded).count(),
        );
        assert!(
            longest < STORE_TIMEOUT + TIMEOUT_SLACK + 2 * late,
            "a caller waited for {longest:?}"
        );
        for record in records.iter().filter(|record| record.degraded) {
            match self.on_store_error {
                "deny" => assert!(!record.allowed && record.is_refused),
                "allow" => assert!(record.allowed),
                _ => assert!(!record.is_refused),
            }
        }
        records
    }
}

pub fn new_request(identity: &'static str) -> Request<'static> {
    Request::new("default", Descriptor::new([("client", identity)]))
}

/// Asserts that the store never allowed more units than the limits' maxima per second and per day, unless Redis has
/// lost counts (`redis_lost`). The exact time of a decision is unknown, so only decisions that are certainly within a
/// window are counted.
pub fn assert_max_never_exceeded(records: &[LoadRecord], redis_lost: bool) {
    for identity in 0..IDENTITY_NAMES.len() {
        let mut passed: Vec<&LoadRecord> = records
            .iter()
            .filter(|record| record.identity == identity && record.allowed && !record.degraded)
            .collect();
        assert!(!passed.is_empty(), "the test must allow units");
        assert!(redis_lost || passed.len() as u64 <= MAX_PER_DAY, "{} in a day", passed.len());
        passed.sort_by_key(|record| record.began_us);
        for (nth, first) in passed.iter().enumerate() {
            let inside =
                |record: &&&LoadRecord| record.ended_us < first.began_us + MICROS_PER_SECOND;
            let count = passed[nth..].iter().filter(inside).count() as u64;
            assert!(redis_lost || count <= MAX_PER_SECOND, "{count} within a second");
        }
    }
}

/// A fault test under load. Three gates, which behave differently while their store fails, receive requests while the
/// test injects a fault and ends it. Then all callers must recover, and all keys must have an expiry.
pub struct FaultTrial {
    pub loads: Vec<Load>,
}

impl FaultTrial {
    pub async fn begin(address: &str) -> Self {
        let mut loads = Vec::new();
        for on_store_error in ["allow", "deny", "local"] {
            loads.push(Load::begin(address, on_store_error).await);
        }
        let trial = Self { loads };
        trial.wait_for_all("decisions by the store", 100, |record| !record.degraded).await;
        trial
    }

    pub async fn wait_for_all(
        &self,
        context: &str,
        count: usize,
        is_match: impl Fn(&LoadRecord) -> bool,
    ) {
        for load in &self.loads {
            load.wait_for_decisions(context, count, &is_match).await;
        }
    }

    pub async fn wait_for_open_breakers(&self) {
        for load in &self.loads {
            poll_until("the breaker is open", MAX_RECOVERY_TIME, async || {
                load.gate.store().is_breaker_open()
            })
            .await;
        }
    }

    /// Waits until the store of each gate decides again, and then until each gate has 200 further decisions by its
    /// store.
    pub async fn wait_for_recovery(&self) {
        for load in &self.loads {
            let took = load.wait_for_recovery("after the fault").await;
            println!("recovered after {took:?} more");
        }
        self.wait_for_all("decisions by the store", 200, |record| !record.degraded).await;
    }

    pub async fn end(self, redis: &Redis, redis_lost: bool) -> Vec<Vec<LoadRecord>> {
        let mut all = Vec::new();
        for load in self.loads {
            let records = load.end().await;
            assert_max_never_exceeded(&records, redis_lost);
            all.push(records);
        }
        redis.assert_all_expire();
        all
    }
}
