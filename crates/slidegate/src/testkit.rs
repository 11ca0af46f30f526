//! Test support for stores: an oracle, a reference model, a conformance suite, property tests, and a faulty store.
//!
//! To test another store, pass it, and the clock that it reads, to [`conformance::run_trace`] and to each function in
//! [`properties`].

pub mod conformance;
pub mod faulty;
pub mod model;
pub mod oracle;
pub mod properties;
mod trace;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Runs a future to completion on this thread, by polling it in a loop. The future must not need a runtime.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}
