//! Callers that ask without a pause, and notes of all that they were told.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slidegate::{Clock, Descriptor, Gate, Policy, Request, SystemClock};
use slidegate_redis::{RedisStore, Settings};
use tokio::task::JoinHandle;

use crate::server::{Redis, until};

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
pub struct Told {
    who: usize,
    began_us: u64,
    ended_us: u64,
    pub allowed: bool,
    pub degraded: bool,
    pub refused: bool,
}

impl Told {
    pub fn waited(&self) -> Duration {
        Duration::from_micros(self.ended_us - self.began_us)
    }
}

/// Callers of one gate.
pub struct Load {
    pub gate: Arc<Gate<RedisStore>>,
    on_store_error: &'static str,
    clock: SystemClock,
    told: Arc<Mutex<Vec<Told>>>,
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<()>>,
    /// The longest that a task slept beyond what it meant to.
    late_us: Arc<AtomicU64>,
}

/// A gate over a store at an address, that does this while the store does not answer.
pub fn gate(address: &str, on_store_error: &str, settings: Settings) -> Gate<RedisStore> {
    let policy = format!(
        "rules:
  - name: {on_store_error}
    per: [who]
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
            told: Arc::default(),
            stop: Arc::default(),
            callers: Vec::new(),
            late_us: Arc::default(),
        };
        load.recovers("at the start").await;
        let mut callers: Vec<_> = (0..CALLERS).map(|nth| tokio::spawn(load.caller(nth))).collect();
        callers.push(tokio::spawn(load.sleeper()));
        Self { callers, ..load }
    }

    fn caller(&self, nth: usize) -> impl Future<Output = ()> + Send + 'static {
        let (gate, clock) = (self.gate.clone(), self.clock.clone());
        let (told, stop) = (self.told.clone(), self.stop.clone());
        async move {
            let mut turn = nth;
            while !stop.load(Ordering::Relaxed) {
                turn += 1;
                let who = turn % IDENTITIES.len();
                let began_us = clock.now().as_micros();
                let ruling = gate.check(&request(IDENTITIES[who])).await;
                let ended_us = clock.now().as_micros();
                let decision = ruling.decision();
                told.lock().unwrap().push(Told {
                    who,
                    began_us,
                    ended_us,
                    allowed: decision.is_allowed(),
                    degraded: decision.is_degraded(),
                    refused: decision.is_store_unavailable(),
                });
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }

    /// Finds out how late the machine is.
    fn sleeper(&self) -> impl Future<Output = ()> + Send + 'static {
        crate::server::find_lateness(self.clock.clone(), self.stop.clone(), self.late_us.clone())
    }

    /// Waits until a request is decided by the store.
    pub async fn recovers(&self, when: &str) -> Duration {
        until(when, RECOVERY, async || {
            !self.gate.check(&request("one more")).await.decision().is_degraded()
        })
        .await
    }

    /// Waits until callers were told so many more things like this.
    pub async fn sees(&self, what: &str, many: usize, is_it: impl Fn(&Told) -> bool) {
        let from = self.told.lock().unwrap().len();
        until(what, RECOVERY, async || {
            self.told.lock().unwrap()[from..].iter().filter(|told| is_it(told)).count() >= many
        })
        .await;
    }

    /// How many have been told something.
    pub fn mark(&self) -> usize {
        self.told.lock().unwrap().len()
    }

    /// Ends, and holds all that was told against the promises.
    pub async fn end(self) -> Vec<Told> {
        self.stop.store(true, Ordering::Relaxed);
        for caller in self.callers {
            // A caller that panicked has failed the test.
            caller.await.unwrap();
        }
        let told = self.told.lock().unwrap().clone();
        let late = Duration::from_micros(self.late_us.load(Ordering::Relaxed));
        let longest = told.iter().map(Told::waited).max().unwrap();
        println!(
            "{}: {} decisions, {} degraded; the longest wait {longest:?}, the machine {late:?} late",
            self.on_store_error,
            told.len(),
            told.iter().filter(|told| told.degraded).count(),
        );
        assert!(longest < TIMEOUT + SLACK + 2 * late, "a caller waited for {longest:?}");
        for told in told.iter().filter(|told| told.degraded) {
            match self.on_store_error {
                "deny" => assert!(!told.allowed && told.refused),
                "allow" => assert!(told.allowed),
                _ => assert!(!told.refused),
            }
        }
        told
    }
}

pub fn request(who: &'static str) -> Request<'static> {
    Request::new("default", Descriptor::new([("who", who)]))
}

/// What the store itself allowed is never above max: in a second, nor in all, unless Redis lost counts. Of a
/// decision is known only between which moments it fell; counted is what lies in a window for certain.
pub fn assert_never_above(told: &[Told], redis_lost: bool) {
    for who in 0..IDENTITIES.len() {
        let mut passed: Vec<&Told> =
            told.iter().filter(|told| told.who == who && told.allowed && !told.degraded).collect();
        assert!(!passed.is_empty(), "a test that allows nothing shows nothing");
        assert!(redis_lost || passed.len() as u64 <= MAX_A_DAY, "{} in a day", passed.len());
        passed.sort_by_key(|told| told.began_us);
        for (nth, first) in passed.iter().enumerate() {
            let inside = |told: &&&Told| told.ended_us < first.began_us + SECOND_US;
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
        trial.all_see("decisions by the store", 100, |told| !told.degraded).await;
        trial
    }

    pub async fn all_see(&self, what: &str, many: usize, is_it: impl Fn(&Told) -> bool) {
        for load in &self.loads {
            load.sees(what, many, &is_it).await;
        }
    }

    /// Everybody is answered by the store again, and goes on for a while.
    pub async fn recovers(&self) {
        for load in &self.loads {
            let took = load.recovers("after it is over").await;
            println!("recovered after {took:?} more");
        }
        self.all_see("decisions by the store", 200, |told| !told.degraded).await;
    }

    pub async fn end(self, redis: &Redis, redis_lost: bool) -> Vec<Vec<Told>> {
        let mut all = Vec::new();
        for load in self.loads {
            let told = load.end().await;
            assert_never_above(&told, redis_lost);
            all.push(told);
        }
        redis.assert_all_expire();
        all
    }
}
