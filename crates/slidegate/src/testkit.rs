//! What every store is held against: the oracle, the model, the conformance suite, the laws, and a
//! store that is awkward on purpose.
//!
//! To try a store of your own, hand it and the clock that it reads to [`conformance::hold`] and to each
//! of the [`properties`].

pub mod conformance;
pub mod faulty;
pub mod model;
pub mod oracle;
pub mod properties;
mod trace;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Runs a future that needs no runtime to its end.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}
