//! A client with many connections, each of which sends several requests before it reads the replies.

use std::error::Error;
use std::thread;
use std::time::Duration;

use redis::{Cmd, Connection, Value};
use slidegate::{Clock, SystemClock};

use crate::server::RedisServer;

/// The number of connections of the client.
pub const CONNECTIONS: usize = 50;

/// The pipeline depth and the rate of the requests of a client.
#[derive(Clone, Copy)]
pub struct PipelineSettings {
    /// The number of requests that a connection sends before it reads the replies.
    pub depth: usize,
    /// The number of requests per second on all connections together; `None` for no limit.
    pub per_second: Option<u64>,
}

/// A client with [`CONNECTIONS`] connections to one server.
pub struct PipelineClient(Vec<Connection>);

impl PipelineClient {
    /// Opens all connections to the server.
    pub fn new(server: &RedisServer) -> Result<Self, Box<dyn Error>> {
        (0..CONNECTIONS).map(|_| server.connect()).collect::<Result<_, _>>().map(Self)
    }

    /// Sends all commands in waves, and passes each reply to `on_reply`. In each wave, every connection first sends a
    /// pipeline of commands. Then the replies on all connections are read.
    pub fn run(
        &mut self,
        pipeline: PipelineSettings,
        commands: impl Iterator<Item = Cmd>,
        mut on_reply: impl FnMut(&Value),
    ) -> Result<(), Box<dyn Error>> {
        let mut commands = commands.peekable();
        let (clock, mut sent) = (SystemClock::new(), 0);
        let started = clock.now();
        while commands.peek().is_some() {
            let mut pending = Vec::with_capacity(CONNECTIONS);
            for connection in &mut self.0 {
                let mut bytes = Vec::new();
                let wave = commands.by_ref().take(pipeline.depth);
                let count = wave.map(|command| command.write_packed_command(&mut bytes)).count();
                if count > 0 {
                    connection.send_packed_command(&bytes)?;
                }
                pending.push(count);
            }
            sent += pending.iter().sum::<usize>() as u64;
            for (connection, count) in self.0.iter_mut().zip(pending) {
                for _ in 0..count {
                    on_reply(&connection.recv_response()?);
                }
            }
            if let Some(per_second) = pipeline.per_second {
                let due = started.as_micros() + sent * 1_000_000 / per_second;
                let early = due.saturating_sub(clock.now().as_micros());
                thread::sleep(Duration::from_micros(early));
            }
        }
        Ok(())
    }
}
