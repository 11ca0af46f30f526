//! Runs the calls of a connection in the task of the connection.
//!
//! hyper starts each call on an executor. On the executor of Tokio, a call would be a task of its own: the connection
//! would read a call, the task would respond to it, and the connection would run again to send the response. When many
//! connections have calls, each of these steps would wait for the same step of all other connections. Here, the
//! connection reads calls, responds to them, and sends the responses in one turn, with one write for all of them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use hyper::rt::Executor;
use parking_lot::Mutex;

/// The calls that a connection has read, and that have not run yet. Clones share the calls.
#[derive(Clone, Default)]
pub struct CallQueue(Arc<Mutex<VecDeque<BoxedCall>>>);

type BoxedCall = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for CallQueue {
    fn execute(&self, call: F) {
        self.0.lock().push_back(Box::pin(call));
    }
}

impl CallQueue {
    /// Serves a connection whose calls hyper adds to this queue.
    pub async fn serve<C: Future>(self, connection: C) -> C::Output {
        let mut connection = pin!(connection);
        poll_fn(|cx| self.poll_connection(connection.as_mut(), cx)).await
    }

    fn poll_connection<C: Future>(
        &self,
        mut connection: Pin<&mut C>,
        cx: &mut Context<'_>,
    ) -> Poll<C::Output> {
        loop {
            // Reads calls. Each response wakes the connection, which is polled again anyway.
            let ended = connection.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            self.run_calls();
            if ended.is_ready() {
                return ended;
            }
            // Sends the responses.
            let ended = connection.as_mut().poll(cx);
            if ended.is_ready() || self.0.lock().is_empty() {
                return ended;
            }
        }
    }

    /// Runs each call until it has responded or must wait. The calls that must wait continue as tasks.
    fn run_calls(&self) {
        while let Some(mut call) = self.pop() {
            let mut context = Context::from_waker(Waker::noop());
            if call.as_mut().poll(&mut context).is_pending() {
                tokio::spawn(call);
            }
        }
    }

    fn pop(&self) -> Option<BoxedCall> {
        self.0.lock().pop_front()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    #[tokio::test]
    async fn calls_respond_before_connection_yields() {
        let (calls, (sender, mut responses)) = (CallQueue::default(), mpsc::unbounded_channel());
        let mut unread = vec![1, 2, 3];
        let connection = poll_fn(|cx| {
            for call in unread.drain(..) {
                let sender = sender.clone();
                calls.execute(async move { sender.send(call).unwrap_or_default() });
            }
            let mut sent = Vec::new();
            while let Poll::Ready(Some(response)) = responses.poll_recv(cx) {
                sent.push(response);
            }
            if sent.is_empty() { Poll::Pending } else { Poll::Ready(sent) }
        });
        let mut serve = pin!(calls.clone().serve(connection));
        let sent = serve.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(sent, Poll::Ready(vec![1, 2, 3]));
    }

    #[tokio::test]
    async fn waiting_call_continues_as_task() {
        let (calls, (sender, receiver)) = (CallQueue::default(), oneshot::channel());
        let (end, mut ended) = oneshot::channel();
        let call = async move { end.send(receiver.await).unwrap_or_default() };
        calls.execute(call);
        let mut sender = Some(sender);
        let mut polls = 0;
        let connection = poll_fn(|cx| {
            polls += 1;
            // The call already waits when the connection is polled again.
            if let Some(sender) = sender.take_if(|_| polls == 2) {
                assert_eq!(sender.send(7), Ok(()));
            }
            Pin::new(&mut ended).poll(cx)
        });
        assert_eq!(calls.clone().serve(connection).await, Ok(Ok(7)));
    }
}
