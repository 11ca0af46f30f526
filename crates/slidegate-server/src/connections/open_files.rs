//! Keeps the number of client connections within the open file limit of the process, and reserves files for other
//! purposes.

use std::fmt;
use std::num::NonZeroUsize;

use tracing::{info, warn};

use crate::bounds::ClientBounds;

/// Number of open files that are not connections of a listener: the listening sockets, the standard streams, and the
/// files of the runtimes and the store.
const NON_CONNECTION_OPEN_FILES: u64 = 64;

/// Number of open files of a server on few processors before its first connection.
const MIN_OPEN_FILES: u64 = 32;

/// The numbers of listeners and connections of the server. They determine the number of open files, because each
/// connection is one open file.
#[derive(Clone, Copy, Debug)]
pub struct OpenFileDemand {
    /// Number of client listeners, such as HTTP and gRPC. The maximum number of connections in [`ClientBounds`] applies
    /// to each of them.
    pub client_listeners: u64,
    /// Maximum number of connections to all other listeners together, such as the admin listener.
    pub max_other_connections: u64,
}

impl OpenFileDemand {
    /// Raises the open file limit of the process to the number of files that all connections need. If the system allows
    /// fewer files, returns `bounds` with fewer connections. Otherwise client connections could use all files, and the
    /// admin listener could not accept a health probe.
    ///
    /// Logs a warning that the system permits fewer open files, but only if the user set the maximum number of
    /// connections. The default maximum is only a bound that few servers reach.
    pub fn fit_bounds_to_open_files(
        self,
        bounds: ClientBounds,
        is_max_connections_given: bool,
    ) -> ClientBounds {
        let (given, listeners) = (bounds.max_connections, ListenerCount(self.client_listeners));
        let wanted = self.required_open_files(given);
        let allowed = rlimit::increase_nofile_limit(wanted).unwrap_or_else(|error| {
            warn!("cannot raise the open file limit to {wanted}: {error}");
            wanted
        });
        if allowed >= wanted {
            return bounds;
        }
        let max_connections = self.max_connections_per_listener(allowed).min(given);
        if is_max_connections_given {
            warn!(
                "open file limit is {allowed}; {wanted} needed for --max-connections {given} on {listeners}: the \
                 maximum is {max_connections}; raise the limit with ulimit -n, or lower --max-connections"
            );
        } else {
            info!(
                "open file limit is {allowed}: at most {max_connections} connections on {listeners}"
            );
        }
        ClientBounds { max_connections, ..bounds }
    }

    /// Returns the number of open files when every listener has its maximum number of connections. `connections` is
    /// this maximum for each client listener.
    fn required_open_files(self, connections: NonZeroUsize) -> u64 {
        let clients = self.client_listeners.saturating_mul(connections.get() as u64);
        clients.saturating_add(self.reserved_open_files())
    }

    /// Returns the maximum number of connections for each client listener if the process may open `allowed` files. The
    /// client listeners share the files that are not reserved for other purposes, at least a quarter of the files that
    /// the server does not need itself. The other files remain for health probes.
    fn max_connections_per_listener(self, allowed: u64) -> NonZeroUsize {
        let unreserved = allowed.saturating_sub(self.reserved_open_files());
        let clients = unreserved.max(allowed.saturating_sub(MIN_OPEN_FILES) / 4);
        let each = usize::try_from(clients / self.client_listeners.max(1)).unwrap_or(usize::MAX);
        NonZeroUsize::new(each).unwrap_or(NonZeroUsize::MIN)
    }

    fn reserved_open_files(self) -> u64 {
        self.max_other_connections.saturating_add(NON_CONNECTION_OPEN_FILES)
    }
}

/// Displays a number of listeners, each of which has its own maximum.
struct ListenerCount(u64);

impl fmt::Display for ListenerCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("1 listener"),
            count => write!(f, "each of {count} listeners"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HTTP_GRPC_AND_ADMIN_LISTENERS: OpenFileDemand =
        OpenFileDemand { client_listeners: 2, max_other_connections: 64 };

    #[test]
    fn required_open_files_include_connections_of_every_listener() {
        let connections = NonZeroUsize::new(10_000).unwrap();
        assert_eq!(HTTP_GRPC_AND_ADMIN_LISTENERS.required_open_files(connections), 20_128);
        assert_eq!(
            OpenFileDemand { client_listeners: 1, max_other_connections: 0 }
                .required_open_files(connections),
            10_064
        );
        assert_eq!(HTTP_GRPC_AND_ADMIN_LISTENERS.required_open_files(NonZeroUsize::MAX), u64::MAX);
    }

    #[test]
    fn reserved_open_files_reduce_connection_maximum() {
        for (allowed, each) in [(20_128, 10_000), (4_096, 1_984), (1_024, 448), (256, 64)] {
            assert_eq!(
                HTTP_GRPC_AND_ADMIN_LISTENERS.max_connections_per_listener(allowed).get(),
                each,
                "{allowed}"
            );
        }
    }

    #[test]
    fn low_open_file_limit_leaves_files_to_probes() {
        for (allowed, each) in [(200, 36), (128, 12), (40, 1), (20, 1), (0, 1)] {
            assert_eq!(
                HTTP_GRPC_AND_ADMIN_LISTENERS.max_connections_per_listener(allowed).get(),
                each,
                "{allowed}"
            );
        }
    }
}
