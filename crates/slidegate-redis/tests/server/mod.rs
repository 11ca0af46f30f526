//! A redis-server of a test's own, on a free port, gone when it is dropped.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

pub struct Redis {
    port: u16,
    child: Child,
}

impl Redis {
    pub fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--save", "", "--appendonly", "no"])
            .args(["--bind", "127.0.0.1", "--loglevel", "warning"])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server; `make test` installs it");
        let redis = Self { port, child };
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::yield_now();
        }
        redis
    }

    pub fn address(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// A command, by a connection of its own.
    #[allow(dead_code)] // Not every test commands.
    pub fn command(&self, words: &[&str]) -> redis::Value {
        let client = redis::Client::open(self.address()).unwrap();
        let mut connection = client.get_connection().unwrap();
        redis::cmd(words[0]).arg(&words[1..]).query(&mut connection).unwrap()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
