//! The system's limit of open files: clients leave enough of it to everything else.

use std::num::NonZeroUsize;

use tracing::warn;

use crate::settings::ClientBounds;

/// Files that are open beside connections: listeners, standard streams, those of the runtimes and of the store.
const OTHER_FILES: u64 = 64;

/// The listeners whose connections need open files.
#[derive(Clone, Copy, Debug)]
pub struct Listeners {
    /// Listeners for clients. Each has as many connections as [`ClientBounds`] says.
    pub clients: u64,
    /// Connections of all other listeners together.
    pub others: u64,
}

impl Listeners {
    /// Raises the limit of open files to what the connections need. If the system allows less, returns bounds with fewer
    /// connections of clients, and logs that: else clients alone could take every file, and operators and probes would find
    /// none left.
    pub fn within_open_files(self, bounds: ClientBounds) -> ClientBounds {
        let wanted = self.files(bounds.connections);
        let allowed = rlimit::increase_nofile_limit(wanted).unwrap_or_else(|error| {
            warn!("cannot raise the limit of open files to {wanted}: {error}");
            wanted
        });
        if allowed >= wanted {
            return bounds;
        }
        let connections = self.connections(allowed).min(bounds.connections);
        warn!(
            "open file limit is {allowed}; {wanted} needed for --max-connections {} on {} listeners: serving at most \
             {connections} connections on each; raise the limit with ulimit -n, or lower --max-connections",
            bounds.connections, self.clients
        );
        ClientBounds { connections, ..bounds }
    }

    /// Returns how many files are open when every listener is full.
    fn files(self, connections: NonZeroUsize) -> u64 {
        let clients = self.clients.saturating_mul(connections.get() as u64);
        clients.saturating_add(self.reserved())
    }

    /// Returns how many connections each listener for clients may have, if so many files are allowed: what is not
    /// reserved, but half of the files at least.
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
