//! Eviction of the oldest connection of a listener.

use std::collections::VecDeque;

use tokio::sync::oneshot;

/// The receiver of the signal that evicts one connection. The receiver is a future that completes when the listener
/// evicts the connection.
pub type EvictionSignal = oneshot::Receiver<()>;

/// The open connections of a listener, oldest first. The list contains the sender of each connection's eviction signal.
/// Dropping a sender evicts its connection.
#[derive(Default)]
pub struct OpenConnections(VecDeque<oneshot::Sender<()>>);

impl OpenConnections {
    /// Adds a new connection and returns its eviction signal. The caller must drop the signal when the connection ends.
    pub fn add(&mut self) -> EvictionSignal {
        let (evict, evicted) = oneshot::channel();
        self.remove_closed_connections();
        self.0.push_back(evict);
        evicted
    }

    /// Evicts the oldest connection that is still open.
    pub fn evict_oldest(&mut self) {
        self.remove_closed_connections();
        self.0.pop_front();
    }

    fn remove_closed_connections(&mut self) {
        self.0.retain(|evict| !evict.is_closed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_open_connection_is_evicted() {
        let mut open = OpenConnections::default();
        let [ended, mut oldest, mut newest] = [(); 3].map(|()| open.add());
        drop(ended);
        open.evict_oldest();
        assert!(
            oldest.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed)
        );
        assert!(newest.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
    }

    #[test]
    fn closed_connections_are_removed_from_list() {
        let mut open = OpenConnections::default();
        (0..100).for_each(|_| drop(open.add()));
        assert_eq!(open.0.len(), 1, "the last, until the next comes");
    }
}
