//! The body of a call, which has to come in time.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

/// A body that ends in an error when it has not come whole in time. The time begins when it is first waited
/// for: most bodies are there with their heads, and need no timer.
pub struct PatientBody {
    body: Incoming,
    patience: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl PatientBody {
    /// `patience` bounds the whole body.
    pub fn new(body: Incoming, patience: Duration) -> Self {
        Self { body, patience, waiting: None }
    }
}

impl Body for PatientBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let body = Pin::new(&mut self.body);
        if let Poll::Ready(frame) = body.poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(unreadable)));
        }
        let patience = self.patience;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(patience)));
        waiting.as_mut().poll(cx).map(|()| {
            let wrong = format!("the call did not come whole within {patience:?}: send it faster");
            Some(Err(Status::deadline_exceeded(wrong)))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The client is gone, or has ended the call.
fn unreadable(error: hyper::Error) -> Status {
    Status::cancelled(format!("the call cannot be read: {error}"))
}
