//! A proxy as a process, and its configuration of `deploy/` with other places in it.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::project;
use crate::servers::{Folder, free_port, wait_until};

/// Writes a file of `deploy/` into a folder, with other places in it: each has to stand there.
pub fn deploy(folder: &Folder, file: &str, places: &[(&str, &str)]) -> String {
    let mut text = fs::read_to_string(project("deploy").join(file)).unwrap();
    for (place, real) in places {
        assert!(text.contains(place), "{place} does not stand in deploy/{file}");
        text = text.replace(place, real);
    }
    let path = folder.path().join(Path::new(file).file_name().unwrap());
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A running proxy. It is killed when dropped.
pub struct Proxy {
    child: Child,
    pub address: SocketAddr,
    _folder: Folder,
}

/// An address where nobody listens.
pub fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

impl Proxy {
    /// Starts a proxy, and waits until it listens there.
    pub fn start(command: &mut Command, address: SocketAddr, folder: Folder) -> Self {
        let told = folder.path().join("told");
        let log = fs::File::create(&told).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut proxy = Self { child, address, _folder: folder };
        wait_until("a proxy listens", || {
            let ended = proxy.child.try_wait().unwrap();
            let told = || fs::read_to_string(&told).unwrap();
            assert!(ended.is_none(), "{command:?} has ended:\n{}", told());
            TcpStream::connect(address).is_ok()
        });
        proxy
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
