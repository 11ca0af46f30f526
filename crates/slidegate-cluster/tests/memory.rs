//! The memory of a node's counters is counted and bounded.

use std::time::Duration;

use slidegate::{Algorithm, Hit, Key, Limit, Scope, Timestamp};
use slidegate_cluster::counters::{CapPolicy, CounterSettings, Counters};
use slidegate_cluster::pn_counter::{CounterUpdate, Incarnation, PnCounter};
use slidegate_cluster::replicated_counters::ReplicatedCounters;

const MIB: usize = 1 << 20;

fn counters(max_memory: usize, now: Timestamp) -> Counters {
    let settings = CounterSettings {
        incarnation: Incarnation(1),
        secret: [7; 16].into(),
        max_clock_skew_us: 2_000_000,
        sync_interval: Duration::from_millis(250),
        max_keys: 1_000_000,
        max_memory,
    };
    Counters::new(settings, now)
}

fn now() -> Timestamp {
    Timestamp::from_secs(1_750_000_020)
}

fn with_hit<T>(limit: &Limit, number: u64, ask: impl FnOnce(&Hit<'_>) -> T) -> T {
    let scope = Scope::new("test", "memory", "limit", &["number"]);
    let text = number.to_string();
    let values = [text.as_str().into()];
    let key = Key::new(&scope, &values);
    ask(&Hit::new(key, limit, 1))
}

fn take(counters: &Counters, limit: &Limit, number: u64) {
    with_hit(limit, number, |hit| {
        assert!(counters.take(std::slice::from_ref(hit), now(), CapPolicy::Deny).is_ok());
    });
}

fn is_denied(counters: &Counters, limit: &Limit, number: u64) -> bool {
    with_hit(limit, number, |hit| {
        let peeked = counters.peek(std::slice::from_ref(hit), now());
        peeked.is_ok_and(|outcomes| !outcomes[0].fits())
    })
}

#[test]
fn flood_stays_below_max_memory_and_denied_keys_stay() -> Result<(), Box<dyn std::error::Error>> {
    let precision = Some(Duration::from_secs(60));
    for algorithm in [Algorithm::SlidingBuckets { precision }, Algorithm::SlidingWindow] {
        let limit = Limit::new("3/d".parse()?, algorithm)?;
        let counters = counters(16 * MIB, now());
        for _ in 0..3 {
            (0..200).for_each(|number| take(&counters, &limit, number));
        }
        let mut most = 0;
        for number in 200..400_000 {
            take(&counters, &limit, number);
            most = most.max(counters.memory_bytes());
        }
        assert!(most <= 16 * MIB + MIB / 16, "{limit}: {most}");
        assert!(most >= 8 * MIB && counters.evicted_keys() > 50_000, "{limit}: {most}");
        assert_eq!((0..200).filter(|&key| is_denied(&counters, &limit, key)).count(), 200);
    }
    Ok(())
}

/// Counts of other nodes take at most half of the memory, which is free again after their window.
#[test]
fn counts_of_others_take_half_of_memory() -> Result<(), Box<dyn std::error::Error>> {
    let limit: Limit = "3/min".parse()?;
    let layout = limit.additive().ok_or("it adds up")?.layout();
    let counters = counters(4 * MIB, now());
    let told = |key: u64| CounterUpdate {
        key: key.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        layout,
        incarnation: Incarnation(2),
        bucket: layout.bucket(now()),
        units: PnCounter { charged: 1, removed: 0 },
    };
    for key in 1..100_000 {
        counters.merge(&[told(key)], now());
    }
    let bytes = counters.memory_bytes();
    assert!((2 * MIB..3 * MIB).contains(&bytes), "{bytes}");
    let later = now().after(Duration::from_secs(3_600));
    (0..64).for_each(|_| counters.prune(later));
    assert!(counters.memory_bytes() < MIB / 4, "{}", counters.memory_bytes());
    Ok(())
}
