//! A redis-server of the benchmark's own.

use std::error::Error;
use std::io;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, Connection, FromRedisValue, Value};

/// Commands that are sent before answers are waited for, where nothing is measured.
const BULK: usize = 200;

/// A redis-server, and one connection to it. Stopped when dropped.
pub struct Server {
    child: Child,
    client: Client,
    control: Connection,
}

impl Server {
    /// Starts one on a free port.
    pub fn start() -> Result<Self, Box<dyn Error>> {
        Self::start_with(&[])
    }

    /// The same with further arguments.
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
        Err("redis-server does not answer".into())
    }

    /// Where it is.
    pub fn address(&self) -> String {
        format!("redis://{}", self.host_and_port())
    }

    /// The same without a scheme.
    pub fn host_and_port(&self) -> String {
        self.client.get_connection_info().addr().to_string()
    }

    /// What it answers to a command.
    pub fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, Box<dyn Error>> {
        Ok(command.query(&mut self.control)?)
    }

    /// A connection that many share.
    pub async fn share(&self) -> Result<MultiplexedConnection, Box<dyn Error>> {
        Ok(self.client.get_multiplexed_async_connection().await?)
    }

    /// Another connection.
    pub fn connect(&self) -> Result<Connection, Box<dyn Error>> {
        Ok(self.client.get_connection()?)
    }

    /// Makes a script known.
    pub fn load(&mut self, script: &str) -> Result<(), Box<dyn Error>> {
        redis::cmd("SCRIPT").arg("LOAD").arg(script).exec(&mut self.control)?;
        Ok(())
    }

    /// Sends commands that are not measured.
    pub fn send_all(&mut self, commands: impl Iterator<Item = Cmd>) -> Result<(), Box<dyn Error>> {
        let mut commands = commands.peekable();
        while commands.peek().is_some() {
            let mut sent = Vec::new();
            let count =
                commands.by_ref().take(BULK).map(|cmd| cmd.write_packed_command(&mut sent)).count();
            self.control.send_packed_command(&sent)?;
            for _ in 0..count {
                if let Value::ServerError(error) = self.control.recv_response()? {
                    return Err(format!("{error:?}").into());
                }
            }
        }
        Ok(())
    }

    /// CPU time that the thread has used that runs all commands, in microseconds.
    pub fn cpu_us(&mut self) -> Result<f64, Box<dyn Error>> {
        let user = self.info("cpu", "used_cpu_user_main_thread")?;
        let system = self.info("cpu", "used_cpu_sys_main_thread")?;
        Ok((user + system) * 1e6)
    }

    /// How often a script was called that was known.
    pub fn calls(&mut self) -> Result<f64, Box<dyn Error>> {
        let info: String = redis::cmd("INFO").arg("commandstats").query(&mut self.control)?;
        let calls = info.lines().find_map(|line| {
            line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next()?.parse().ok()
        });
        // A command that was never called is not listed.
        Ok(calls.unwrap_or(0.0))
    }

    /// Bytes that Redis has allocated.
    pub fn used_memory(&mut self) -> Result<f64, Box<dyn Error>> {
        self.info("memory", "used_memory")
    }

    /// What MEMORY USAGE says of all keys together.
    pub fn memory_usage(&mut self) -> Result<f64, Box<dyn Error>> {
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut self.control)?;
        let mut bytes = 0;
        for key in &keys {
            let command = redis::cmd("MEMORY").arg("USAGE").arg(key).arg("SAMPLES").arg(0).clone();
            bytes += command.query::<u64>(&mut self.control)?;
        }
        Ok(bytes as f64)
    }

    fn info(&mut self, section: &str, field: &str) -> Result<f64, Box<dyn Error>> {
        let info: String = redis::cmd("INFO").arg(section).query(&mut self.control)?;
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(value.ok_or_else(|| format!("INFO has no {field}"))?.trim().parse()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that nobody listens on now.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
