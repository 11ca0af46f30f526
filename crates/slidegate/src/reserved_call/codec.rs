//! The encoding of reserved calls as bytes.
//!
//! Numbers are unsigned LEB128: seven bits per byte, the lowest first, and the highest bit is set in all bytes but the
//! last. The name of a counter is written without the beginning that it has in common with the name before, because the
//! limits of one rule share a long key.

use std::time::Duration;

use super::{ReservedCall, ReservedCharge, ReservedCost};
use crate::algorithm::{Algorithm, Align};
use crate::calendar::Calendar;
use crate::call::CallId;
use crate::clock::Timestamp;
use crate::limit::Limit;
use crate::quota::Quota;
use crate::store::{Charge, CounterId};

/// The first byte of an encoded call.
const FORMAT_VERSION: u8 = 1;

const COUNTER_FINGERPRINT: u8 = 0;
const COUNTER_TEXT: u8 = 1;

const COST_CONSTANT: u8 = 0;
const COST_REQUEST: u8 = 1;
const COST_NAMED: u8 = 2;

/// Encodes a call.
pub(super) fn encode(call: &ReservedCall) -> Vec<u8> {
    let mut writer = Writer { bytes: vec![FORMAT_VERSION], text: String::new() };
    writer.bytes.extend(call.id.as_bytes());
    writer.write_number(call.charges.len() as u64);
    for ReservedCharge { charge, cost } in &call.charges {
        writer.write_counter(&charge.counter);
        writer.write_limit(&charge.limit);
        for number in [charge.phase_us, charge.charged_at.as_micros(), charge.hit_cost, charge.cost]
        {
            writer.write_number(number);
        }
        match cost {
            ReservedCost::Constant => writer.bytes.push(COST_CONSTANT),
            ReservedCost::Request => writer.bytes.push(COST_REQUEST),
            ReservedCost::Named(name) => {
                writer.bytes.push(COST_NAMED);
                writer.write_text(name);
            }
        }
    }
    writer.bytes
}

/// Decodes a call. Returns `None` if the bytes have another format.
pub(super) fn decode(bytes: &[u8]) -> Option<ReservedCall> {
    let mut reader = Reader { bytes, text: String::new() };
    if reader.read_byte()? != FORMAT_VERSION {
        return None;
    }
    let (id, rest) = reader.bytes.split_first_chunk()?;
    reader.bytes = rest;
    let count = reader.read_number()?;
    let mut charges = Vec::new();
    for _ in 0..count {
        let counter = reader.read_counter()?;
        let limit = reader.read_limit()?;
        let charge = Charge {
            counter,
            limit,
            hit_index: 0,
            phase_us: reader.read_number()?,
            charged_at: Timestamp::from_micros(reader.read_number()?),
            hit_cost: reader.read_number()?,
            cost: reader.read_number()?,
        };
        let cost = match reader.read_byte()? {
            COST_CONSTANT => ReservedCost::Constant,
            COST_REQUEST => ReservedCost::Request,
            COST_NAMED => ReservedCost::Named(reader.read_text()?.into()),
            _ => return None,
        };
        charges.push(ReservedCharge { charge, cost });
    }
    reader.bytes.is_empty().then_some(ReservedCall { id: CallId::from_bytes(*id), charges })
}

struct Writer {
    bytes: Vec<u8>,
    /// The name of the previous counter.
    text: String,
}

impl Writer {
    fn write_number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    fn write_text(&mut self, text: &str) {
        self.write_number(text.len() as u64);
        self.bytes.extend(text.as_bytes());
    }

    fn write_counter(&mut self, counter: &CounterId) {
        match counter {
            CounterId::Fingerprint(fingerprint) => {
                self.bytes.push(COUNTER_FINGERPRINT);
                self.bytes.extend(fingerprint.to_le_bytes());
            }
            CounterId::Text(text) => {
                let pairs = self.text.chars().zip(text.chars());
                let common = pairs.take_while(|(first, second)| first == second);
                let common: usize = common.map(|(character, _)| character.len_utf8()).sum();
                self.bytes.push(COUNTER_TEXT);
                self.write_number(common as u64);
                self.write_text(&text[common..]);
                self.text.replace_range(.., text);
            }
        }
    }

    fn write_limit(&mut self, limit: &Limit) {
        let quota = limit.quota();
        self.write_number(quota.max());
        self.write_number(quota.window_us());
        match limit.algorithm() {
            Algorithm::SlidingLog => self.bytes.push(1),
            Algorithm::SlidingBuckets { precision } => {
                self.bytes.push(2);
                let precision = precision.unwrap_or_default();
                self.write_number(u64::try_from(precision.as_micros()).unwrap_or_default());
            }
            Algorithm::SlidingCounter => self.bytes.push(3),
            Algorithm::FixedWindow { align } => {
                self.bytes.push(4);
                match align {
                    Align::Key => self.bytes.push(0),
                    Align::Clock => self.bytes.push(1),
                    Align::Calendar(calendar) => {
                        self.bytes.push(2);
                        self.write_text(calendar.period().name());
                        self.write_text(calendar.week_start().name());
                        self.write_text(calendar.time_zone());
                    }
                }
            }
            Algorithm::TokenBucket { burst, max_debt } => {
                self.bytes.push(5);
                self.write_number(burst.unwrap_or_default());
                self.write_number(max_debt.unwrap_or_default());
            }
            Algorithm::SlidingWindow { resolution } => {
                self.bytes.push(6);
                self.write_number(resolution.unwrap_or_default().into());
            }
            Algorithm::Concurrent => self.bytes.push(7),
        }
    }
}

struct Reader<'b> {
    bytes: &'b [u8],
    /// The name of the previous counter.
    text: String,
}

impl Reader<'_> {
    fn read_byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*byte)
    }

    fn read_number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.read_byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn read_text(&mut self) -> Option<&str> {
        let length = usize::try_from(self.read_number()?).ok()?;
        let (text, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        str::from_utf8(text).ok()
    }

    fn read_counter(&mut self) -> Option<CounterId> {
        match self.read_byte()? {
            COUNTER_FINGERPRINT => {
                let (fingerprint, rest) = self.bytes.split_first_chunk()?;
                self.bytes = rest;
                Some(CounterId::Fingerprint(u64::from_le_bytes(*fingerprint)))
            }
            COUNTER_TEXT => {
                let common = usize::try_from(self.read_number()?).ok()?;
                let mut text = self.text.get(..common)?.to_owned();
                text.push_str(self.read_text()?);
                self.text.replace_range(.., &text);
                Some(CounterId::Text(text.into()))
            }
            _ => None,
        }
    }

    fn read_calendar(&mut self) -> Option<Calendar> {
        let period = self.read_text()?.parse().ok()?;
        let week_start = self.read_text()?.parse().ok()?;
        let calendar = Calendar::new(period).with_time_zone(self.read_text()?).ok()?;
        Some(calendar.with_week_start(week_start))
    }

    fn read_limit(&mut self) -> Option<Limit> {
        let (max, window_us) = (self.read_number()?, self.read_number()?);
        let algorithm = match self.read_byte()? {
            1 => Algorithm::SlidingLog,
            2 => {
                let precision = Duration::from_micros(self.read_number()?);
                Algorithm::SlidingBuckets { precision: Some(precision) }
            }
            3 => Algorithm::SlidingCounter,
            4 => Algorithm::FixedWindow {
                align: match self.read_byte()? {
                    0 => Align::Key,
                    1 => Align::Clock,
                    2 => return Limit::calendar(max, self.read_calendar()?).ok(),
                    _ => return None,
                },
            },
            5 => Algorithm::TokenBucket {
                burst: Some(self.read_number()?),
                max_debt: Some(self.read_number()?),
            },
            6 => {
                Algorithm::SlidingWindow { resolution: Some(self.read_number()?.try_into().ok()?) }
            }
            7 => Algorithm::Concurrent,
            _ => return None,
        };
        Limit::new(Quota::new(max, Duration::from_micros(window_us)).ok()?, algorithm).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::calendar::{Period, Weekday};

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
        let calendar = (1..60_000_u64, prop::sample::select(Period::ALL.to_vec())).prop_map(
            |(max, period)| {
                let calendar = Calendar::new(period).with_time_zone("Europe/Berlin").unwrap();
                Limit::calendar(max, calendar.with_week_start(Weekday::Sunday)).unwrap()
            },
        );
        prop_oneof![4 => periodic, 1 => calendar]
    }

    fn any_call() -> impl Strategy<Value = ReservedCall> {
        let counter = prop_oneof![
            any::<u64>().prop_map(CounterId::Fingerprint),
            "[a-cä:{}]{0,12}".prop_map(|text| CounterId::Text(text.into())),
        ];
        let cost = prop_oneof![
            Just(ReservedCost::Constant),
            Just(ReservedCost::Request),
            ".{0,9}".prop_map(|name| ReservedCost::Named(name.into())),
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
        fn decoded_call_equals_encoded_call(call in any_call()) {
            prop_assert_eq!(decode(&encode(&call)), Some(call));
        }

        #[test]
        fn any_bytes_decode_without_panic(
            call in any_call(),
            cut in any::<prop::sample::Index>(),
            flipped in any::<prop::sample::Index>(),
            bits: u8,
        ) {
            let mut bytes = encode(&call);
            prop_assert_eq!(decode(&bytes[..cut.index(bytes.len())]), None);
            let flipped = flipped.index(bytes.len());
            bytes[flipped] ^= bits;
            let _ = decode(&bytes);
        }
    }
}
