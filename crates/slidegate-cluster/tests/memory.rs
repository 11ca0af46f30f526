//! Tests that the memory of a node's counters is measured and bounded.

use std::sync::Arc;
use std::time::Duration;

use slidegate::store::{CallId, CallIdentity, Hit, Key, Scope, Value};
use slidegate::testkit::block_on;
use slidegate::{Algorithm, Calendar, Limit, ManualClock, Period, Store, Timestamp};
use slidegate_cluster::counters::{
    CounterSettings, Counters, FingerprintSecret, MaxUnsyncedAction,
};
use slidegate_cluster::pn_counter::{CounterUpdate, Incarnation, PnCounter};
use slidegate_cluster::progress::{MemberProgress, Progress};
use slidegate_cluster::replicated_counters::ReplicatedCounters;
use slidegate_cluster::store::{ClusterStore, ReplicationHandle};

const BYTES_PER_MIB: usize = 1 << 20;

/// Returns empty counters with a memory limit in bytes.
fn new_counters(max_memory: usize, now: Timestamp) -> Counters {
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

/// Returns the timestamp of all requests in these tests.
fn test_time() -> Timestamp {
    Timestamp::from_secs(1_750_000_020)
}

/// Runs an action with a hit of cost 1 on the key that contains `number`.
fn run_with_hit_of_test_key<T>(
    limit: &Limit,
    number: u64,
    action: impl FnOnce(&Hit<'_>) -> T,
) -> T {
    let scope = Scope::new("test", "memory", "limit", &["number"]);
    let text = number.to_string();
    let values = [text.as_str().into()];
    let key = Key::new(&scope, &values);
    action(&Hit::new(key, limit, 1))
}

/// Charges one unit to a key if its limit admits the unit.
fn charge(counters: &Counters, limit: &Limit, number: u64) {
    run_with_hit_of_test_key(limit, number, |hit| {
        assert!(
            counters
                .try_charge_request(std::slice::from_ref(hit), test_time(), MaxUnsyncedAction::Deny)
                .is_ok()
        );
    });
}

/// Returns `true` if a further unit of the key would be denied.
fn is_test_key_denied(counters: &Counters, limit: &Limit, number: u64) -> bool {
    run_with_hit_of_test_key(limit, number, |hit| {
        let peeked = counters.peek(std::slice::from_ref(hit), test_time());
        peeked.is_ok_and(|outcomes| !outcomes[0].fits())
    })
}

#[test]
fn new_keys_respect_memory_limit_without_evicting_denied_keys()
-> Result<(), Box<dyn std::error::Error>> {
    let precision = Some(Duration::from_secs(60));
    for algorithm in [
        Algorithm::SlidingWindow { resolution: None },
        Algorithm::SlidingBuckets { precision },
        Algorithm::SlidingCounter,
    ] {
        let limit = Limit::new("3/d".parse()?, algorithm)?;
        let counters = new_counters(16 * BYTES_PER_MIB, test_time());
        for _ in 0..3 {
            (0..200).for_each(|number| charge(&counters, &limit, number));
        }
        let mut max_bytes = 0;
        for number in 200..600_000 {
            charge(&counters, &limit, number);
            max_bytes = max_bytes.max(counters.memory_bytes());
        }
        assert!(max_bytes <= 16 * BYTES_PER_MIB + BYTES_PER_MIB / 16, "{limit}: {max_bytes}");
        assert!(
            max_bytes >= 8 * BYTES_PER_MIB && counters.evicted_keys() > 50_000,
            "{limit}: {max_bytes}"
        );
        assert_eq!((0..200).filter(|&key| is_test_key_denied(&counters, &limit, key)).count(), 200);
    }
    Ok(())
}

/// The counter time of a calendar limit is years ahead of the clock. Its counters are nevertheless removed soon after
/// the end of their period, and not before.
#[test]
fn counters_of_ended_period_are_removed() -> Result<(), Box<dyn std::error::Error>> {
    for (period, longest_delay_days) in
        [(Period::Day, 4), (Period::Week, 17), (Period::Month, 17), (Period::Year, 17)]
    {
        let calendar = Calendar::new(period);
        let limit = Limit::calendar(3, calendar)?;
        let layout = limit.additive().ok_or("a calendar limit is additive")?.layout();
        let counters = new_counters(4 * BYTES_PER_MIB, test_time());
        let scope = Scope::new("d", "r", "l", &["client"]);
        let values = ["a".into()];
        let phase_us = limit.phase_us(&Key::new(&scope, &values), test_time());
        let counter_time = test_time().after(Duration::from_micros(phase_us));
        for key in 1..10_000_u64 {
            let update = CounterUpdate {
                key: key.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                layout,
                incarnation: Incarnation(2),
                bucket: layout.bucket(counter_time),
                units: PnCounter { charged: 1, removed: 0 },
            };
            counters.merge(&[update], test_time());
        }
        let end = calendar.period_at(test_time()).end;
        let prune = |time| (0..64).for_each(|_| counters.prune(time));
        let bytes = counters.memory_bytes();
        prune(Timestamp::from_micros(end.as_micros() - 1));
        assert!(counters.memory_bytes() > bytes / 2, "{period}: {}", counters.memory_bytes());
        prune(end.after(Duration::from_secs(longest_delay_days * 86_400)));
        assert!(counters.memory_bytes() < bytes / 8, "{period}: {}", counters.memory_bytes());
    }
    Ok(())
}

/// Checks that counters of other nodes use at most half of the memory limit, and that their memory is released after
/// they expire.
#[test]
fn counters_of_other_nodes_use_half_of_memory() -> Result<(), Box<dyn std::error::Error>> {
    let limit: Limit = "3/min".parse()?;
    let layout = limit.additive().ok_or("`3/min` is not additive")?.layout();
    let counters = new_counters(4 * BYTES_PER_MIB, test_time());
    let update = |key: u64| CounterUpdate {
        key: key.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        layout,
        incarnation: Incarnation(2),
        bucket: layout.bucket(test_time()),
        units: PnCounter { charged: 1, removed: 0 },
    };
    for key in 1..100_000 {
        counters.merge(&[update(key)], test_time());
    }
    let bytes = counters.memory_bytes();
    assert!((2 * BYTES_PER_MIB..3 * BYTES_PER_MIB).contains(&bytes), "{bytes}");
    let later = test_time().after(Duration::from_secs(3_600));
    (0..64).for_each(|_| counters.prune(later));
    assert!(counters.memory_bytes() < BYTES_PER_MIB / 4, "{}", counters.memory_bytes());
    Ok(())
}

/// Returns the update by which another node sends two units of the counter that `charge` charges.
fn update_of_other_node(limit: &Limit, number: u64) -> CounterUpdate {
    let secret = FingerprintSecret::from([7; 16]);
    let layout = limit.additive().map(|counter| counter.layout()).unwrap();
    run_with_hit_of_test_key(limit, number, |hit| {
        let phase = Duration::from_micros(limit.phase_us(&hit.key, test_time()));
        CounterUpdate {
            key: hit.key.fingerprint(&secret, limit.cluster_counter_shape()),
            layout,
            incarnation: Incarnation(2),
            bucket: layout.bucket(test_time().after(phase)),
            units: PnCounter { charged: 2, removed: 0 },
        }
    })
}

/// Sets the progress of a cluster with one other node, which acknowledges nothing.
fn add_peer(counters: &Counters) {
    let peer =
        MemberProgress { incarnation: Incarnation(2), acknowledged_flush: 0, silent_since: None };
    let progress = Progress { members: vec![peer], nodes: 2, ..Progress::single_node() };
    counters.progress().store(Arc::new(progress));
}

/// While memory is scarce, a key that this node has charged has no replica after its charge was sent. Units of other
/// nodes still count.
#[test]
fn units_of_other_node_count_for_own_key_while_memory_is_scarce()
-> Result<(), Box<dyn std::error::Error>> {
    let limit: Limit = "3/d".parse()?;
    let counters = new_counters(4 * BYTES_PER_MIB, test_time());
    add_peer(&counters);
    for number in 1_000..100_000 {
        counters.merge(&[update_of_other_node(&limit, number)], test_time());
    }
    (0..200).for_each(|number| charge(&counters, &limit, number));
    counters.drain_changed_counters(1, usize::MAX, &mut Vec::new());
    (0..4).for_each(|_| counters.prune(test_time()));
    for number in 0..200 {
        counters.merge(&[update_of_other_node(&limit, number)], test_time());
    }
    assert_eq!((0..200).filter(|&key| is_test_key_denied(&counters, &limit, key)).count(), 200);
    assert!(!is_test_key_denied(&counters, &limit, 200));
    Ok(())
}

/// Charges more keys than fit, each twice, and merges units of another node for each of them if it responds. Then the
/// clock is set back, and a peer joins.
#[test]
fn keys_of_several_nodes_respect_memory_limit() -> Result<(), Box<dyn std::error::Error>> {
    let limit: Limit = "3/d".parse()?;
    for (has_peer, is_sent) in [(true, true), (true, false), (false, false)] {
        let counters = new_counters(16 * BYTES_PER_MIB, test_time());
        if has_peer {
            add_peer(&counters);
        }
        let mut max_bytes = 0;
        for flush in 1..=100 {
            for number in (0..2_000).map(|number| flush * 2_000 + number) {
                charge(&counters, &limit, number);
                charge(&counters, &limit, number);
            }
            if is_sent {
                counters.drain_changed_counters(flush, usize::MAX, &mut Vec::new());
                // After the replicas of these keys were removed.
                (0..4).for_each(|_| counters.prune(test_time()));
                for number in (0..2_000).map(|number| flush * 2_000 + number) {
                    counters.merge(&[update_of_other_node(&limit, number)], test_time());
                }
            }
            counters.prune(test_time());
            max_bytes = max_bytes.max(counters.memory_bytes());
        }
        assert!(max_bytes <= 18 * BYTES_PER_MIB, "{has_peer} {is_sent}: {max_bytes}");
        counters.prune(Timestamp::from_micros(test_time().as_micros() - 60_000_000));
        let bytes = counters.memory_bytes();
        assert!(bytes <= 18 * BYTES_PER_MIB, "{has_peer} {is_sent}: {bytes} after the step");
        counters.visit_counters_changed_since(0, true, test_time(), &mut |_| {});
        assert!(counters.memory_bytes() <= bytes, "{}", counters.memory_bytes());
    }
    Ok(())
}

/// Charges more keys than fit, and sends the changes to a peer, or not if no peer is alive. Then a peer joins.
#[test]
fn own_counters_for_other_nodes_respect_memory_limit() -> Result<(), Box<dyn std::error::Error>> {
    let limit: Limit = "3/d".parse()?;
    for sends in [true, false] {
        let counters = new_counters(16 * BYTES_PER_MIB, test_time());
        add_peer(&counters);
        let mut max_bytes = 0;
        for flush in 1..=300 {
            (0..2_000).for_each(|number| charge(&counters, &limit, flush * 2_000 + number));
            if sends {
                counters.drain_changed_counters(flush, usize::MAX, &mut Vec::new());
            }
            counters.prune(test_time());
            max_bytes = max_bytes.max(counters.memory_bytes());
        }
        assert!(max_bytes <= 17 * BYTES_PER_MIB, "{sends}: {max_bytes}");
        let mut updates = 0;
        counters.visit_counters_changed_since(0, true, test_time(), &mut |_| updates += 1);
        assert!(counters.memory_bytes() <= 17 * BYTES_PER_MIB, "{}", counters.memory_bytes());
        assert!(updates >= counters.keys(), "{updates}");
    }
    Ok(())
}

#[test]
fn records_of_calls_take_quarter_of_memory() -> Result<(), Box<dyn std::error::Error>> {
    let limit = Limit::new("1000000/d".parse()?, Algorithm::SlidingCounter)?;
    let counters = Arc::new(new_counters(4 * BYTES_PER_MIB, test_time()));
    (0..200_000).for_each(|number| charge(&counters, &limit, number));
    assert!(counters.memory_bytes() > 3 * BYTES_PER_MIB, "{}", counters.memory_bytes());
    let (keys, clock) = (counters.keys(), ManualClock::at(test_time()));
    let replication = ReplicationHandle::default();
    let store = ClusterStore::new(clock, counters.clone(), replication, Duration::ZERO);
    let scope = Scope::new("test", "memory", "limit", &["number"]);
    let texts: Vec<String> = (0..60).map(|number| number.to_string()).collect();
    let values: Vec<[Value<'_>; 1]> = texts.iter().map(|text| [text.as_str().into()]).collect();
    let hits: Vec<Hit<'_>> =
        values.iter().map(|values| Hit::new(Key::new(&scope, values), &limit, 1)).collect();
    let (mut peak_bytes, mut peak_record_bytes) = (0, 0);
    for number in 0..5_000_u128 {
        let (id, ttl) = (CallId::from_bytes(number.to_be_bytes()), Duration::from_secs(600));
        let identity = CallIdentity { id, request_digest: 0, ttl };
        block_on(store.charge_once_async(&hits, &identity))?;
        let record_bytes = store.call_record_table().memory_bytes();
        peak_record_bytes = peak_record_bytes.max(record_bytes);
        peak_bytes = peak_bytes.max(counters.memory_bytes() + record_bytes);
    }
    let quarter = BYTES_PER_MIB * 3 / 4..=BYTES_PER_MIB;
    assert!(quarter.contains(&peak_record_bytes), "{peak_record_bytes}");
    assert!(peak_bytes <= 4 * BYTES_PER_MIB + BYTES_PER_MIB / 8, "{peak_bytes}");
    // No more keys are evicted than the records need.
    assert!(counters.keys() > keys * 7 / 10, "{} of {keys}", counters.keys());
    Ok(())
}
