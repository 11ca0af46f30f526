//! Proxy processes, and their configuration from `deploy/` with replaced addresses and folders.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::project_path;
use crate::servers::{Folder, free_port, wait_until};

/// Writes a file of `deploy/` into a folder with these replacements, and returns its path. Panics if the file does not
/// contain a replaced text.
pub fn write_deploy_file(folder: &Folder, file: &str, replacements: &[(&str, &str)]) -> String {
    let mut text = fs::read_to_string(project_path("deploy").join(file)).unwrap();
    for (original, replacement) in replacements {
        assert!(text.contains(original), "deploy/{file} does not contain {original}");
        text = text.replace(original, replacement);
    }
    let path = folder.path().join(Path::new(file).file_name().unwrap());
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A proxy process. It is killed when the value is dropped.
pub struct Proxy {
    child: Child,
    pub address: SocketAddr,
    _folder: Folder,
}

/// Returns an address without a listener.
pub fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

impl Proxy {
    /// Starts a proxy, and waits until it listens on `address`.
    pub fn start(command: &mut Command, address: SocketAddr, folder: Folder) -> Self {
        let log_path = folder.path().join("log");
        let log = fs::File::create(&log_path).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut proxy = Self { child, address, _folder: folder };
        wait_until("the proxy listens", || {
            let exit = proxy.child.try_wait().unwrap();
            let log = || fs::read_to_string(&log_path).unwrap();
            assert!(exit.is_none(), "{command:?} has exited:\n{}", log());
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
