//! A limiter on tokio's paused time, and a store across a network.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use slidegate::clock::Clock;
use slidegate::store::{
    Adjustment, Asynchronous, CallSettlement, ChargeResult, CounterId, Edit, Hit, Outcomes,
    PermitChange, Receipt, SettleResult,
};
use slidegate::{Algorithm, Limit, Limiter, MemoryStore, Store, StoreError, SyncStore, Timestamp};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

/// A clock that follows tokio's paused time.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    started: Instant,
}

impl TokioClock {
    pub fn new() -> Self {
        Self { started: Instant::now() }
    }

    /// Returns the milliseconds since the clock was created.
    pub fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_secs(1_750_000_020).after(self.started.elapsed())
    }
}

pub type TestLimiter = Limiter<MemoryStore<TokioClock>>;

/// Runs a test on tokio's paused time: when all tasks wait, the time advances to the next timer.
pub fn run_on_paused_time<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test)
}

/// Creates a limiter that counts exactly, so that tests can state the times of admissions.
pub fn new_exact_limiter(limits: &[&str]) -> (TokioClock, Arc<TestLimiter>) {
    let clock = TokioClock::new();
    let store = MemoryStore::with_clock(clock, 10_000);
    (clock, Arc::new(Limiter::with_store("limiter", exact(limits), store).unwrap()))
}

/// Returns limits with the algorithm `sliding_log`.
pub fn exact(limits: &[&str]) -> Vec<Limit> {
    let exact = |limit: &&str| Limit::new(limit.parse().unwrap(), Algorithm::SlidingLog).unwrap();
    limits.iter().map(exact).collect()
}

pub const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A store across a network: each call takes a round trip of two milliseconds. Clones share the counters.
#[derive(Clone, Debug)]
pub struct RemoteStore {
    counters: Arc<MemoryStore<TokioClock>>,
    calls: Arc<AtomicUsize>,
    /// The time that the response to a charge takes.
    charge_response: Duration,
}

const ONE_WAY: Duration = ms(1);

impl RemoteStore {
    pub fn new(clock: TokioClock) -> Self {
        let counters = Arc::new(MemoryStore::with_clock(clock, 10_000));
        Self { counters, calls: Arc::default(), charge_response: ONE_WAY }
    }

    /// Sets the time that the response to a charge takes.
    pub fn with_charge_response(self, charge_response: Duration) -> Self {
        Self { charge_response, ..self }
    }

    /// Returns the number of calls so far.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    async fn call<T>(
        &self,
        call: impl FnOnce(&MemoryStore<TokioClock>) -> T,
    ) -> Result<T, StoreError> {
        self.call_with_response(ONE_WAY, call).await
    }

    async fn call_with_response<T>(
        &self,
        response: Duration,
        call: impl FnOnce(&MemoryStore<TokioClock>) -> T,
    ) -> Result<T, StoreError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        sleep(ONE_WAY).await;
        let result = call(&self.counters);
        sleep(response).await;
        Ok(result)
    }
}

impl Store for RemoteStore {
    type Kind = Asynchronous;

    async fn charge_async(&self, call: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        self.call_with_response(self.charge_response, |store| store.charge(call)).await
    }

    async fn charge_many_async(
        &self,
        calls: &[&[Hit<'_>]],
    ) -> Result<Vec<ChargeResult>, StoreError> {
        self.call(|store| calls.iter().map(|call| store.charge(call)).collect()).await
    }

    async fn peek_async(&self, call: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        self.call(|store| store.peek(call)).await
    }

    async fn adjust_async(
        &self,
        receipt: &Receipt,
        adjustment: Adjustment,
    ) -> Result<(), StoreError> {
        self.call(|store| store.adjust(receipt, adjustment)).await
    }

    async fn settle_async(&self, settlement: &CallSettlement) -> Result<SettleResult, StoreError> {
        self.call(|store| store.settle(settlement)).await
    }

    async fn change_permit_async(
        &self,
        permit: &Receipt,
        change: PermitChange,
    ) -> Result<bool, StoreError> {
        self.call(|store| store.change_permit(permit, change)).await
    }

    /// Reverts after the present tasks have run, as a store does that reverts in the background.
    fn revert_later(&self, receipt: Receipt) {
        let store = self.clone();
        tokio::task::spawn_local(async move {
            store.call(|store| store.adjust(&receipt, Adjustment::Revert)).await
        });
    }

    fn counter_id(&self, hit: &Hit<'_>) -> Option<CounterId> {
        self.counters.counter_id(hit)
    }

    async fn edit_async(&self, hits: &[Hit<'_>], edit: Edit) -> Result<Outcomes, StoreError> {
        self.call(|store| store.edit(hits, edit)).await
    }
}
