//! Tests of the serialized form of reserved calls, for every kind of limit and counter.

use proptest::prelude::*;

use super::super::*;
use crate::algorithm::{Algorithm, Align};
use crate::calendar::{Calendar, Period, Weekday};
use crate::clock::Timestamp;
use crate::limit::Limit;
use crate::store::CounterId;

fn any_limit() -> impl Strategy<Value = Limit> {
    let windows = prop::sample::select(vec!["s", "min", "7ms", "16777217ms", "d", "30d"]);
    let algorithms = prop_oneof![
        prop::sample::select(Algorithm::ALL.to_vec()),
        Just(Algorithm::FixedWindow { align: Align::Clock }),
        (1..9_u64, 0..99_u64).prop_map(|(burst, debt)| Algorithm::TokenBucket {
            burst: Some(burst),
            max_debt: Some(debt)
        }),
        (8..1025_u16)
            .prop_map(|resolution| Algorithm::SlidingWindow { resolution: Some(resolution) }),
    ];
    let periodic = (1..60_000_u64, windows, algorithms).prop_filter_map(
        "buckets of whole microseconds",
        |(max, window, algorithm)| {
            Limit::new(format!("{max}/{window}").parse().ok()?, algorithm).ok()
        },
    );
    let calendar =
        (1..60_000_u64, prop::sample::select(Period::ALL.to_vec())).prop_map(|(max, period)| {
            let calendar = Calendar::new(period).with_time_zone("Europe/Berlin").unwrap();
            let calendar = calendar.with_week_start(Weekday::Sunday);
            Limit::calendar(max, calendar.with_start("06:00").unwrap()).unwrap()
        });
    prop_oneof![4 => periodic, 1 => calendar]
}

fn any_call() -> impl Strategy<Value = ReservedCall> {
    let counter = prop_oneof![
        any::<u64>().prop_map(CounterId::Fingerprint),
        "[a-cä:{}]{0,12}".prop_map(|text| CounterId::Text(text.into())),
    ];
    let cost = prop_oneof![
        Just(ReservedCostKind::Constant),
        Just(ReservedCostKind::Request),
        ".{0,9}".prop_map(|name| ReservedCostKind::Named(name.into())),
    ];
    let charge = (counter, any_limit(), any::<[u64; 4]>(), cost).prop_map(
        |(counter, limit, [phase_us, charged_at, hit_cost, units], cost)| ReservedCharge {
            charge: Charge {
                counter,
                limit,
                hit_index: 0,
                phase_us,
                charged_at: Timestamp::from_micros(charged_at),
                hit_cost,
                cost: units,
            },
            cost,
        },
    );
    (any::<[u8; 16]>(), prop::collection::vec(charge, 0..5))
        .prop_map(|(id, charges)| ReservedCall { id: CallId::from_bytes(id), charges })
}

proptest! {
    #[test]
    fn deserialized_call_equals_serialized_call(call in any_call()) {
        let text = serde_json::to_string(&call).unwrap();
        prop_assert_eq!(serde_json::from_str::<ReservedCall>(&text).unwrap(), call);
    }
}
