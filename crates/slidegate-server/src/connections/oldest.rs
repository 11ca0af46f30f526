//! Eviction of the oldest connection.

use std::collections::VecDeque;

use tokio::sync::oneshot;

/// Resolves when its connection is evicted.
pub type Evicted = oneshot::Receiver<()>;

/// Open connections, oldest first. Dropping a sender evicts its connection.
#[derive(Default)]
pub struct OldestFirst(VecDeque<oneshot::Sender<()>>);

impl OldestFirst {
    /// Adds the newest connection. The caller drops the returned receiver when the connection ends.
    pub fn add(&mut self) -> Evicted {
        let (evict, evicted) = oneshot::channel();
        self.forget_ended();
        self.0.push_back(evict);
        evicted
    }

    /// Evicts the oldest connection that has not ended.
    pub fn evict_oldest(&mut self) {
        self.forget_ended();
        self.0.pop_front();
    }

    fn forget_ended(&mut self) {
        self.0.retain(|evict| !evict.is_closed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_open_connection_is_evicted() {
        let mut open = OldestFirst::default();
        let [ended, mut oldest, mut newest] = [(); 3].map(|()| open.add());
        drop(ended);
        open.evict_oldest();
        assert!(
            oldest.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed)
        );
        assert!(newest.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
    }

    #[test]
    fn ended_connections_take_no_memory() {
        let mut open = OldestFirst::default();
        (0..100).for_each(|_| drop(open.add()));
        assert_eq!(open.0.len(), 1, "the last, until the next comes");
    }
}
