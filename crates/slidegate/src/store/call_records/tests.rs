use proptest::prelude::*;

use super::*;
use crate::store::{Outcomes, Receipt};

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

fn settlement(number: u8, value_digest: u64, ttl_s: u64) -> Settlement {
    Settlement {
        id: id(number),
        owner: None,
        value_digest,
        ttl: Duration::from_secs(ttl_s),
        reverted: Vec::new(),
        added: Vec::new(),
    }
}

#[test]
fn admitted_call_is_remembered_until_ttl() {
    let mut records = CallRecords::new(10);
    let call = identity(1, 7, 600);
    assert_eq!(records.find(&call, &[], at(0)), None);
    records.insert(&call, &[], Some(&admitted()), at(0));
    let repeated = |age| {
        Some(OnceResult::Repeated { result: Some(admitted()), age: Duration::from_secs(age) })
    };
    assert_eq!(records.find(&call, &[], at(0)), repeated(0));
    assert_eq!(records.find(&call, &[], at(599)), repeated(599));
    assert_eq!(records.find(&call, &[], at(600)), None);
    assert!(records.records.is_empty() && records.by_expiry.is_empty());
}

#[test]
fn other_request_with_same_id_is_recognized() {
    let mut records = CallRecords::new(10);
    records.insert(&identity(1, 7, 600), &[], Some(&admitted()), at(0));
    let other = records.find(&identity(1, 8, 600), &[], at(1));
    assert_eq!(other, Some(OnceResult::OtherRequest));
}

#[test]
fn call_in_progress_is_recognized() {
    let table = CallRecordTable::new(10);
    let call = identity(1, 7, 600);
    assert_eq!(table.begin(&call, &[], at(0)), None);
    assert_eq!(table.begin(&call, &[], at(0)), Some(OnceResult::InProgress));
    table.finish(&call, &[], None, at(0));
    assert_eq!(table.begin(&call, &[], at(0)), None, "a failed call is decided again");
    let denied = ChargeResult { allowed: false, ..admitted() };
    table.finish(&call, &[], Some(&denied), at(0));
    assert_eq!(table.begin(&call, &[], at(0)), None, "a denied call is decided again");
    table.finish(&call, &[], Some(&admitted()), at(0));
    assert!(matches!(table.begin(&call, &[], at(0)), Some(OnceResult::Repeated { .. })));
    assert_eq!((table.records(), table.evicted_records()), (1, 0));
}

#[test]
fn settlement_is_applied_once() {
    let table = CallRecordTable::new(10);
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
    let mut records = CallRecords::new(10);
    let call = identity(1, 7, 600);
    records.insert(&call, &[], Some(&admitted()), at(0));
    assert_eq!(records.settle(&settlement(1, 5, 600), at(1)), SettleResult::Settled);
    assert!(matches!(records.find(&call, &[], at(2)), Some(OnceResult::Repeated { .. })));
    assert_eq!(records.settle(&settlement(1, 5, 600), at(3)), SettleResult::Repeated);
}

#[test]
fn oldest_record_is_evicted_first() {
    let mut records = CallRecords::new(2);
    for number in 1..=3 {
        records.insert(&identity(number, 7, 600), &[], Some(&admitted()), at(u64::from(number)));
    }
    assert_eq!(records.evicted, 1);
    let is_known = |records: &mut CallRecords, number| {
        records.find(&identity(number, 7, 600), &[], at(4)).is_some()
    };
    assert!(!is_known(&mut records, 1));
    assert!(is_known(&mut records, 2) && is_known(&mut records, 3));
}

/// One step of a random history. The time passes before each step.
#[derive(Clone, Debug)]
enum Step {
    Charge { call: u8, ttl_s: u64 },
    Settle { call: u8, value: u64 },
    Wait { seconds: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..20_u8, 1..100_u64).prop_map(|(call, ttl_s)| Step::Charge { call, ttl_s }),
        (0..20_u8, 0..2_u64).prop_map(|(call, value)| Step::Settle { call, value }),
        (0..40_u64).prop_map(|seconds| Step::Wait { seconds }),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    /// A reservation that is settled again and again until its time is over is settled at most once, however few
    /// records are kept.
    #[test]
    fn reservation_is_never_settled_twice(steps in steps(), max_records in 1..8_usize) {
        let mut records = CallRecords::new(max_records);
        let expiry_s = |call: u8| 200 + 31 * u64::from(call % 7);
        let (mut now_s, mut settled) = (0, [0; 20]);
        for step in steps {
            match step {
                Step::Charge { call, ttl_s } => {
                    let call = identity(100 + call, 7, ttl_s);
                    if records.find(&call, &[], at(now_s)).is_none() {
                        records.insert(&call, &[], Some(&admitted()), at(now_s));
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
}
