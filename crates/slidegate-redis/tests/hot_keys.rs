//! Tests of the Redis options of rules (`redis: {…}`) with real servers: `split`, `sample` and `slot_by`.

mod fairness;
mod instance;
mod overload;
mod sample;
mod slots;
mod split;
