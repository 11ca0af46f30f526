//! Tests that the denial cache changes no decision and no figure. A store with the cache and a store without it receive
//! the same requests at the same times, and their results are compared.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use slidegate::clock::Clock;
use slidegate::store::{
    Adjustment, ChargeResult, Edit, Hit, Key, Outcome, Receipt, Scope, Value, Veto,
};
use slidegate::{Algorithm, Limit, ManualClock, Store, Timestamp};
use slidegate_redis::{RedisSettings, RedisStore};

use crate::server::{LONG, Redis};

const DENY_CACHE_TTL: Duration = Duration::from_secs(1);

/// An expiry margin so long that no key expires in a test. Keys expire by the clock of Redis, and the clock of the
/// tests may not advance.
const LONG_EXPIRY_MARGIN: Duration = Duration::from_secs(1_000_000);

/// Returns the number of script calls that a server has run.
fn script_call_count(redis: &Redis) -> u64 {
    redis.calls_of("evalsha") + redis.calls_of("eval")
}

fn open_store(
    redis: &Redis,
    clock: &ManualClock,
    prefix: &str,
    deny_cache_ttl: Duration,
) -> RedisStore {
    let settings = RedisSettings {
        prefix: prefix.to_owned(),
        timeout: LONG,
        expiry_margin: LONG_EXPIRY_MARGIN,
        deny_cache_ttl,
        ..RedisSettings::default()
    };
    RedisStore::open(&redis.address(), settings).unwrap().with_clock(clock.clone())
}

fn new_clock_at_fixed_time() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_750_000_020))
}

/// A few counters with limits so low that they are exhausted most of the time.
struct LowLimitCounters {
    scopes: Vec<Scope>,
    limits: Vec<Limit>,
}

impl LowLimitCounters {
    fn new(rng: &mut Rng) -> Self {
        let quotas = ["3/s", "8/2s", "5/700ms", "12/min", "2/3s", "1/h"];
        let limit = |nth: usize| {
            let algorithm = Algorithm::ALL[(nth + rng.usize(..2)) % Algorithm::ALL.len()];
            Limit::new(rng.choice(quotas).unwrap().parse().unwrap(), algorithm).unwrap()
        };
        let scopes = (0..6).map(|nth| Scope::new("deny", "rule", &format!("l{nth}"), &["client"]));
        Self { scopes: scopes.collect(), limits: (0..6).map(limit).collect() }
    }

    fn new_random_hit<'a>(&'a self, rng: &mut Rng, client: &'a [Value<'a>; 1]) -> (usize, Hit<'a>) {
        let nth = rng.usize(..self.limits.len());
        let cost = *rng.choice(&[0, 1, 1, 1, 2, 3, 20]).unwrap();
        let hit = Hit::new(Key::new(&self.scopes[nth], client), &self.limits[nth], cost);
        let hit = match rng.u8(..12) {
            0 => hit.in_observe_mode(),
            1 => hit.charged_always(),
            2 => hit.with_joint_veto(),
            3 => hit.reported(),
            4 => hit.with_required(rng.u64(..4)),
            _ => hit,
        };
        (nth, hit)
    }
}

/// Advances the clock by a random time, often to the end of a wait in `waits`, or a microsecond earlier or later.
fn advance_clock_randomly(rng: &mut Rng, clock: &ManualClock, waits: &mut Vec<Timestamp>) {
    let now = clock.now();
    waits.retain(|at| *at > now);
    let by = match (rng.u8(..4), waits.is_empty()) {
        (0, false) => {
            let at = waits[rng.usize(..waits.len())].as_micros() - now.as_micros();
            (at + rng.u64(..3)).saturating_sub(1)
        }
        (1, _) => rng.u64(..2_000_000),
        _ => rng.u64(..20_000),
    };
    clock.advance(Duration::from_micros(by));
}

/// Asserts that a denial from the cache has the same figures and the same wait as a denial from Redis. The units above
/// max are as in the last reply; some of them may have left since. A limit that fits has the figures of an earlier
/// reply.
fn assert_same_denial_figures(hits: &[Hit<'_>], cached: &ChargeResult, uncached: &ChargeResult) {
    let figures = |outcome: &Outcome| {
        (outcome.fits(), outcome.remaining(), outcome.reset_after(), outcome.retry_after())
    };
    for (cached, uncached) in cached.outcomes.iter().zip(&uncached.outcomes) {
        let is_same = figures(cached) == figures(uncached) && cached.free() <= uncached.free();
        let is_same_or_earlier =
            cached.fits() && uncached.fits() && cached.remaining() <= uncached.remaining();
        let is_correct = !cached.is_known() || is_same || is_same_or_earlier;
        assert!(is_correct, "{cached:?}, {uncached:?}");
    }
    let wait = |taken: &ChargeResult| {
        let enforced = hits.iter().zip(&taken.outcomes);
        let denies = enforced.filter(|(hit, outcome)| {
            hit.veto == Veto::Alone && outcome.is_known() && !outcome.fits()
        });
        denies.map(|(_, outcome)| outcome.retry_after_us()).max()
    };
    assert_eq!(wait(cached), wait(uncached), "{cached:?}, {uncached:?}");
}

#[tokio::test]
async fn deny_cache_changes_no_decision() {
    let redis = Redis::start();
    let (mut cache_hits, mut partial, mut decided) = (0, 0, 0);
    for seed in 0..40 {
        let mut rng = Rng::with_seed(seed);
        let counters = LowLimitCounters::new(&mut rng);
        let clock = new_clock_at_fixed_time();
        let cached = open_store(&redis, &clock, &format!("with{seed}:"), DENY_CACHE_TTL);
        let uncached = open_store(&redis, &clock, &format!("without{seed}:"), Duration::ZERO);
        let (mut waits, mut receipts): (Vec<Timestamp>, Vec<(Receipt, Receipt)>) =
            Default::default();
        let clients = [[Value::Text("a")], [Value::Text("b")]];
        let mut last: Vec<Hit<'_>> = Vec::new();
        for step in 0..600 {
            advance_clock_randomly(&mut rng, &clock, &mut waits);
            let client = &clients[rng.usize(..2)];
            let (_, hit) = counters.new_random_hit(&mut rng, client);
            if rng.u8(..40) == 0 {
                cached.edit_async(&[hit], Edit::Reset).await.unwrap();
                uncached.edit_async(&[hit], Edit::Reset).await.unwrap();
                continue;
            }
            if rng.u8(..30) == 0 {
                let one = cached.edit_async(&[hit], Edit::Refund).await.unwrap();
                assert_eq!(
                    one,
                    uncached.edit_async(&[hit], Edit::Refund).await.unwrap(),
                    "seed {seed}, step {step}"
                );
                continue;
            }
            if rng.u8(..12) == 0 && !receipts.is_empty() {
                let (one, other) = receipts.swap_remove(rng.usize(..receipts.len()));
                cached.adjust_async(&one, Adjustment::Revert).await.unwrap();
                uncached.adjust_async(&other, Adjustment::Revert).await.unwrap();
                continue;
            }
            let more = rng.usize(..3);
            let mut hits: Vec<Hit<'_>> = std::iter::once(hit)
                .chain((0..more).map(|_| counters.new_random_hit(&mut rng, client).1))
                .collect();
            // Often the same request is repeated.
            if rng.bool() && !last.is_empty() {
                hits.clone_from(&last);
            }
            last.clone_from(&hits);
            let one = cached.charge_async(&hits).await.unwrap();
            let other = uncached.charge_async(&hits).await.unwrap();
            assert_eq!(
                one.allowed, other.allowed,
                "seed {seed}, step {step}: {hits:?} {one:?} {other:?}"
            );
            decided += 1;
            if one.outcomes != other.outcomes {
                assert!(!one.allowed, "seed {seed}, step {step}: {one:?} {other:?}");
                assert_same_denial_figures(&hits, &one, &other);
                partial += 1;
            }
            let now = clock.now();
            let later = other.outcomes.iter().filter_map(|outcome| outcome.retry_after());
            waits.extend(later.filter(|wait| !wait.is_zero()).map(|wait| now.after(wait)));
            if !one.receipt.is_empty() {
                receipts.push((one.receipt, other.receipt));
            }
        }
        cache_hits += cached.stats().deny_cache_hits;
    }
    let context = format!(
        "{cache_hits} of {decided} from the cache, {partial} with figures of earlier responses"
    );
    assert!(cache_hits > decided / 50 && partial > 50, "{context}");
}

/// Tests that an instance notices a revert, refund or reset by another instance after the time to live of a cached
/// denial at the latest. All other decisions must be exact.
#[tokio::test]
async fn revert_by_other_instance_takes_effect_within_ttl() {
    let redis = Redis::start();
    let mut wrong = 0;
    for seed in 100..140 {
        let mut rng = Rng::with_seed(seed);
        let counters = LowLimitCounters::new(&mut rng);
        let clock = new_clock_at_fixed_time();
        let this_instance = open_store(&redis, &clock, &format!("shared{seed}:"), DENY_CACHE_TTL);
        let other_instance = open_store(&redis, &clock, &format!("shared{seed}:"), Duration::ZERO);
        let (mut waits, mut receipts): (Vec<Timestamp>, Vec<(usize, Receipt)>) = Default::default();
        let mut freed: HashMap<usize, Timestamp> = HashMap::new();
        for step in 0..600 {
            advance_clock_randomly(&mut rng, &clock, &mut waits);
            let (nth, hit) = counters.new_random_hit(&mut rng, &[Value::Text("all")]);
            let hit = Hit::new(hit.key, hit.limit, hit.cost);
            match rng.u8(..24) {
                0 => {
                    other_instance.edit_async(&[hit], Edit::Reset).await.unwrap();
                    freed.insert(nth, clock.now());
                }
                23 => {
                    other_instance.edit_async(&[hit], Edit::Refund).await.unwrap();
                    freed.insert(nth, clock.now());
                }
                1 | 2 if !receipts.is_empty() => {
                    let (nth, receipt) = receipts.swap_remove(rng.usize(..receipts.len()));
                    other_instance.adjust_async(&receipt, Adjustment::Revert).await.unwrap();
                    freed.insert(nth, clock.now());
                }
                3..6 => {
                    let taken = other_instance.charge_async(&[hit]).await.unwrap();
                    receipts.push((nth, taken.receipt));
                }
                _ => {
                    let fits = other_instance.peek_async(&[hit]).await.unwrap()[0].fits();
                    let taken = this_instance.charge_async(&[hit]).await.unwrap();
                    if taken.allowed != fits {
                        let expires_at = freed.get(&nth).map(|at| at.after(DENY_CACHE_TTL));
                        let is_stated =
                            fits && expires_at.is_some_and(|expires_at| clock.now() < expires_at);
                        assert!(is_stated, "seed {seed}, step {step}: {hit:?} {taken:?}");
                        wrong += 1;
                    }
                    let wait = taken.outcomes[0].retry_after().unwrap_or_default();
                    waits.push(clock.now().after(wait));
                    receipts.push((nth, taken.receipt));
                }
            }
        }
    }
    assert!(wrong > 0, "the traces must cover this");
}

fn new_scope_and_limit() -> (Scope, Limit) {
    let limit = Limit::new("10/min".parse().unwrap(), Algorithm::SlidingLog).unwrap();
    (Scope::new("deny", "rule", "limit", &["client"]), limit)
}

fn new_hit<'a>(scope: &'a Scope, limit: &'a Limit, cost: u64) -> Hit<'a> {
    let key = Key::new(scope, &[Value::Text("all")]);
    Hit::new(key, limit, cost)
}

#[tokio::test]
async fn exhausted_limit_denies_without_script_call() {
    let (redis, clock, (scope, limit)) =
        (Redis::start(), new_clock_at_fixed_time(), new_scope_and_limit());
    let store = open_store(&redis, &clock, "", DENY_CACHE_TTL);
    assert!(store.charge_async(&[new_hit(&scope, &limit, 10)]).await.unwrap().allowed);
    let before = script_call_count(&redis);
    for _ in 0..100 {
        let denied = store.charge_async(&[new_hit(&scope, &limit, 1)]).await.unwrap();
        assert!(!denied.allowed);
        assert_eq!(denied.outcomes[0].retry_after(), Some(Duration::from_secs(60)));
    }
    assert_eq!(script_call_count(&redis), before);
    // While the denial is cached, the wait shrinks with time.
    clock.advance(Duration::from_millis(999));
    let denied = store.charge_async(&[new_hit(&scope, &limit, 1)]).await.unwrap();
    assert_eq!(denied.outcomes[0].retry_after(), Some(Duration::from_millis(59_001)));
    assert_eq!(script_call_count(&redis), before);
    clock.advance(Duration::from_millis(1));
    assert!(!store.charge_async(&[new_hit(&scope, &limit, 1)]).await.unwrap().allowed);
    assert_eq!(script_call_count(&redis), before + 1, "the denial is cached for a second");
}

#[tokio::test]
async fn cached_denial_has_figures_of_fitting_limits() {
    let redis = Redis::start();
    let clock = new_clock_at_fixed_time();
    let store = open_store(&redis, &clock, "", DENY_CACHE_TTL);
    let scopes = ["full", "other", "observed"].map(|id| Scope::new("domain", "rule", id, &[""; 0]));
    let limit = |quota: &str| Limit::new(quota.parse().unwrap(), Algorithm::SlidingLog).unwrap();
    let limits = [limit("1/min"), limit("10/min"), limit("5/min")];
    let hit = |index: usize| Hit::new(Key::new(&scopes[index], &[]), &limits[index], 1);
    let all = [hit(0), hit(1), Hit { veto: Veto::Never, ..hit(2) }];
    assert!(store.charge_async(&all).await.unwrap().allowed);
    assert!(!store.charge_async(&all).await.unwrap().allowed);
    clock.advance(Duration::from_millis(1));
    let calls = script_call_count(&redis);
    let denied = store.charge_async(&all).await.unwrap();
    let figures = |denied: &ChargeResult| {
        let outcomes = denied.outcomes.iter();
        outcomes.map(|one| (one.fits(), one.remaining(), one.reset_after())).collect::<Vec<_>>()
    };
    let reset = Duration::from_millis(59_999);
    assert_eq!(figures(&denied), [(false, 0, reset), (true, 9, reset), (true, 4, reset)]);
    assert_eq!(script_call_count(&redis), calls);
    // Another request charges a limit that fits.
    assert!(store.charge_async(&[hit(1)]).await.unwrap().allowed);
    let calls = script_call_count(&redis);
    assert_eq!(figures(&store.charge_async(&all).await.unwrap())[1], (true, 8, reset));
    assert_eq!(script_call_count(&redis), calls);
}

#[tokio::test]
async fn cached_denial_does_not_deny_smaller_cost() {
    let (redis, clock, (scope, limit)) =
        (Redis::start(), new_clock_at_fixed_time(), new_scope_and_limit());
    let store = open_store(&redis, &clock, "", DENY_CACHE_TTL);
    assert!(store.charge_async(&[new_hit(&scope, &limit, 6)]).await.unwrap().allowed);
    assert!(!store.charge_async(&[new_hit(&scope, &limit, 5)]).await.unwrap().allowed);
    let before = script_call_count(&redis);
    assert!(!store.charge_async(&[new_hit(&scope, &limit, 5)]).await.unwrap().allowed);
    assert_eq!(script_call_count(&redis), before, "the same cost");
    assert!(store.charge_async(&[new_hit(&scope, &limit, 4)]).await.unwrap().allowed);
}

/// Tests the wait after a denial, if a smaller cost is charged afterwards. This charge makes the wait longer than the
/// cached wait.
#[tokio::test]
async fn retry_after_includes_charges_since_denial() {
    let (redis, clock, (scope, limit)) =
        (Redis::start(), new_clock_at_fixed_time(), new_scope_and_limit());
    let store = open_store(&redis, &clock, "", 60 * DENY_CACHE_TTL);
    let take = async |cost| store.charge_async(&[new_hit(&scope, &limit, cost)]).await.unwrap();
    assert!(take(1).await.allowed);
    clock.advance(Duration::from_secs(10));
    assert!(take(5).await.allowed);
    assert_eq!(take(5).await.outcomes[0].retry_after(), Some(Duration::from_secs(50)));
    assert!(take(4).await.allowed);
    let denied = take(5).await;
    let wait = denied.outcomes[0].retry_after().unwrap();
    assert_eq!((wait, denied.outcomes[0].remaining()), (Duration::from_secs(60), 0));
    clock.advance(wait);
    assert!(take(5).await.allowed);
}

/// Tests the wait after a denial, if another counter of the same request is charged afterwards. This charge makes the
/// wait longer than the cached wait.
#[tokio::test]
async fn retry_after_includes_charges_of_other_counters() {
    let (redis, clock, (scope, limit)) =
        (Redis::start(), new_clock_at_fixed_time(), new_scope_and_limit());
    let store = open_store(&redis, &clock, "", 60 * DENY_CACHE_TTL);
    let shared = Scope::new("deny", "shared", "limit", &["client"]);
    let hits = [new_hit(&scope, &limit, 1), new_hit(&shared, &limit, 1)];
    assert!(store.charge_async(&[new_hit(&scope, &limit, 10)]).await.unwrap().allowed);
    assert!(!store.charge_async(&hits).await.unwrap().allowed);
    clock.advance(Duration::from_secs(30));
    assert!(store.charge_async(&[new_hit(&shared, &limit, 5)]).await.unwrap().allowed);
    let before = script_call_count(&redis);
    let wait =
        |taken: &ChargeResult| taken.outcomes.iter().map(|one| one.retry_after().unwrap()).max();
    let denied = store.charge_async(&hits).await.unwrap();
    assert_eq!(wait(&denied), Some(Duration::from_secs(30)));
    assert_eq!(script_call_count(&redis), before, "the shared limit is known to have 5 units left");
    assert!(store.charge_async(&[new_hit(&shared, &limit, 5)]).await.unwrap().allowed);
    let denied = store.charge_async(&hits).await.unwrap();
    assert_eq!(wait(&denied), Some(Duration::from_secs(60)));
    clock.advance(Duration::from_secs(60));
    assert!(store.charge_async(&hits).await.unwrap().allowed);
}

#[tokio::test]
async fn cached_denial_is_ignored_after_limit_max_changes() {
    let (redis, clock, (scope, limit)) =
        (Redis::start(), new_clock_at_fixed_time(), new_scope_and_limit());
    let store = open_store(&redis, &clock, "", DENY_CACHE_TTL);
    let more = Limit::new("11/min".parse().unwrap(), limit.algorithm()).unwrap();
    assert!(store.charge_async(&[new_hit(&scope, &limit, 10)]).await.unwrap().allowed);
    assert!(!store.charge_async(&[new_hit(&scope, &limit, 1)]).await.unwrap().allowed);
    assert!(
        store.charge_async(&[new_hit(&scope, &more, 1)]).await.unwrap().allowed,
        "the policy has changed"
    );
}

/// Tests that no cached denial is returned while the circuit breaker is open: the policy's `on_store_error` applies to
/// all requests.
#[tokio::test]
async fn deny_cache_is_unused_while_breaker_is_open() {
    let (mut redis, (scope, limit)) = (Redis::start(), new_scope_and_limit());
    let settings = RedisSettings {
        timeout: Duration::from_millis(500),
        deny_cache_ttl: 60 * DENY_CACHE_TTL,
        ..RedisSettings::default()
    };
    let store = RedisStore::open(&redis.address(), settings).unwrap();
    crate::server::poll_until("all is spent", LONG, async || {
        store.charge_async(&[new_hit(&scope, &limit, 10)]).await.is_ok_and(|taken| !taken.allowed)
    })
    .await;
    redis.kill();
    assert!(
        !store.charge_async(&[new_hit(&scope, &limit, 1)]).await.unwrap().allowed,
        "the denial is cached"
    );
    crate::server::poll_until("the breaker is open", LONG, async || {
        store.charge_async(&[new_hit(&scope, &limit, 2)]).await.unwrap_err();
        store.is_breaker_open()
    })
    .await;
    store.charge_async(&[new_hit(&scope, &limit, 1)]).await.unwrap_err();
}

#[tokio::test]
async fn reported_usage_is_charged_despite_cached_denial() {
    let (redis, clock, (scope, limit)) =
        (Redis::start(), new_clock_at_fixed_time(), new_scope_and_limit());
    let store = open_store(&redis, &clock, "", DENY_CACHE_TTL);
    let debts = Scope::new("deny", "debts", "limit", &["client"]);
    let debt = new_hit(&debts, &limit, 1).reported();
    assert!(store.charge_async(&[new_hit(&scope, &limit, 10)]).await.unwrap().allowed);
    for left in [9, 8] {
        let denied = store.charge_async(&[new_hit(&scope, &limit, 1), debt]).await.unwrap();
        assert_eq!((denied.allowed, denied.receipt.charges().len()), (false, 1));
        assert_eq!(denied.outcomes[1].remaining(), left);
    }
}

/// Tests an instance that reverts charges and is denied concurrently. A denial that was cached before a revert must not
/// be returned after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revert_removes_cached_denial() {
    let (redis, (scope, limit)) = (Redis::start(), new_scope_and_limit());
    let settings = RedisSettings {
        timeout: LONG,
        deny_cache_ttl: 60 * DENY_CACHE_TTL,
        ..RedisSettings::default()
    };
    let store = Arc::new(RedisStore::open(&redis.address(), settings).unwrap());
    let crowd: Vec<_> = (0..8)
        .map(|_| {
            let (store, scope, limit) = (store.clone(), scope.clone(), limit);
            tokio::spawn(async move {
                loop {
                    // Costs above the maximum of the limit: these requests are always denied.
                    for cost in [11, 12, 13] {
                        store.charge_async(&[new_hit(&scope, &limit, cost)]).await.unwrap();
                    }
                    let one = store.charge_async(&[new_hit(&scope, &limit, 10)]).await.unwrap();
                    store.adjust_async(&one.receipt, Adjustment::Revert).await.unwrap();
                    // A cached denial returns without waiting for another task.
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for _ in 0..300 {
        // Between the charges of two other tasks all units are free, so no task may be denied for long.
        crate::server::poll_until("units are free again", Duration::from_secs(20), async || {
            let taken = store.charge_async(&[new_hit(&scope, &limit, 10)]).await.unwrap();
            if taken.allowed {
                store.edit_async(&[new_hit(&scope, &limit, 10)], Edit::Refund).await.unwrap();
            }
            taken.allowed
        })
        .await;
    }
    crowd.iter().for_each(tokio::task::JoinHandle::abort);
}
