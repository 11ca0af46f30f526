//! The servers of this benchmark.

use std::error::Error;

pub use lab::server::Server;

/// Three rules under which everything fits.
pub const ROOMY: &str = "
rules:
  - { name: per-tenant, per: [tenant], limits: [1000000/s, 100000000/h] }
  - { name: writes, when: { method: POST }, per: [tenant, route], limits: [1000000/s] }
  - { name: everybody, limits: [100000000/s] }
";

/// The same, under which next to nothing fits.
pub const NARROW: &str = "
rules:
  - { name: per-tenant, per: [tenant], limits: [3/h, 30/d] }
  - { name: writes, when: { method: POST }, per: [tenant, route], limits: [1000000/s] }
  - { name: everybody, limits: [100000000/s] }
";

/// What has everything gathered: by default.
const WATCHED: [&str; 2] = ["--admin", "127.0.0.1:0"];

/// What has nothing gathered.
const UNWATCHED: [&str; 4] = ["--admin", "none", "--log-denials", "0"];

/// Starts one on a free port.
pub fn start(policy: &str, watched: bool) -> Result<Server, Box<dyn Error>> {
    let flags = if watched { &WATCHED[..] } else { &UNWATCHED[..] };
    let flags = [&["--grpc", "none"], flags].concat();
    Server::start(policy.as_bytes(), " listening on http://", |file| {
        Server::slidegate(file, &flags)
    })
}
