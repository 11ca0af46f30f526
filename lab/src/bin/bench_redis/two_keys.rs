//! The two-key script, whose windows are days: GET, GET, then INCRBY and EXPIRE.

use slidegate::Timestamp;

use crate::course::Ask;
use crate::side::{Plain, Side};

/// The length of its windows: so long that none ends meanwhile.
pub const DAY_S: u64 = 86_400;

/// By the caller's clock.
pub fn told(max: u64) -> impl Side {
    Plain::new(include_str!("plain/counter.lua"), move |ask: Ask| {
        let now_s = ask.now.map_or(0, Timestamp::as_micros) as f64 / 1e6;
        [format!("{now_s:.3}"), DAY_S.to_string(), max.to_string(), "1".into()].into()
    })
}

/// By Redis's clock.
pub fn by_time(max: u64) -> impl Side {
    Plain::new(include_str!("plain/counter_time.lua"), move |_: Ask| {
        [DAY_S.to_string(), max.to_string(), "1".into()].into()
    })
}
