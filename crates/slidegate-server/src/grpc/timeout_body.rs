//! A time limit for the body of a gRPC call.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

/// A request body that fails if it does not arrive completely in time. The timer starts when the server first waits for
/// a part of the body: most bodies arrive together with their headers and need no timer.
pub struct TimeoutBody {
    body: Incoming,
    client_timeout: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

impl TimeoutBody {
    /// Wraps a body. The whole body must arrive within `client_timeout` after the server first waits for a part of it.
    pub fn new(body: Incoming, client_timeout: Duration) -> Self {
        Self { body, client_timeout, timer: None }
    }
}

impl Body for TimeoutBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let body = Pin::new(&mut self.body);
        if let Poll::Ready(frame) = body.poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(cancelled_status_from_error)));
        }
        let client_timeout = self.client_timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(client_timeout)));
        timer.as_mut().poll(cx).map(|()| {
            let message =
                format!("the message did not arrive within {client_timeout:?}; end the call after the message, or raise --client-timeout");
            Some(Err(Status::deadline_exceeded(message)))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns the gRPC status `CANCELLED`. The call ends with this status if the client disconnects or cancels the call
/// before the server has read it.
fn cancelled_status_from_error(error: hyper::Error) -> Status {
    Status::cancelled(format!("the call cannot be read: {error}"))
}
