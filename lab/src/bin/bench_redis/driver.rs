//! Many connections that ask at once, each in pipelines.

use std::error::Error;
use std::thread;
use std::time::Duration;

use redis::{Cmd, Connection, Value};
use slidegate::{Clock, SystemClock};

use crate::server::Server;

/// Connections that ask at once.
pub const CONNECTIONS: usize = 50;

/// How asks are sent.
#[derive(Clone, Copy)]
pub struct StoreKind {
    /// Asks of a connection that are sent before their answers are read.
    pub depth: usize,
    /// Asks in a second, of all connections; as many as can be if none.
    pub per_second: Option<u64>,
}

/// Connections to one server.
pub struct Driver(Vec<Connection>);

impl Driver {
    /// Connects.
    pub fn new(server: &Server) -> Result<Self, Box<dyn Error>> {
        (0..CONNECTIONS).map(|_| server.connect()).collect::<Result<_, _>>().map(Self)
    }

    /// Sends all commands, in waves over all connections; hands over every answer.
    pub fn run(
        &mut self,
        pace: StoreKind,
        commands: impl Iterator<Item = Cmd>,
        mut answer: impl FnMut(&Value),
    ) -> Result<(), Box<dyn Error>> {
        let mut commands = commands.peekable();
        let (clock, mut sent) = (SystemClock::new(), 0);
        let started = clock.now();
        while commands.peek().is_some() {
            let mut pending = Vec::with_capacity(CONNECTIONS);
            for connection in &mut self.0 {
                let mut bytes = Vec::new();
                let wave = commands.by_ref().take(pace.depth);
                let count = wave.map(|command| command.write_packed_command(&mut bytes)).count();
                if count > 0 {
                    connection.send_packed_command(&bytes)?;
                }
                pending.push(count);
            }
            sent += pending.iter().sum::<usize>() as u64;
            for (connection, count) in self.0.iter_mut().zip(pending) {
                for _ in 0..count {
                    answer(&connection.recv_response()?);
                }
            }
            if let Some(per_second) = pace.per_second {
                let due = started.as_micros() + sent * 1_000_000 / per_second;
                let early = due.saturating_sub(clock.now().as_micros());
                thread::sleep(Duration::from_micros(early));
            }
        }
        Ok(())
    }
}
