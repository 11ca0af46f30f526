//! A redis-server of a test's own, on a free port, gone when it is dropped.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use slidegate::{Clock, SystemClock};

/// Long enough for whatever a busy machine has to do.
pub const LONG: Duration = Duration::from_secs(30);

pub struct Redis {
    port: u16,
    child: Child,
    args: Vec<String>,
}

impl Redis {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// One with further arguments.
    pub fn with(args: &[&str]) -> Self {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        // Somebody else may take the port first.
        for _ in 0..10 {
            let port = free_port();
            let mut child = spawn(port, &args);
            if answers(port, &mut child) {
                return Self { port, child, args };
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("redis-server does not start");
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// A command, by a connection of its own.
    #[allow(dead_code)] // Not every test commands.
    pub fn command(&self, words: &[&str]) -> redis::Value {
        redis::cmd(words[0]).arg(&words[1..]).query(&mut self.connection()).unwrap()
    }

    pub fn connection(&self) -> redis::Connection {
        connect(&self.address())
    }

    /// Ends it at once: what it held is lost.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again on the same port.
    pub fn restart(&mut self) {
        self.child = spawn(self.port, &self.args);
        assert!(answers(self.port, &mut self.child), "redis-server does not start again");
    }

    /// Stops it as it stands.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// How often a command was called.
    pub fn calls_of(&self, command: &str) -> u64 {
        let text: String =
            redis::cmd("INFO").arg("commandstats").query(&mut self.connection()).unwrap();
        let line = text.lines().find_map(|line| {
            line.strip_prefix(&format!("cmdstat_{command}:calls="))
                .and_then(|rest| rest.split(',').next()?.parse().ok())
        });
        line.unwrap_or(0)
    }

    /// Every key that there is.
    pub fn keys(&self) -> Vec<String> {
        redis::cmd("KEYS").arg("*").query(&mut self.connection()).unwrap()
    }

    /// Milliseconds that a key has left; below 0 if it stays or is gone.
    pub fn lives(&self, key: &str) -> i64 {
        redis::cmd("PTTL").arg(key).query(&mut self.connection()).unwrap()
    }

    /// Every key goes by itself.
    pub fn assert_all_expire(&self) {
        let mut connection = self.connection();
        let keys = self.keys();
        for key in &keys {
            let lives: i64 = redis::cmd("PTTL").arg(key).query(&mut connection).unwrap();
            assert_ne!(lives, -1, "{key} stays for ever");
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn connect(address: &str) -> redis::Connection {
    let client = redis::Client::open(address).unwrap();
    client.get_connection_with_timeout(LONG).unwrap()
}

fn spawn(port: u16, args: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--save", "", "--appendonly", "no"])
        .args(["--bind", "127.0.0.1", "--loglevel", "warning"])
        .args(args)
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("redis-server, which `make test` installs: {error}"))
}

/// Waits until it listens, and not somebody else.
fn answers(port: u16, child: &mut Child) -> bool {
    let clock = SystemClock::new();
    let until = clock.now().after(LONG);
    while clock.now() < until && child.try_wait().unwrap().is_none() {
        if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
            // Who could not bind the port ends soon.
            std::thread::sleep(Duration::from_millis(10));
            return child.try_wait().unwrap().is_none();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

/// Waits until something holds.
pub async fn until(what: &str, within: Duration, mut holds: impl AsyncFnMut() -> bool) -> Duration {
    let clock = SystemClock::new();
    let began = clock.now();
    let end = began.after(within);
    while !holds().await {
        assert!(clock.now() < end, "not within {within:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Duration::from_micros(clock.now().as_micros() - began.as_micros())
}
