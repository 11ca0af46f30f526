//! Property tests for stores.
//!
//! Each function takes an empty store and the clock that the store reads, and panics if the store does not have the
//! property. Calls to the store must not fail.

use std::time::Duration;

use fastrand::Rng;

use crate::algorithm::Algorithm;
use crate::clock::{Clock, ManualClock, Timestamp};
use crate::hit::{Hit, Veto};
use crate::key::{Key, Scope, Value};
use crate::limit::Limit;
use crate::outcome::Outcome;
use crate::store::{Adjustment, ChargeResult, Edit, Store};

pub use super::calendar::calendar_periods_are_counted_separately;
pub use super::clock_steps::{
    clock_steps_keep_bound_and_waits, permits_end_in_time_after_clock_steps,
};
pub use super::limits::{limits, max_units_in_window};
use super::oracle::Oracle;

/// Tests all properties of each of the [`limits`] that the store supports. `new_store` returns an empty store that
/// reads the clock.
pub async fn all_properties_hold<S: Store>(
    new_store: impl Fn() -> S,
    clock: &ManualClock,
    seed: u64,
) {
    let store = new_store();
    for limit in limits().iter().filter(|limit| store.supports(limit).is_ok()) {
        all_properties_of_limit_hold(&new_store, clock, limit, seed).await;
    }
}

async fn all_properties_of_limit_hold<S: Store>(
    new_store: &impl Fn() -> S,
    clock: &ManualClock,
    limit: &Limit,
    seed: u64,
) {
    units_stay_below_bound(&new_store(), clock, limit, seed).await;
    units_stay_below_bound_without_refunds(&new_store(), clock, limit, seed).await;
    retry_after_is_exact(&new_store(), clock, limit, seed).await;
    cost_above_max_has_no_retry_after(&new_store(), clock, limit).await;
    denial_charges_nothing(&new_store(), clock, limit).await;
    free_units_are_exact_in_debt(&new_store(), clock, limit).await;
    debts_are_paid_first(&new_store(), clock, limit, seed).await;
    revert_undoes_its_charge(&new_store(), clock, limit, seed).await;
    refund_frees_as_many_units(&new_store(), clock, limit, seed).await;
    order_of_hits_is_irrelevant((&new_store(), &new_store()), clock, &[*limit], seed).await;
}

/// A counter under test: one key with one limit in a store.
pub(super) struct TestCounter<'s, S> {
    store: &'s S,
    scope: Scope,
    pub(super) limit: Limit,
}

impl<S: Store> TestCounter<'_, S> {
    fn hit(&self, cost: u64) -> Hit<'_> {
        let key = Key::new(&self.scope, &[Value::Text("one")]);
        Hit::new(key, &self.limit, cost)
    }

    pub(super) async fn try_charge(&self, cost: u64) -> ChargeResult {
        unwrap_store_response(self.store.charge_async(&[self.hit(cost)]).await)
    }

    async fn refund(&self, cost: u64) -> Outcome {
        unwrap_store_response(self.store.edit_async(&[self.hit(cost)], Edit::Refund).await)[0]
    }

    pub(super) async fn peek(&self, cost: u64) -> Outcome {
        unwrap_store_response(self.store.peek_async(&[self.hit(cost)]).await)[0]
    }
}

pub(super) fn unwrap_store_response<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    match result {
        Ok(response) => response,
        Err(error) => panic!("property tests need a store whose calls succeed: {error}"),
    }
}

/// Sets the clock to a fixed time plus `start` microseconds, and returns a counter without charges.
pub(super) fn new_test_counter<'s, S: Store>(
    store: &'s S,
    clock: &ManualClock,
    limit: &Limit,
    start: u64,
) -> TestCounter<'s, S> {
    clock.set(Timestamp::from_micros(1_750_000_000_000_000 + start));
    TestCounter { store, scope: Scope::new("test", "rule", "limit", &["key"]), limit: *limit }
}

/// Returns whether the limit counts exactly: a sliding log, or a sliding window with a max of at most its resolution,
/// with ticks of a microsecond.
fn is_exact(limit: &Limit) -> bool {
    let is_exact = match limit.algorithm() {
        Algorithm::SlidingLog => true,
        Algorithm::SlidingWindow { resolution } => {
            resolution.is_some_and(|resolution| limit.quota().max() <= u64::from(resolution))
        }
        _ => false,
    };
    is_exact && limit.params().tick_us == 1
}

/// Tests that no window contains more units than the limit may admit.
///
/// The traffic is random, with bursts and with requests at window boundaries. A limit that counts exactly (see
/// `is_exact`) must also admit each request that fits.
pub async fn units_stay_below_bound<S: Store>(
    store: &S,
    clock: &ManualClock,
    limit: &Limit,
    seed: u64,
) {
    let mut rng = Rng::with_seed(seed);
    let window = limit.quota().window();
    let window_us = window.as_micros() as u64;
    let counter = new_test_counter(store, clock, limit, rng.u64(..window_us));
    let mut oracle = Oracle::default();
    let mut retry_at = clock.now();
    for _ in 0..400 {
        let now_us = clock.now().as_micros();
        clock.set(Timestamp::from_micros(match rng.u32(..12) {
            0..=5 => now_us,
            6..=7 => now_us + rng.u64(..=window_us / 20),
            8 => (now_us / window_us + 1) * window_us - rng.u64(..=1),
            9 => now_us + rng.u64(..=window_us),
            _ => now_us.max(retry_at.as_micros()),
        }));
        let now = clock.now();
        let cost = if rng.bool() { 1 } else { rng.u64(1..=limit.capacity().max(1)) };
        let exact = oracle.fits(now, window, limit.quota().max(), cost);
        let result = counter.try_charge(cost).await;
        if result.allowed {
            oracle.charge(now, cost);
            let bound = max_units_in_window(limit);
            let inside = oracle.units_in_window(now, window);
            assert!(
                inside <= bound,
                "{limit}, seed {seed}: {inside} units in a window, at most {bound}"
            );
        } else if let Some(wait) = result.outcomes[0].retry_after() {
            retry_at = now.after(wait);
        }
        if is_exact(limit) {
            assert_eq!(result.allowed, exact, "{limit}, seed {seed}: the count is exact");
        }
    }
}

/// Tests that the `retry_after` of a denial is exact: the request is denied one microsecond before that time has
/// passed, and allowed once it has passed.
///
/// The `reset_after` is exact too: once that time has passed, no unit is in use.
pub async fn retry_after_is_exact<S: Store>(
    store: &S,
    clock: &ManualClock,
    limit: &Limit,
    seed: u64,
) {
    let mut rng = Rng::with_seed(seed);
    let window_us = limit.quota().window().as_micros() as u64;
    let counter = new_test_counter(store, clock, limit, rng.u64(..window_us));
    for _ in 0..60 {
        clock.advance(Duration::from_micros(rng.u64(..=window_us / 4)));
        let cost = rng.u64(1..=limit.capacity());
        let result = counter.try_charge(cost).await;
        if result.allowed {
            continue;
        }
        let denied_at = clock.now();
        let Some(wait) = result.outcomes[0].retry_after() else {
            panic!("{limit}: a cost of {cost} within the limit has no retry time");
        };
        assert!(wait > Duration::ZERO, "{limit}, seed {seed}: a denial has a wait");
        clock.set(Timestamp::from_micros(denied_at.after(wait).as_micros() - 1));
        assert!(!counter.peek(cost).await.fits(), "{limit}, seed {seed}: allowed before {wait:?}");
        clock.set(denied_at.after(wait));
        assert!(
            counter.try_charge(cost).await.allowed,
            "{limit}, seed {seed}: denied after {wait:?}"
        );
    }
    let reset = counter.peek(1).await.reset_after();
    assert!(reset > Duration::ZERO, "{limit}: something was charged");
    clock.advance(reset - Duration::from_micros(1));
    assert_ne!(counter.peek(1).await.reset_after(), Duration::ZERO, "{limit}: reset too early");
    clock.advance(Duration::from_micros(1));
    let outcome = counter.peek(1).await;
    assert_eq!(outcome.reset_after(), Duration::ZERO, "{limit}, seed {seed}");
    assert_eq!(outcome.remaining(), limit.capacity(), "{limit}, seed {seed}: no charge counts");
}

/// Tests that a cost above the capacity of the limit is denied without a `retry_after`.
pub async fn cost_above_max_has_no_retry_after<S: Store>(
    store: &S,
    clock: &ManualClock,
    limit: &Limit,
) {
    let counter = new_test_counter(store, clock, limit, 0);
    let result = counter.try_charge(limit.capacity() + 1).await;
    assert!(!result.allowed && result.outcomes[0].retry_after().is_none(), "{limit}");
    let result = counter.try_charge(u64::MAX).await;
    assert!(!result.allowed && result.outcomes[0].retry_after().is_none(), "{limit}");
}

/// Tests that a denied request charges none of its keys. A request with a cost of 0 charges nothing either.
pub async fn denial_charges_nothing<S: Store>(store: &S, clock: &ManualClock, limit: &Limit) {
    let counter = new_test_counter(store, clock, limit, 7);
    let scope = Scope::new("test", "other", "limit", &["key"]);
    let other = Hit { key: Key::new(&scope, &[Value::Text("other")]), ..counter.hit(1) };
    assert!(unwrap_store_response(store.charge_async(&[other]).await).allowed);
    assert!(counter.try_charge(limit.capacity()).await.allowed);
    let outcomes = || async {
        (counter.peek(1).await, unwrap_store_response(store.peek_async(&[other]).await))
    };
    let before = outcomes().await;
    for hits in [[other, counter.hit(1)], [counter.hit(1), other]] {
        let result = unwrap_store_response(store.charge_async(&hits).await);
        assert!(!result.allowed && result.receipt.is_empty(), "{limit}");
    }
    assert!(counter.try_charge(0).await.receipt.is_empty(), "{limit}");
    assert_eq!(outcomes().await, before, "{limit}");
}

/// Tests that the free units of a counter are its capacity minus the units in use, also if more units are in use than
/// the capacity.
pub async fn free_units_are_exact_in_debt<S: Store>(store: &S, clock: &ManualClock, limit: &Limit) {
    let counter = new_test_counter(store, clock, limit, 0);
    let mut charged = 0;
    for cost in [1, limit.capacity(), limit.capacity() / 2 + 15, 1_000_000] {
        let hit = counter.hit(cost).reported();
        let result = unwrap_store_response(store.charge_async(&[hit]).await);
        charged += result.receipt.charges().iter().map(|charge| charge.cost).sum::<u64>();
        let free = limit.capacity() as i64 - charged as i64;
        assert_eq!(result.outcomes[0].free(), free, "{limit}: after a charge of {cost}");
        assert_eq!(counter.peek(1).await.free(), free, "{limit}: after a charge of {cost}");
    }
}

/// Tests that a counter in debt, with more units than its max, denies requests until enough units have left the window.
///
/// The charges include reports and hits that are always charged. Each admitted request must be within the limit. While
/// the counter is in debt, the `retry_after` for one unit must be exact.
pub async fn debts_are_paid_first<S: Store>(
    store: &S,
    clock: &ManualClock,
    limit: &Limit,
    seed: u64,
) {
    let mut rng = Rng::with_seed(seed);
    let window_us = limit.quota().window().as_micros() as u64;
    let counter = new_test_counter(store, clock, limit, rng.u64(..window_us));
    let mut oracle = Oracle::default();
    for _ in 0..120 {
        clock.advance(Duration::from_micros(rng.u64(..=window_us / 8)));
        let now = clock.now();
        let cost = rng.u64(1..=3 * limit.capacity());
        let hit = match rng.u32(..6) {
            0 => counter.hit(cost).reported(),
            1 => counter.hit(cost).charged_always(),
            _ => counter.hit(if rng.bool() { 1 } else { rng.u64(1..=limit.capacity()) }),
        };
        let result = unwrap_store_response(store.charge_async(&[hit]).await);
        let charged: u64 = result.receipt.charges().iter().map(|charge| charge.cost).sum();
        oracle.charge(now, charged);
        let is_check = hit.veto == Veto::Alone;
        if is_check && result.allowed {
            assert_within_limit(&counter, &oracle, now, seed);
        }
        let outcome = counter.peek(1).await;
        if is_check && !result.allowed && charged > 0 {
            assert_eq!(
                result.outcomes[0].retry_after(),
                outcome.retry_after(),
                "{limit}: one unit"
            );
        }
        assert!(hit.veto != Veto::Never || result.allowed, "{limit}: a report never denies");
        let Some(wait) = outcome.retry_after().filter(|wait| !wait.is_zero()) else { continue };
        if rng.u32(..4) == 0 {
            clock.set(Timestamp::from_micros(now.after(wait).as_micros() - 1));
            assert!(
                !counter.try_charge(1).await.allowed,
                "{limit}, seed {seed}: in debt, {wait:?}"
            );
            clock.set(now.after(wait));
            assert!(counter.try_charge(1).await.allowed, "{limit}, seed {seed}: paid, {wait:?}");
            oracle.charge(clock.now(), 1);
        }
    }
}

/// Asserts that the charges in `oracle` are within the limit of `counter`. The caller has just admitted a request at
/// the time `now`.
fn assert_within_limit<S>(
    counter: &TestCounter<'_, S>,
    oracle: &Oracle,
    now: Timestamp,
    seed: u64,
) {
    let limit = &counter.limit;
    let (max, window) = (limit.quota().max(), limit.quota().window());
    let window_us = window.as_micros() as u64;
    match limit.algorithm() {
        Algorithm::SlidingWindow { .. }
        | Algorithm::SlidingLog
        | Algorithm::SlidingBuckets { .. }
        | Algorithm::Concurrent => {
            let inside = oracle.units_in_window(now, window);
            assert!(inside <= max, "{limit}, seed {seed}: {inside} units in a window");
        }
        Algorithm::SlidingCounter | Algorithm::FixedWindow { .. } => {
            let key = Key::new(&counter.scope, &[Value::Text("one")]);
            let since_us = match limit.calendar_periods() {
                Some(calendar) => now.as_micros() - calendar.period_at(now).start.as_micros(),
                None => (now.as_micros() + limit.phase_us(&key, now)) % window_us,
            };
            let span = |us: u64| oracle.units_in_window(now, Duration::from_micros(us));
            let running = span(since_us + 1);
            let mut inside = running;
            if limit.algorithm() == Algorithm::SlidingCounter {
                // The share of the previous window that the sliding one still covers.
                let previous = span(since_us + 1 + window_us) - running;
                inside += previous * (window_us - since_us) / window_us;
            }
            assert!(inside <= max, "{limit}, seed {seed}: {inside} units");
        }
        Algorithm::TokenBucket { .. } => {
            for span in [window / 10, window / 2, window, 3 * window] {
                let inside = u128::from(oracle.units_in_window(now, span));
                let leaked = (u128::from(max) * span.as_micros()).div_ceil(window.as_micros());
                let bound = u128::from(limit.capacity()) + leaked + 1;
                assert!(inside <= bound, "{limit}, seed {seed}: {inside} units in {span:?}");
            }
        }
    }
}

/// Tests that reverting a charge restores the previous state, and that reverting a charge that has left the window has
/// no effect.
pub async fn revert_undoes_its_charge<S: Store>(
    store: &S,
    clock: &ManualClock,
    limit: &Limit,
    seed: u64,
) {
    let mut rng = Rng::with_seed(seed);
    let half = limit.capacity() / 2;
    let window_us = limit.quota().window().as_micros() as u64;
    let counter = new_test_counter(store, clock, limit, rng.u64(..window_us));
    counter.try_charge(rng.u64(1..=half)).await;
    clock.advance(Duration::from_micros(rng.u64(..=window_us / 3)));
    let before = counter.peek(1).await;
    let result = counter.try_charge(rng.u64(1..=half)).await;
    if result.allowed {
        unwrap_store_response(store.adjust_async(&result.receipt, Adjustment::Revert).await);
        let after = counter.peek(1).await;
        assert_eq!(after.remaining(), before.remaining(), "{limit}, seed {seed}");
        assert_eq!(after.fits(), before.fits(), "{limit}, seed {seed}");
    }
    let result = counter.try_charge(1).await;
    assert!(result.allowed, "{limit}, seed {seed}: one unit fits");
    clock.advance(Duration::from_micros(2 * window_us + 1));
    assert!(counter.try_charge(half).await.allowed);
    let before = counter.peek(1).await;
    unwrap_store_response(store.adjust_async(&result.receipt, Adjustment::Revert).await);
    assert_eq!(counter.peek(1).await, before, "{limit}, seed {seed}: it had left the window");
}

/// Tests that a refund frees exactly the refunded number of units, but at most the units in use.
///
/// The retry time for the next unit must be exact afterwards. A refund of all units must reset the counter.
pub async fn refund_frees_as_many_units<S: Store>(
    store: &S,
    clock: &ManualClock,
    limit: &Limit,
    seed: u64,
) {
    let mut rng = Rng::with_seed(seed);
    let window_us = limit.quota().window().as_micros() as u64;
    let capacity = limit.capacity();
    let counter = new_test_counter(store, clock, limit, rng.u64(..window_us));
    assert_eq!(counter.refund(1).await, counter.peek(1).await, "{limit}: no units to refund");
    for _ in 0..60 {
        clock.advance(Duration::from_micros(rng.u64(..=window_us / 4)));
        for _ in 0..rng.u32(..4) {
            counter.try_charge(rng.u64(1..=capacity)).await;
            clock.advance(Duration::from_micros(rng.u64(..=window_us / 20)));
        }
        let before = counter.peek(1).await;
        assert_eq!(counter.refund(0).await, before, "{limit}, seed {seed}: a refund of 0 units");
        let units = rng.u64(1..=capacity / 2);
        let after = counter.refund(units).await;
        let free = (before.remaining() + units).min(capacity);
        assert_eq!(
            after.remaining(),
            free,
            "{limit}, seed {seed}: {units} refunded from {before:?}"
        );
        assert!(
            after.fits() && after.reset_after() <= before.reset_after(),
            "{limit}, seed {seed}"
        );
        assert_eq!(after, counter.peek(1).await, "{limit}, seed {seed}");
        let Some(wait) = counter.peek(free + 1).await.retry_after() else { continue };
        let now = clock.now();
        clock.set(Timestamp::from_micros(now.after(wait).as_micros() - 1));
        assert!(!counter.peek(free + 1).await.fits(), "{limit}, seed {seed}: before {wait:?}");
        clock.set(now.after(wait));
        assert!(counter.peek(free + 1).await.fits(), "{limit}, seed {seed}: after {wait:?}");
        clock.set(now);
    }
    let after = counter.refund(u64::MAX).await;
    assert_eq!(after.remaining(), capacity, "{limit}, seed {seed}: all units are free");
    assert_eq!(after.reset_after(), Duration::ZERO, "{limit}, seed {seed}: no charge counts");
}

/// Tests that no window contains more units than the limit may admit, not counting refunded units.
///
/// A refund removes the oldest units in use. A limit that counts exactly must behave as if the refunded units had never
/// been charged.
pub async fn units_stay_below_bound_without_refunds<S: Store>(
    store: &S,
    clock: &ManualClock,
    limit: &Limit,
    seed: u64,
) {
    let mut rng = Rng::with_seed(seed);
    let window = limit.quota().window();
    let window_us = window.as_micros() as u64;
    let counter = new_test_counter(store, clock, limit, rng.u64(..window_us));
    let mut oracle = Oracle::default();
    for _ in 0..400 {
        let now_us = clock.now().as_micros();
        clock.set(Timestamp::from_micros(match rng.u32(..12) {
            0..=6 => now_us,
            7..=8 => now_us + rng.u64(..=window_us / 20),
            9 => (now_us / window_us + 1) * window_us - rng.u64(..=1),
            10 => now_us + rng.u64(..=window_us),
            _ => now_us + rng.u64(..=window_us / 3),
        }));
        let now = clock.now();
        if rng.u32(..4) == 0 {
            let counted = limit.capacity() - counter.peek(1).await.remaining();
            let units = rng.u64(1..=limit.capacity());
            counter.refund(units).await;
            oracle.refund(counted, units);
            continue;
        }
        let cost = if rng.bool() { 1 } else { rng.u64(1..=limit.capacity()) };
        let exact = oracle.fits(now, window, limit.quota().max(), cost);
        let allowed = counter.try_charge(cost).await.allowed;
        if allowed {
            oracle.charge(now, cost);
            let (bound, inside) = (max_units_in_window(limit), oracle.units_in_window(now, window));
            assert!(
                inside <= bound,
                "{limit}, seed {seed}: {inside} units in a window, at most {bound}"
            );
        }
        if is_exact(limit) {
            assert_eq!(allowed, exact, "{limit}, seed {seed}: the count is exact");
        }
    }
}

/// Tests that the order of the hits of a request does not change the decision.
///
/// Each request runs on the first store, and with shuffled hits on the second. Both stores must be empty.
pub async fn order_of_hits_is_irrelevant<S: Store>(
    (store, other_store): (&S, &S),
    clock: &ManualClock,
    limits: &[Limit],
    seed: u64,
) {
    let mut rng = Rng::with_seed(seed);
    clock.set(Timestamp::from_micros(1_750_000_000_000_000 + rng.u64(..1_000_000_000)));
    let scopes: Vec<Scope> = (0..limits.len())
        .map(|index| Scope::new("test", &format!("rule-{index}"), "limit", &["key"]))
        .collect();
    for _ in 0..200 {
        clock.advance(Duration::from_micros(rng.u64(..1_000_000)));
        let cost = rng.u64(1..4);
        let hits: Vec<Hit<'_>> = limits
            .iter()
            .zip(&scopes)
            .map(|(limit, scope)| Hit::new(Key::new(scope, &[Value::Text("one")]), limit, cost))
            .collect();
        let mut order: Vec<usize> = (0..hits.len()).collect();
        rng.shuffle(&mut order);
        let shuffled: Vec<Hit<'_>> = order.iter().map(|&index| hits[index]).collect();
        let result = unwrap_store_response(store.charge_async(&hits).await);
        let other = unwrap_store_response(other_store.charge_async(&shuffled).await);
        assert_eq!(result.allowed, other.allowed, "seed {seed}");
        for (shuffled_index, &index) in order.iter().enumerate() {
            assert_eq!(result.outcomes[index], other.outcomes[shuffled_index], "seed {seed}");
        }
    }
}
