//! Keeps client connections within the open file limit of the system, with a reserve for all other files.

use std::num::NonZeroUsize;

use tracing::warn;

use crate::settings::ClientBounds;

/// Files that are not connections of a listener: listeners, standard streams, runtimes, the store.
const OTHER_FILES: u64 = 64;

/// The listeners whose connections need open files.
#[derive(Clone, Copy, Debug)]
pub struct Listeners {
    /// Number of listeners for clients. [`ClientBounds`] applies to each.
    pub clients: u64,
    /// Maximum number of connections to all other listeners together.
    pub others: u64,
}

impl Listeners {
    /// Raises the open file limit for all connections. If the system allows less, logs that and returns bounds with
    /// fewer connections: otherwise clients could take every file, and the admin listener could not accept a probe.
    pub fn within_open_files(self, bounds: ClientBounds) -> ClientBounds {
        let wanted = self.files(bounds.max_connections);
        let allowed = rlimit::increase_nofile_limit(wanted).unwrap_or_else(|error| {
            warn!("cannot raise the open file limit to {wanted}: {error}");
            wanted
        });
        if allowed >= wanted {
            return bounds;
        }
        let connections = self.connections(allowed).min(bounds.max_connections);
        warn!(
            "open file limit is {allowed}; {wanted} needed for --max-connections {} on {} listeners: serving at most \
             {connections} connections on each; raise the limit with ulimit -n, or lower --max-connections",
            bounds.max_connections, self.clients
        );
        ClientBounds { max_connections: connections, ..bounds }
    }

    /// Returns the number of open files when every listener is full.
    fn files(self, connections: NonZeroUsize) -> u64 {
        let clients = self.clients.saturating_mul(connections.get() as u64);
        clients.saturating_add(self.reserved())
    }

    /// Returns the connections that each listener for clients may serve under a limit of `allowed` files. Clients get
    /// all files that are not reserved, but at least half.
    fn connections(self, allowed: u64) -> NonZeroUsize {
        let clients = allowed.saturating_sub(self.reserved()).max(allowed / 2);
        let each = usize::try_from(clients / self.clients.max(1)).unwrap_or(usize::MAX);
        NonZeroUsize::new(each).unwrap_or(NonZeroUsize::MIN)
    }

    fn reserved(self) -> u64 {
        self.others.saturating_add(OTHER_FILES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH_AND_ADMIN: Listeners = Listeners { clients: 2, others: 64 };

    #[test]
    fn wanted_files_include_every_listener() {
        let connections = NonZeroUsize::new(10_000).unwrap();
        assert_eq!(BOTH_AND_ADMIN.files(connections), 20_128);
        assert_eq!(Listeners { clients: 1, others: 0 }.files(connections), 10_064);
        assert_eq!(BOTH_AND_ADMIN.files(NonZeroUsize::MAX), u64::MAX);
    }

    #[test]
    fn clients_leave_reserved_files() {
        for (allowed, each) in [(20_128, 10_000), (4_096, 1_984), (1_024, 448), (256, 64)] {
            assert_eq!(BOTH_AND_ADMIN.connections(allowed).get(), each, "{allowed}");
        }
    }

    #[test]
    fn few_files_leave_half_to_clients() {
        for (allowed, each) in [(200, 50), (20, 5), (3, 1), (0, 1)] {
            assert_eq!(BOTH_AND_ADMIN.connections(allowed).get(), each, "{allowed}");
        }
    }
}
