use proptest::prelude::*;

use super::*;
use crate::limit::Limit;
use crate::store::{CounterId, Outcomes, Receipt};

/// More bytes than the records of a test take.
const MANY_BYTES: usize = 1 << 20;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(1_000 + seconds)
}

fn id(number: u8) -> CallId {
    CallId::from_bytes([number; 16])
}

fn identity(number: u8, request_digest: u64, ttl_s: u64) -> CallIdentity {
    CallIdentity { id: id(number), request_digest, ttl: Duration::from_secs(ttl_s) }
}

fn admitted() -> ChargeResult {
    ChargeResult { allowed: true, outcomes: Outcomes::new(), receipt: Receipt::default() }
}

/// Returns the result of an admitted call of this many hits.
fn admitted_hits(hits: u32) -> ChargeResult {
    let limit: Limit = "1/s".parse().unwrap();
    let charge = |hit_index| Charge {
        counter: CounterId::Fingerprint(7),
        limit,
        hit_index,
        phase_us: 0,
        charged_at: at(0),
        hit_cost: 1,
        cost: 1,
    };
    ChargeResult {
        allowed: true,
        outcomes: (0..hits).map(|_| Outcome::unknown()).collect(),
        receipt: (0..hits).map(charge).collect(),
    }
}

fn settlement(number: u8, value_digest: u64, ttl_s: u64) -> CallSettlement {
    CallSettlement {
        id: id(number),
        owner: None,
        value_digest,
        ttl: Duration::from_secs(ttl_s),
        reverted: Vec::new(),
        added: Vec::new(),
    }
}

#[test]
fn record_expires_in_time_after_clock_step_back() {
    let mut records = CallRecordShard::new(10, MANY_BYTES);
    let (call, hour) = (identity(1, 7, 600), 3_600);
    records.insert(&call, &[], Some(&admitted()), at(hour));
    let repeated = |age| {
        Some(ChargeOnceResult::Repeated { result: Some(admitted()), age: Duration::from_secs(age) })
    };
    assert_eq!(records.find(&call, &[], at(hour - 1)), repeated(0));
    assert_eq!(records.find(&call, &[], at(0)), repeated(0));
    assert_eq!(records.find(&call, &[], at(599)), repeated(599));
    assert_eq!(records.find(&call, &[], at(600)), None);

    assert_eq!(records.settle(&settlement(2, 1, 600), at(hour)), SettleResult::Settled);
    assert_eq!(records.settle(&settlement(2, 1, 600), at(0)), SettleResult::Repeated);
    records.remove_expired(at(660));
    assert!(records.records.is_empty() && records.by_expiry.is_empty());
}

#[test]
fn admitted_call_is_remembered_until_ttl() {
    let mut records = CallRecordShard::new(10, MANY_BYTES);
    let call = identity(1, 7, 600);
    assert_eq!(records.find(&call, &[], at(0)), None);
    records.insert(&call, &[], Some(&admitted()), at(0));
    let repeated = |age| {
        Some(ChargeOnceResult::Repeated { result: Some(admitted()), age: Duration::from_secs(age) })
    };
    assert_eq!(records.find(&call, &[], at(0)), repeated(0));
    assert_eq!(records.find(&call, &[], at(599)), repeated(599));
    assert_eq!(records.find(&call, &[], at(600)), None);
    assert!(records.records.is_empty() && records.by_expiry.is_empty());
}

#[test]
fn other_request_with_same_id_is_recognized() {
    let mut records = CallRecordShard::new(10, MANY_BYTES);
    records.insert(&identity(1, 7, 600), &[], Some(&admitted()), at(0));
    let other = records.find(&identity(1, 8, 600), &[], at(1));
    assert_eq!(other, Some(ChargeOnceResult::OtherRequest));
}

#[test]
fn call_in_progress_is_recognized() {
    let table = CallRecordTable::new(10, MANY_BYTES);
    let call = identity(1, 7, 600);
    assert_eq!(table.begin_call(&call, &[], at(0)), None);
    assert_eq!(table.begin_call(&call, &[], at(0)), Some(ChargeOnceResult::InProgress));
    table.finish_call(&call, &[], None, at(0));
    assert_eq!(table.begin_call(&call, &[], at(0)), None, "a failed call is decided again");
    let denied = ChargeResult { allowed: false, ..admitted() };
    table.finish_call(&call, &[], Some(&denied), at(0));
    assert_eq!(table.begin_call(&call, &[], at(0)), None, "a denied call is decided again");
    table.finish_call(&call, &[], Some(&admitted()), at(0));
    assert!(matches!(table.begin_call(&call, &[], at(0)), Some(ChargeOnceResult::Repeated { .. })));
    assert_eq!((table.records(), table.evicted_records()), (1, 0));
}

#[test]
fn settlement_is_applied_once() {
    let table = CallRecordTable::new(10, MANY_BYTES);
    let mut applied = 0;
    let mut settle = |value, now| table.settle(&settlement(1, value, 600), now, || applied += 1);
    assert_eq!(settle(5, at(0)), SettleResult::Settled);
    assert_eq!(settle(5, at(1)), SettleResult::Repeated);
    assert_eq!(settle(6, at(2)), SettleResult::OtherValue);
    assert_eq!(settle(5, at(600)), SettleResult::Repeated);
    assert_eq!(applied, 1);
}

#[test]
fn settled_call_is_still_repeated() {
    let mut records = CallRecordShard::new(10, MANY_BYTES);
    let call = identity(1, 7, 600);
    records.insert(&call, &[], Some(&admitted()), at(0));
    assert_eq!(records.settle(&settlement(1, 5, 600), at(1)), SettleResult::Settled);
    assert!(matches!(records.find(&call, &[], at(2)), Some(ChargeOnceResult::Repeated { .. })));
    assert_eq!(records.settle(&settlement(1, 5, 600), at(3)), SettleResult::Repeated);
}

#[test]
fn oldest_record_is_evicted_first() {
    let mut records = CallRecordShard::new(2, MANY_BYTES);
    for number in 1..=3 {
        records.insert(&identity(number, 7, 600), &[], Some(&admitted()), at(u64::from(number)));
    }
    assert_eq!(records.evicted, 1);
    let is_known = |records: &mut CallRecordShard, number| {
        records.find(&identity(number, 7, 600), &[], at(4)).is_some()
    };
    assert!(!is_known(&mut records, 1));
    assert!(is_known(&mut records, 2) && is_known(&mut records, 3));
}

#[test]
fn records_of_all_shards_stay_within_max() {
    for max_records in [1, 10, 63, 64, 100, 1_000] {
        let table = CallRecordTable::new(max_records, 64 << 20);
        for number in 0..3_000_u32 {
            let id = CallId::from_bytes(u128::from(number).to_be_bytes());
            let call = CallIdentity { id, ..identity(0, 7, 600) };
            table.charge_once(&call, &[], at(0), admitted);
        }
        let records = table.records();
        assert!(records <= max_records && records * 2 > max_records, "{records}, {max_records}");
    }
}

#[test]
fn large_record_evicts_no_other() {
    let mut records = CallRecordShard::new(10, 4_000);
    let (small, large) = (identity(1, 7, 600), identity(2, 7, 900));
    records.insert(&small, &[], Some(&admitted_hits(4)), at(0));
    records.insert(&large, &[], Some(&admitted_hits(1_000)), at(0));
    assert!(records.find(&small, &[], at(1)).is_some());
    assert_eq!((records.find(&large, &[], at(1)), records.evicted), (None, 1));
}

#[test]
fn eviction_of_unsettled_call_allows_settlement() {
    let mut records = CallRecordShard::new(1, MANY_BYTES);
    records.insert(&identity(1, 7, 600), &[], Some(&admitted()), at(0));
    records.insert(&identity(2, 7, 900), &[], Some(&admitted()), at(0));
    assert_eq!(records.evicted, 1);
    assert_eq!(records.settle(&settlement(1, 5, 300), at(1)), SettleResult::Settled);
    assert_eq!(records.settle(&settlement(1, 5, 299), at(2)), SettleResult::Forgotten);
}

/// One step of a random history. The time passes before each step.
#[derive(Clone, Debug)]
enum Step {
    Charge { call: u8, ttl_s: u64, hits: u32 },
    Settle { call: u8, value: u64 },
    Wait { seconds: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..20_u8, 1..100_u64, 0..60_u32).prop_map(|(call, ttl_s, hits)| Step::Charge {
            call,
            ttl_s,
            hits
        }),
        (0..20_u8, 0..2_u64).prop_map(|(call, value)| Step::Settle { call, value }),
        (0..40_u64).prop_map(|seconds| Step::Wait { seconds }),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    /// A reservation that is settled again and again until its time is over is settled at most once, however few
    /// records are kept.
    #[test]
    fn reservation_is_never_settled_twice(
        steps in steps(),
        max_records in 1..8_usize,
        max_bytes in 0..20_000_usize,
    ) {
        let mut records = CallRecordShard::new(max_records, max_bytes);
        let expiry_s = |call: u8| 200 + 31 * u64::from(call % 7);
        let (mut now_s, mut settled) = (0, [0; 20]);
        for step in steps {
            match step {
                Step::Charge { call, ttl_s, hits } => {
                    let call = identity(100 + call, 7, ttl_s);
                    if records.find(&call, &[], at(now_s)).is_none() {
                        records.insert(&call, &[], Some(&admitted_hits(hits)), at(now_s));
                    }
                }
                Step::Settle { call, value } if now_s < expiry_s(call) => {
                    let settlement = settlement(call, value, expiry_s(call) - now_s);
                    let result = records.settle(&settlement, at(now_s));
                    settled[usize::from(call)] += u32::from(result == SettleResult::Settled);
                }
                Step::Settle { .. } => {}
                Step::Wait { seconds } => now_s += seconds,
            }
            prop_assert!(records.records.len() <= max_records);
            prop_assert_eq!(records.records.len(), records.by_expiry.len());
        }
        prop_assert!(settled.iter().all(|count| *count <= 1), "{settled:?}");
    }
    #[test]
    fn bytes_equal_recount_and_stay_within_bound(steps in steps(), max_bytes in 0..300_000_usize) {
        let table = CallRecordTable::new(1_000, max_bytes);
        let mut now_s = 0;
        for step in steps {
            match step {
                Step::Charge { call, ttl_s, hits } => {
                    let call = identity(100 + call, 7, ttl_s);
                    if table.begin_call(&call, &[], at(now_s)).is_none() {
                        table.finish_call(&call, &[], Some(&admitted_hits(hits)), at(now_s));
                    }
                }
                Step::Settle { call, value } => {
                    table.settle(&settlement(call, value, 50), at(now_s), || ());
                }
                Step::Wait { seconds } => now_s += seconds,
            }
            let recount = |shard: &Mutex<CallRecordShard>| -> usize {
                shard.lock().records.values().map(|record| record.bytes()).sum()
            };
            let recounted = table.shards.iter().map(recount).sum::<usize>();
            prop_assert_eq!(table.memory_bytes(), recounted);
            prop_assert!(recounted <= max_bytes, "{} > {}", recounted, max_bytes);
        }
    }
}
