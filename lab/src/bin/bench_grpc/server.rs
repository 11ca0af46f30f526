//! The servers of this benchmark.

use std::env;
use std::error::Error;
use std::process::Command;

pub use lab::server::Server;

use crate::bare;

/// Three rules under which everything fits.
const POLICY: &str = "
rules:
  - { name: per-tenant, domain: bench, per: [tenant], limits: [100000000/s] }
  - { name: writes, domain: bench, when: { method: POST }, per: [tenant, route], limits: [100000000/s] }
  - { name: everybody, domain: bench, when: { generic_key: all }, limits: [100000000/s] }
";

/// What is logged before the address.
const SAID: &str = "gRPC is asked at ";

/// slidegate as it is by default, on free ports.
pub fn slidegate() -> Result<Server, Box<dyn Error>> {
    let free = ["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    Server::start(POLICY.as_bytes(), SAID, |file| Server::slidegate(file, &free))
}

/// A server of tonic with this answer.
pub fn bare(threads: &str, answer: &[u8]) -> Result<Server, Box<dyn Error>> {
    Server::start(answer, SAID, |file| {
        let mut command = Command::new(env::current_exe()?);
        command.args([bare::ARGUMENT, threads]).arg(file);
        Ok(command)
    })
}
