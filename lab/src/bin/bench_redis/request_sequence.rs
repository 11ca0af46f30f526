//! The sequence of requests, which is the same for all contenders.

use std::time::Duration;

use slidegate::Timestamp;

/// A request for one unit.
#[derive(Clone, Copy)]
pub struct UnitRequest {
    /// The index of the identity.
    pub identity: usize,
    /// The index of the request.
    pub nth: u64,
    /// The time by the caller's clock; `None` for Redis's clock.
    pub now: Option<Timestamp>,
}

/// An endless sequence of requests with uniformly sampled identities, at constant intervals.
#[derive(Clone, Copy)]
pub struct RequestSequence {
    /// The number of identities.
    pub identities: usize,
    /// The time of the first request and the interval by the caller's clock; `None` for Redis's clock.
    pub time: Option<(Timestamp, Duration)>,
    /// The index of the next request.
    pub position: u64,
}

impl RequestSequence {
    /// Returns the next `count` requests.
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
