//! Starts proxy processes, with configuration files from `deploy/` in which addresses and folders are replaced.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::project_path;
use crate::redis_server::{Folder, free_port, wait_until};

/// Copies a file from `deploy/` into a folder, replaces texts in the copy, and returns the path of the copy. Panics if
/// the file does not contain one of the texts.
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

/// A running proxy process. The process is killed when the value is dropped.
pub struct Proxy {
    child: Child,
    pub address: SocketAddr,
    _folder: Folder,
}

/// Returns a local address with a free port, on which no process listens.
pub fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

impl Proxy {
    /// Runs the command of a proxy, and waits until the proxy listens on `address`. Keeps `folder` while the proxy
    /// runs.
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
