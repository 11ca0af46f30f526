//! The two kinds of stores, synchronous and asynchronous. The kind is a type, so the compiler knows it, and a
//! middleware over a synchronous store needs no memory for pending futures.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use super::StoreError;

/// The kind of a store: [`Synchronous`] or [`Asynchronous`].
pub trait StoreKind: sealed::Sealed + 'static {
    /// Whether every store of this kind is ready when it is first polled.
    const IS_SYNCHRONOUS: bool;

    /// The future that [`poll_if_synchronous`](Self::poll_if_synchronous) returns if it has to be awaited.
    type PendingFuture<F: Future + Send>: Future<Output = F::Output> + Send;

    /// Starts a future that awaits only stores of this kind. Returns the output of the future if the stores are
    /// synchronous.
    ///
    /// # Errors
    /// Returns the future itself if it has to be awaited.
    fn poll_if_synchronous<F: Future + Send>(
        future: F,
    ) -> Result<F::Output, Self::PendingFuture<F>>;
}

/// The kind of stores whose futures are ready when they are first polled.
#[derive(Debug)]
pub enum Synchronous {}

/// The kind of stores whose futures have to be awaited.
#[derive(Debug)]
pub enum Asynchronous {}

/// A future that is never created, because with a synchronous store no future remains to be awaited.
#[derive(Debug)]
pub struct NeverFuture<T>(Infallible, PhantomData<fn() -> T>);

impl<T> Future for NeverFuture<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<T> {
        match self.0 {}
    }
}

/// Returns the output of a future that awaits only synchronous stores: it is ready when it is first polled.
pub(crate) fn poll_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("a future over synchronous stores is pending"),
    }
}

/// Returns the result of a future that awaits only synchronous stores, which never fail.
pub(crate) fn block_on_sync_store<T>(future: impl Future<Output = Result<T, StoreError>>) -> T {
    match poll_once(future) {
        Ok(result) => result,
        Err(error) => unreachable!("a synchronous store has failed: {error}"),
    }
}

impl StoreKind for Synchronous {
    const IS_SYNCHRONOUS: bool = true;

    type PendingFuture<F: Future + Send> = NeverFuture<F::Output>;

    fn poll_if_synchronous<F: Future + Send>(
        future: F,
    ) -> Result<F::Output, NeverFuture<F::Output>> {
        Ok(poll_once(future))
    }
}

impl StoreKind for Asynchronous {
    const IS_SYNCHRONOUS: bool = false;

    type PendingFuture<F: Future + Send> = F;

    fn poll_if_synchronous<F: Future + Send>(future: F) -> Result<F::Output, F> {
        Err(future)
    }
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::Synchronous {}

    impl Sealed for super::Asynchronous {}
}
