//! Generates the sequence of requests of a measurement. All contenders receive the same sequence.

use std::time::Duration;

use slidegate::Timestamp;

/// A request for one unit of an identity. An identity is a user that is limited separately.
#[derive(Clone, Copy)]
pub struct UnitRequest {
    /// The number of the identity that requests the unit.
    pub identity: usize,
    /// The position of the request in its sequence.
    pub nth: u64,
    /// The time of the request by the clock of the caller; `None` if Redis reads its own clock.
    pub now: Option<Timestamp>,
}

/// An endless sequence of requests at constant intervals. The identity of each request is sampled uniformly.
#[derive(Clone, Copy)]
pub struct RequestSequence {
    /// The number of identities, from which each request samples one.
    pub identities: usize,
    /// The time of the request at position 0, and the interval between requests, by the clock of the caller. `None` if
    /// Redis reads its own clock.
    pub time: Option<(Timestamp, Duration)>,
    /// The position of the next request.
    pub position: u64,
}

impl RequestSequence {
    /// Returns the next `count` requests, but does not advance the position.
    pub fn next(&self, count: usize) -> impl Iterator<Item = UnitRequest> + use<> {
        let Self { identities, time, position } = *self;
        let mut rng = fastrand::Rng::with_seed(position);
        (position..position + count as u64).map(move |nth| {
            let now = time.map(|(start, step)| {
                Timestamp::from_micros(start.as_micros() + nth * step.as_micros() as u64)
            });
            UnitRequest { identity: rng.usize(0..identities), nth, now }
        })
    }
}
