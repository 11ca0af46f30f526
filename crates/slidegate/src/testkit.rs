//! Tools for tests of stores: an oracle (an exact sliding log), a reference model of a store, a conformance suite,
//! property tests, and a store with injected faults.
//!
//! To test a store, pass the store and the clock that the store reads to [`conformance::run_trace`] and to
//! [`properties::all_properties_hold`].

mod calendar;
mod clock_steps;
pub mod conformance;
pub mod faulty;
mod limits;
pub mod model;
pub mod oracle;
pub mod permits;
pub mod properties;
mod trace;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// Runs a future to completion on the current thread, by polling the future in a loop. The future must not need a
/// runtime.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}
