//! Starts the compared servers. Each is a separate process on a free port with default settings.

use std::env;
use std::error::Error;

use lab::policies::THREE_LIMITS_POLICY;
use lab::server::{ServerProcess, server_command, server_core_count};

use crate::bare;
use crate::requests::{BenchRequest, Protocol};

/// The folder in which the Makefile installs throttlecrab-server.
const PEERS_FOLDER: &str = "target/peers/bin";

/// A policy that allows all requests with one limit.
pub const ONE_LIMIT_POLICY: &str =
    "rules: [{ name: tenant, per: [tenant], limits: [100000000/s] }]";

/// A compared server, and the request that is sent to it.
pub struct Contender {
    /// The name of the server in tables.
    pub name: String,
    pub server: ServerProcess,
    pub request: BenchRequest,
}

/// Starts slidegate with this policy and these additional flags.
pub fn start_slidegate(
    protocol: Protocol,
    policy: &str,
    flags: &[&str],
) -> Result<ServerProcess, Box<dyn Error>> {
    let address_prefix = match protocol {
        Protocol::Http => " listening on http://",
        Protocol::Grpc => "gRPC listening on ",
    };
    let free_ports = ["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let count = if flags.contains(&"--admin") { 2 } else { 4 };
    let flags = [&free_ports[..count], flags].concat();
    ServerProcess::start_slidegate(policy, address_prefix, &flags)
}

/// Starts slidegate with a policy that allows all requests, with three limits for each HTTP request.
pub fn start_default_slidegate(protocol: Protocol) -> Result<ServerProcess, Box<dyn Error>> {
    start_slidegate(protocol, THREE_LIMITS_POLICY, &[])
}

/// Starts throttlecrab-server for this protocol. It keeps its counters in memory.
pub fn start_throttlecrab(protocol: Protocol) -> Result<ServerProcess, Box<dyn Error>> {
    let protocol = match protocol {
        Protocol::Http => "http",
        Protocol::Grpc => "grpc",
    };
    ServerProcess::start_on_free_port(&format!("{PEERS_FOLDER}/throttlecrab-server"), |address| {
        let (host, port) = (address.ip(), address.port());
        [
            format!("--{protocol}"),
            format!("--{protocol}-host={host}"),
            format!("--{protocol}-port={port}"),
        ]
        .to_vec()
    })
}

/// Starts slidegate, two bare servers (on one thread, and with a worker per core) that send the same response, and
/// throttlecrab if it supports the request.
pub fn start_contenders(
    request: &BenchRequest,
    policy: &str,
    throttlecrab: Option<BenchRequest>,
) -> Result<Vec<Contender>, Box<dyn Error>> {
    let protocol = request.protocol;
    let contender = |name: &str, server, request: &BenchRequest| Contender {
        name: name.to_owned(),
        server,
        request: request.clone(),
    };
    let slidegate = start_slidegate(protocol, policy, &[])?;
    let response = bare::record_response(slidegate.address(), request)?;
    let mut all = vec![contender("slidegate", slidegate, request)];
    let framework = if protocol == Protocol::Http { "axum" } else { "tonic" };
    for (threads, name) in [(0, "one thread"), (server_core_count(), "a worker per core")] {
        let server = start_bare(protocol, threads, &response)?;
        all.push(contender(&format!("{framework}, {name}"), server, request));
    }
    if let Some(request) = throttlecrab {
        all.push(contender("throttlecrab", start_throttlecrab(protocol)?, &request));
    }
    Ok(all)
}

/// Starts a server that always sends this response. `threads` is the number of worker threads; with 0, the server runs
/// on a single thread.
fn start_bare(
    protocol: Protocol,
    threads: usize,
    response: &[u8],
) -> Result<ServerProcess, Box<dyn Error>> {
    let protocol = if protocol == Protocol::Http { bare::HTTP } else { bare::GRPC };
    ServerProcess::start(response, bare::ADDRESS_PREFIX, |file| {
        let mut command = server_command(env::current_exe()?);
        command.args([bare::CHILD_ARGUMENT, protocol, &threads.to_string()]).arg(file);
        Ok(command)
    })
}
