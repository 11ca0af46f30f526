//! Redis servers for tests, each on a free port. A server is stopped when its value is dropped.
#![allow(dead_code, reason = "not every test uses all of it")]

pub mod cluster;
mod folder;
pub mod node;
pub mod sentinel;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use slidegate::Timestamp;
use slidegate::clock::{Clock, SystemClock};

pub use folder::Folder;

/// Timeout that is long enough even on a busy machine.
pub const LONG: Duration = Duration::from_secs(30);

pub struct Redis {
    port: u16,
    child: Child,
    config: Option<PathBuf>,
    args: Vec<String>,
    /// The files of the server, unless `args` name another folder.
    folder: Folder,
}

impl Redis {
    pub fn start() -> Self {
        Self::with_args(&[])
    }

    /// Starts a server with additional arguments.
    pub fn with_args(args: &[&str]) -> Self {
        Self::with_config(None, || args.iter().map(|&arg| arg.to_owned()).collect())
    }

    /// Starts a server with a configuration file. `args` creates the arguments for each attempt to start the server.
    pub fn with_config(config: Option<&Path>, mut args: impl FnMut() -> Vec<String>) -> Self {
        let config = config.map(Path::to_owned);
        // Another process may take the port first.
        for _ in 0..10 {
            let (port, args, folder) = (free_port(), args(), Folder::new());
            let mut child = spawn_redis_server(port, config.as_deref(), &args, &folder);
            if wait_for_response(&folder, &mut child) {
                return Self { port, child, config, args, folder };
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

    pub fn unix_socket_address(&self) -> String {
        format!("unix://{}", self.folder.file("socket"))
    }

    /// Runs a command on a new connection, and panics if the command fails.
    #[allow(dead_code)] // Not every test commands.
    pub fn command(&self, words: &[&str]) -> redis::Value {
        self.try_command(words).unwrap()
    }

    /// Runs a command on a new connection. Returns the error if the command fails.
    pub fn try_command<T: redis::FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        redis::cmd(words[0]).arg(&words[1..]).query(&mut self.try_connection()?)
    }

    pub fn connection(&self) -> redis::Connection {
        self.try_connection().unwrap()
    }

    pub fn try_connection(&self) -> redis::RedisResult<redis::Connection> {
        redis::Client::open(self.address())?.get_connection_with_timeout(LONG)
    }

    /// Kills the server. Its data is lost.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts the server again on the same port.
    pub fn restart(&mut self) {
        self.child =
            spawn_redis_server(self.port, self.config.as_deref(), &self.args, &self.folder);
        let is_started = wait_for_response(&self.folder, &mut self.child);
        assert!(is_started, "redis-server does not start again");
    }

    /// Suspends the process of the server, and waits until all of its threads have stopped. On a busy machine they
    /// continue for some milliseconds after the signal.
    pub fn pause(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    pub fn resume(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }

    /// Returns the number of times that the server has run a command.
    pub fn calls_of(&self, command: &str) -> u64 {
        let text: String =
            redis::cmd("INFO").arg("commandstats").query(&mut self.connection()).unwrap();
        let line = text.lines().find_map(|line| {
            line.strip_prefix(&format!("cmdstat_{command}:calls="))
                .and_then(|rest| rest.split(',').next()?.parse().ok())
        });
        line.unwrap_or(0)
    }

    /// Closes the connections of all clients, except of Sentinels, which would start a failover.
    pub fn close_client_connections(&self) {
        let clients: String = self.try_command(&["CLIENT", "LIST", "TYPE", "normal"]).unwrap();
        for client in clients.lines().filter(|client| !client.contains(" name=sentinel-")) {
            let id = client.split(' ').find_map(|field| field.strip_prefix("id=")).unwrap();
            self.command(&["CLIENT", "KILL", "ID", id]);
        }
    }

    /// Returns all keys of the server.
    pub fn keys(&self) -> Vec<String> {
        redis::cmd("KEYS").arg("*").query(&mut self.connection()).unwrap()
    }

    /// Returns the remaining time to live of a key in milliseconds; negative if it has none or does not exist.
    pub fn ttl_ms(&self, key: &str) -> i64 {
        redis::cmd("PTTL").arg(key).query(&mut self.connection()).unwrap()
    }

    /// Asserts that every key has an expiry.
    pub fn assert_all_expire(&self) {
        let mut connection = self.connection();
        let keys = self.keys();
        for key in &keys {
            let ttl_ms: i64 = redis::cmd("PTTL").arg(key).query(&mut connection).unwrap();
            assert_ne!(ttl_ms, -1, "{key} stays for ever");
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a free port, and never the same port twice in one process. The ports are outside of the range from which the
/// system assigns ports, so a port stays free while its server restarts, and a client cannot connect to itself.
pub fn free_port() -> u16 {
    const TEST_PORT_RANGE: std::ops::Range<u16> = 20_000..32_000;
    static NEXT_PORT_INDEX: AtomicU16 = AtomicU16::new(0);
    let many = TEST_PORT_RANGE.end - TEST_PORT_RANGE.start;
    let begin = (std::process::id().wrapping_mul(0x9e37_79b1) >> 16) as u16;
    loop {
        let turn = NEXT_PORT_INDEX.fetch_add(1, Ordering::Relaxed);
        let port = TEST_PORT_RANGE.start + begin.wrapping_add(turn) % many;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn spawn_redis_server(port: u16, config: Option<&Path>, args: &[String], folder: &Folder) -> Child {
    Command::new("redis-server")
        .args(config)
        .args(["--port", &port.to_string(), "--save", "", "--appendonly", "no"])
        .args(["--bind", "127.0.0.1", "--loglevel", "warning"])
        .args(["--dir", &folder.file(""), "--unixsocket", &folder.file("socket")])
        .args(args)
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("redis-server, which `make test` installs: {error}"))
}

/// Waits until the process responds. Returns `false` if the process has ended or does not respond in time.
///
/// A process that accepts a connection may still end, because it cannot open the port of the cluster bus. It responds
/// only after it has opened all ports. The port may belong to another process, but the socket in `folder` does not.
fn wait_for_response(folder: &Folder, child: &mut Child) -> bool {
    let responds = || {
        let mut socket = UnixStream::connect(folder.file("socket"))?;
        socket.set_read_timeout(Some(LONG))?;
        socket.write_all(b"PING\r\n")?;
        socket.read_exact(&mut [0])
    };
    let clock = SystemClock::new();
    let deadline = clock.now().after(LONG);
    while clock.now() < deadline && child.try_wait().unwrap().is_none() {
        if responds().is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

/// Blocks the thread until a condition holds. Panics with `context` after [`LONG`].
pub fn wait_until(context: &str, mut holds: impl FnMut() -> bool) {
    let clock = SystemClock::new();
    let end = clock.now().after(LONG);
    while !holds() {
        assert!(clock.now() < end, "not within {LONG:?}: {context}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Measures the lateness of the machine until `stop` is set: the maximum time by which a sleep of one millisecond takes
/// too long.
pub async fn measure_lateness(
    clock: SystemClock,
    stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
    max_lateness_us: std::sync::Arc<std::sync::atomic::AtomicU64>,
) {
    use std::sync::atomic::Ordering::Relaxed;
    while !stop.load(Relaxed) {
        let began = clock.now();
        tokio::time::sleep(Duration::from_millis(1)).await;
        let late = elapsed_between(began, clock.now()).saturating_sub(Duration::from_millis(1));
        max_lateness_us.fetch_max(late.as_micros() as u64, Relaxed);
    }
}

/// Waits until a condition holds, and returns the time that this took. Panics with `context` after the time `within`.
pub async fn poll_until(
    context: &str,
    within: Duration,
    mut holds: impl AsyncFnMut() -> bool,
) -> Duration {
    let clock = SystemClock::new();
    let began = clock.now();
    let end = began.after(within);
    while !holds().await {
        assert!(clock.now() < end, "not within {within:?}: {context}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    elapsed_between(began, clock.now())
}

/// Returns the time between two readings of a `SystemClock`. Returns zero if a correction has set the clock back.
pub fn elapsed_between(began: Timestamp, ended: Timestamp) -> Duration {
    Duration::from_micros(ended.as_micros().saturating_sub(began.as_micros()))
}
