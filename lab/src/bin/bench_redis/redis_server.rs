//! A redis-server process of a benchmark, with connections to it.

use std::error::Error;

use lab::server::ServerProcess;
use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, Connection, Value};

/// The number of commands that are sent before their replies are read. It applies only outside of measurements.
const COMMANDS_PER_BATCH: usize = 200;

/// A redis-server process, with a connection to control it. The process is stopped when this value is dropped.
pub struct RedisServer {
    process: ServerProcess,
    client: Client,
    control: Connection,
}

impl RedisServer {
    /// Starts a Redis server on a free port.
    pub fn start() -> Result<Self, Box<dyn Error>> {
        let process = ServerProcess::start_redis()?;
        let client = Client::open(format!("redis://{}/", process.address()))?;
        let control = client.get_connection()?;
        Ok(Self { process, client, control })
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> String {
        format!("redis://{}", self.process.address())
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
    pub fn load_script(&mut self, script: &str) -> Result<(), Box<dyn Error>> {
        redis::cmd("SCRIPT").arg("LOAD").arg(script).exec(&mut self.control)?;
        Ok(())
    }

    /// Sends commands in batches, without measuring them. Fails if the reply to a command is an error.
    pub fn send_commands(
        &mut self,
        commands: impl Iterator<Item = Cmd>,
    ) -> Result<(), Box<dyn Error>> {
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
        // `INFO commandstats` does not list commands without calls.
        Ok(calls.unwrap_or(0.0))
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
