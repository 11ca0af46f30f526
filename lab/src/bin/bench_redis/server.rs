//! Starts and stops the redis-server processes of a benchmark.

use std::error::Error;
use std::io;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, Connection, FromRedisValue, Value};

/// The number of commands that are sent before their replies are read. It applies only outside of measurements.
const COMMANDS_PER_BATCH: usize = 200;

/// A redis-server process, with a connection to control it. The process is stopped when this value is dropped.
pub struct RedisServer {
    child: Child,
    client: Client,
    control: Connection,
}

impl RedisServer {
    /// Starts a Redis server on a free port.
    pub fn start() -> Result<Self, Box<dyn Error>> {
        Self::start_with(&[])
    }

    /// Starts a Redis server on a free port, with additional command line arguments.
    pub fn start_with(arguments: &[&str]) -> Result<Self, Box<dyn Error>> {
        let port = free_port()?;
        let mut child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--loglevel", "warning"])
            .args(["--save", "", "--appendonly", "no"])
            .args(arguments)
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("redis-server: {error}"))?;
        let client = Client::open(format!("redis://127.0.0.1:{port}/"))?;
        for _ in 0..500 {
            if let Ok(control) = client.get_connection() {
                return Ok(Self { child, client, control });
            }
            thread::sleep(Duration::from_millis(10));
        }
        child.kill()?;
        Err("redis-server does not accept connections".into())
    }

    /// Returns the URL of the server, with the scheme `redis://`.
    pub fn address(&self) -> String {
        format!("redis://{}", self.host_and_port())
    }

    /// Returns the host and port of the server as `host:port`.
    pub fn host_and_port(&self) -> String {
        self.client.get_connection_info().addr().to_string()
    }

    /// Runs a Redis command on the control connection and returns the reply.
    pub fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, Box<dyn Error>> {
        Ok(command.query(&mut self.control)?)
    }

    /// Opens a connection that several tasks can use at the same time.
    pub async fn shared_connection(&self) -> Result<MultiplexedConnection, Box<dyn Error>> {
        Ok(self.client.get_multiplexed_async_connection().await?)
    }

    /// Opens an additional connection to the server.
    pub fn connect(&self) -> Result<Connection, Box<dyn Error>> {
        Ok(self.client.get_connection()?)
    }

    /// Loads a Lua script into the script cache of the server.
    pub fn load(&mut self, script: &str) -> Result<(), Box<dyn Error>> {
        redis::cmd("SCRIPT").arg("LOAD").arg(script).exec(&mut self.control)?;
        Ok(())
    }

    /// Sends commands in batches, without measuring them. Fails if the reply to a command is an error.
    pub fn send_all(&mut self, commands: impl Iterator<Item = Cmd>) -> Result<(), Box<dyn Error>> {
        let mut commands = commands.peekable();
        while commands.peek().is_some() {
            let mut sent = Vec::new();
            let count = commands
                .by_ref()
                .take(COMMANDS_PER_BATCH)
                .map(|cmd| cmd.write_packed_command(&mut sent))
                .count();
            self.control.send_packed_command(&sent)?;
            for _ in 0..count {
                if let Value::ServerError(error) = self.control.recv_response()? {
                    return Err(format!("{error:?}").into());
                }
            }
        }
        Ok(())
    }

    /// Returns the CPU time of the main thread of Redis, which runs all commands, in microseconds.
    pub fn cpu_us(&mut self) -> Result<f64, Box<dyn Error>> {
        let user = self.read_info_value("cpu", "used_cpu_user_main_thread")?;
        let system = self.read_info_value("cpu", "used_cpu_sys_main_thread")?;
        Ok((user + system) * 1e6)
    }

    /// Returns the number of EVALSHA calls that the server has executed.
    pub fn calls(&mut self) -> Result<f64, Box<dyn Error>> {
        let info: String = redis::cmd("INFO").arg("commandstats").query(&mut self.control)?;
        let calls = info.lines().find_map(|line| {
            line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse().ok()
        });
        // Commands without calls are not listed.
        Ok(calls.unwrap_or(0.0))
    }

    /// Returns the memory that Redis has allocated, in bytes.
    pub fn used_memory(&mut self) -> Result<f64, Box<dyn Error>> {
        self.read_info_value("memory", "used_memory")
    }

    /// Returns the sum of `MEMORY USAGE` over all keys, in bytes.
    pub fn memory_usage(&mut self) -> Result<f64, Box<dyn Error>> {
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut self.control)?;
        let mut bytes = 0;
        for key in &keys {
            let command = redis::cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0).clone();
            bytes += command.query::<u64>(&mut self.control)?;
        }
        Ok(bytes as f64)
    }

    fn read_info_value(&mut self, section: &str, field: &str) -> Result<f64, Box<dyn Error>> {
        let info: String = redis::cmd("INFO").arg(section).query(&mut self.control)?;
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(value.ok_or_else(|| format!("INFO has no {field}"))?.trim().parse()?)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a TCP port that is currently free.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
