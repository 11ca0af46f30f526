//! How a store answers, known to the compiler: what never waits needs no room for waiting.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

/// How a store answers: [`Synchronous`] or [`Asynchronous`].
pub trait StoreKind: sealed::Sealed + 'static {
    /// What is left to wait for of a future.
    type Wait<F: Future + Send>: Future<Output = F::Output> + Send;

    /// Begins what waits for nothing but a store of this pace.
    ///
    /// # Errors
    /// If it has to be waited for.
    fn begin<F: Future + Send>(future: F) -> Result<F::Output, Self::Wait<F>>;
}

/// Each of its futures is ready when it is first polled.
#[derive(Debug)]
pub enum Synchronous {}

/// Its futures have to be awaited.
#[derive(Debug)]
pub enum Asynchronous {}

/// What never waits. There is none.
#[derive(Debug)]
pub struct Never<T>(Infallible, PhantomData<fn() -> T>);

impl<T> Future for Never<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<T> {
        match self.0 {}
    }
}

impl StoreKind for Synchronous {
    type Wait<F: Future + Send> = Never<F::Output>;

    #[inline]
    fn begin<F: Future + Send>(future: F) -> Result<F::Output, Never<F::Output>> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Ok(output),
            Poll::Pending => unreachable!("it waits for nothing but a store that answers at once"),
        }
    }
}

impl StoreKind for Asynchronous {
    type Wait<F: Future + Send> = F;

    #[inline]
    fn begin<F: Future + Send>(future: F) -> Result<F::Output, F> {
        Err(future)
    }
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::Synchronous {}

    impl Sealed for super::Asynchronous {}
}
