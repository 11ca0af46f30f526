//! Listens on UNIX sockets.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use tokio::net::{UnixListener, UnixSocket};

use super::ACCEPT_QUEUE_LENGTH;

/// Listens on a UNIX socket. Replaces the file that a former process has left.
pub fn listen_on(path: &Path) -> io::Result<UnixListener> {
    if is_stale_socket(path) {
        fs::remove_file(path)?;
    }
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    socket.listen(ACCEPT_QUEUE_LENGTH)
}

/// Returns whether a path is a socket on which no process listens.
fn is_stale_socket(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    is_socket && UnixStream::connect(path).is_err_and(is_refused)
}

/// Returns the remedy for an error of [`listen_on`].
pub fn bind_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop the process that uses it, or remove the file",
        io::ErrorKind::NotFound => "create its folder",
        io::ErrorKind::PermissionDenied => "allow slidegate to write to its folder",
        _ => "choose another path",
    }
}
