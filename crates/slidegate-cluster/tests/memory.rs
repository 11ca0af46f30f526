//! The memory of the counters of a node is measured and bounded.

use std::time::Duration;

use slidegate::{Algorithm, Hit, Key, Limit, Scope, Timestamp};
use slidegate_cluster::counters::{CapPolicy, CounterSettings, Counters};
use slidegate_cluster::pn_counter::{CounterUpdate, Incarnation, PnCounter};
use slidegate_cluster::replicated_counters::ReplicatedCounters;

const MIB: usize = 1 << 20;

/// Returns empty counters with a memory limit in bytes.
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

/// Returns the time of all requests.
fn now() -> Timestamp {
    Timestamp::from_secs(1_750_000_020)
}

/// Runs an action with a hit of cost 1 on the key with this number.
fn with_hit<T>(limit: &Limit, number: u64, action: impl FnOnce(&Hit<'_>) -> T) -> T {
    let scope = Scope::new("test", "memory", "limit", &["number"]);
    let text = number.to_string();
    let values = [text.as_str().into()];
    let key = Key::new(&scope, &values);
    action(&Hit::new(key, limit, 1))
}

/// Charges one unit, or is denied.
fn charge(counters: &Counters, limit: &Limit, number: u64) {
    with_hit(limit, number, |hit| {
        assert!(counters.take(std::slice::from_ref(hit), now(), CapPolicy::Deny).is_ok());
    });
}

/// Returns whether another unit would be denied.
fn is_denied(counters: &Counters, limit: &Limit, number: u64) -> bool {
    with_hit(limit, number, |hit| {
        let peeked = counters.peek(std::slice::from_ref(hit), now());
        peeked.is_ok_and(|outcomes| !outcomes[0].fits())
    })
}

#[test]
fn flood_stays_below_max_memory_keeping_denied_keys() -> Result<(), Box<dyn std::error::Error>> {
    let precision = Some(Duration::from_secs(60));
    for algorithm in [Algorithm::SlidingBuckets { precision }, Algorithm::SlidingWindow] {
        let limit = Limit::new("3/d".parse()?, algorithm)?;
        let counters = counters(16 * MIB, now());
        for _ in 0..3 {
            (0..200).for_each(|number| charge(&counters, &limit, number));
        }
        let mut max_bytes = 0;
        for number in 200..400_000 {
            charge(&counters, &limit, number);
            max_bytes = max_bytes.max(counters.memory_bytes());
        }
        assert!(max_bytes <= 16 * MIB + MIB / 16, "{limit}: {max_bytes}");
        assert!(max_bytes >= 8 * MIB && counters.evicted_keys() > 50_000, "{limit}: {max_bytes}");
        assert_eq!((0..200).filter(|&key| is_denied(&counters, &limit, key)).count(), 200);
    }
    Ok(())
}

/// Counters of other nodes use at most half of the memory, which is released after their window.
#[test]
fn counters_of_other_nodes_use_half_of_memory() -> Result<(), Box<dyn std::error::Error>> {
    let limit: Limit = "3/min".parse()?;
    let layout = limit.additive().ok_or("`3/min` is not additive")?.layout();
    let counters = counters(4 * MIB, now());
    let update = |key: u64| CounterUpdate {
        key: key.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        layout,
        incarnation: Incarnation(2),
        bucket: layout.bucket(now()),
        units: PnCounter { charged: 1, removed: 0 },
    };
    for key in 1..100_000 {
        counters.merge(&[update(key)], now());
    }
    let bytes = counters.memory_bytes();
    assert!((2 * MIB..3 * MIB).contains(&bytes), "{bytes}");
    let later = now().after(Duration::from_secs(3_600));
    (0..64).for_each(|_| counters.prune(later));
    assert!(counters.memory_bytes() < MIB / 4, "{}", counters.memory_bytes());
    Ok(())
}
