use std::num::NonZeroU32;
use std::time::Duration;

use super::*;

#[test]
fn limit_instance_share_divides_max_and_burst() {
    let share =
        |limit: &Limit, instances| limit.instance_share(NonZeroU32::new(instances).unwrap());
    for algorithm in Algorithm::ALL {
        // The last window is not a whole number of ticks.
        for quota in ["100/min", "7/d", "1/s", "0/h", "100/16777217ms"] {
            let limit = Limit::new(quota.parse().unwrap(), algorithm).unwrap();
            assert_eq!(share(&limit, 1), limit);
            for instances in [2, 3, 10, 1_000, u32::MAX] {
                let (own, total) = (share(&limit, instances), limit.quota().max());
                let max = (total / u64::from(instances)).max(u64::from(total > 0));
                assert_eq!((own.quota().max(), own.capacity()), (max, max), "{limit}");
                assert_eq!(own.quota().window(), limit.quota().window(), "{limit}");
                assert_eq!(own.counter_shape_text(), limit.counter_shape_text(), "{limit}");
            }
        }
    }
    let burst = |burst| Algorithm::TokenBucket { burst: Some(burst), max_debt: None };
    let bucket = |quota: &str, units| Limit::new(quota.parse().unwrap(), burst(units)).unwrap();
    assert_eq!(share(&bucket("100/s", 50), 4), bucket("25/s", 12));
    assert_eq!(share(&bucket("100/s", 3), 4), bucket("25/s", 1));
    assert_eq!(share(&bucket("100/s", 0), 4), bucket("25/s", 0));
}

#[test]
fn max_of_zero_has_no_capacity() {
    for algorithm in Algorithm::ALL {
        let limit = Limit::new("0/h".parse().unwrap(), algorithm).unwrap();
        assert_eq!(limit.capacity(), 0, "{limit}");
    }
    let burst = Algorithm::TokenBucket { burst: Some(10), max_debt: None };
    assert_eq!(Limit::new("0/h".parse().unwrap(), burst).unwrap().capacity(), 0);
    assert_eq!(Limit::new("1/h".parse().unwrap(), burst).unwrap().capacity(), 10);
}

/// Decisions copy limits.
#[test]
fn limit_takes_32_bytes() {
    assert_eq!(size_of::<Limit>(), 32);
}

/// Compares shape hashes with fixed numbers. Nodes of different versions identify shared counters by these hashes,
/// so the hashes must not change.
#[test]
fn limit_shape_hash_is_same_in_every_version() {
    let shape =
        |quota: &str, algorithm| Limit::new(quota.parse().unwrap(), algorithm).unwrap().shape();
    let buckets = Algorithm::SlidingBuckets { precision: Some(Duration::from_secs(60)) };
    assert_eq!(shape("100/min", Algorithm::SlidingCounter), 0xc9d7_f7c8_cbc4_c46a);
    for (resolution, cluster_counter_shape) in [
        (None, 0x3148_17c0_5554_feb6),
        (Some(32), 0x3148_17c0_5554_feb6),
        (Some(64), 0x3128_17c0_5554_feb6),
    ] {
        let algorithm = Algorithm::SlidingWindow { resolution };
        assert_eq!(shape("100/min", algorithm), 0x3168_17c0_5554_feb6);
        let limit = Limit::new("100/min".parse().unwrap(), algorithm).unwrap();
        assert_eq!(limit.cluster_counter_shape(), cluster_counter_shape, "{limit}");
    }
    let counter = Limit::new("100/min".parse().unwrap(), Algorithm::SlidingCounter).unwrap();
    assert_eq!(counter.cluster_counter_shape(), counter.shape());
    assert_eq!(shape("100/h", buckets), 0x30b9_3f8d_6687_886c);
    assert_eq!(
        shape("100/d", Algorithm::FixedWindow { align: Align::Clock }),
        0x6430_cb58_711d_cb49
    );
}

#[test]
fn max_above_small_units_needs_algorithm_that_only_adds() {
    let error = |algorithm| {
        let quota = Quota::new(5_000_000_000, Duration::from_secs(86_400)).unwrap();
        Limit::new(quota, algorithm).err().map(|error| error.to_string())
    };
    for algorithm in [
        Algorithm::default(),
        Algorithm::SlidingBuckets { precision: None },
        Algorithm::FixedWindow { align: Align::Key },
    ] {
        assert_eq!(error(algorithm), None);
    }
    for algorithm in
        [Algorithm::SlidingCounter, Algorithm::TokenBucket { burst: Some(5), max_debt: None }]
    {
        let expected = format!(
            "a max of 5000000000 is too large for `{algorithm}`; the maximum is 536870912; use `sliding_window` or `fixed_window`"
        );
        assert_eq!(error(algorithm), Some(expected));
    }
}
