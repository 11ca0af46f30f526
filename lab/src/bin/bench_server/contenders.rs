//! Starts the compared servers. Each is a separate process on a free port with default settings.

use std::env;
use std::error::Error;
use std::io;
use std::process::Command;

use lab::cores::server_core_count;
use lab::server::ServerProcess;
use prost::Message;
use tokio::runtime::Builder;

use crate::bare;
use crate::connection::{BenchConnection, RecordedResponse};
use crate::messages::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::messages::envoy::service::ratelimit::v3::rate_limit_response::Code;
use crate::request::{BenchRequest, Protocol};

/// The folder in which the Makefile installs the servers that slidegate is compared with.
const COMPARED_SERVERS_FOLDER: &str = "target/peers/bin";

/// A policy that allows all requests. An HTTP request matches three rules, and each descriptor of a gRPC request
/// matches one rule.
pub const ALLOW_ALL_POLICY: &str = "
rules:
  - { name: tenant, per: [tenant|header.x-tenant], limits: [100000000/s] }
  - { name: writes, when: { method: POST }, per: [tenant|header.x-tenant], limits: [100000000/s] }
  - { name: everybody, limits: [100000000/s] }
  - { name: per-tenant, domain: bench, per: [tenant], limits: [100000000/s] }
  - { name: per-route, domain: bench, when: { method: POST }, per: [tenant, route], limits: [100000000/s] }
  - { name: all, domain: bench, when: { generic_key: all }, limits: [100000000/s] }
";

/// A policy that allows all requests with one limit.
pub const ONE_LIMIT_POLICY: &str =
    "rules: [{ name: tenant, per: [tenant], limits: [100000000/s] }]";

type ServerStartResult = Result<ServerProcess, Box<dyn Error>>;

/// Starts slidegate with a policy that allows all requests. The returned process has the address on which slidegate
/// listens for this protocol.
pub fn slidegate(protocol: Protocol) -> ServerStartResult {
    slidegate_with(protocol, ALLOW_ALL_POLICY, &[])
}

/// Starts slidegate like [`slidegate()`], with this policy and these additional flags.
pub fn slidegate_with(protocol: Protocol, policy: &str, flags: &[&str]) -> ServerStartResult {
    let address_prefix = match protocol {
        Protocol::Http => " listening on http://",
        Protocol::Grpc => "gRPC listening on ",
    };
    let flags = [&["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"], flags].concat();
    ServerProcess::start(policy.as_bytes(), address_prefix, |file| {
        ServerProcess::slidegate_command(file, &flags)
    })
}

/// Starts throttlecrab-server for this protocol. It keeps its counters in memory.
pub fn throttlecrab(protocol: Protocol) -> ServerStartResult {
    let protocol = match protocol {
        Protocol::Http => "http",
        Protocol::Grpc => "grpc",
    };
    let program = env::current_dir()?.join(COMPARED_SERVERS_FOLDER).join("throttlecrab-server");
    ServerProcess::start_on_free_port(|address| {
        let mut command = Command::new(program);
        command.arg(format!("--{protocol}"));
        command.arg(format!("--{protocol}-host")).arg(address.ip().to_string());
        command.arg(format!("--{protocol}-port")).arg(address.port().to_string());
        command
    })
}

/// Starts a server that always sends this response, which was recorded from slidegate. `threads` is the number of
/// worker threads; with 0, the server runs on a single thread.
fn bare(protocol: Protocol, threads: usize, response: &RecordedResponse) -> ServerStartResult {
    let (protocol, content) = match protocol {
        Protocol::Http => (bare::HTTP, response.to_bytes()?),
        Protocol::Grpc => (bare::GRPC, response.message()?.to_vec()),
    };
    ServerProcess::start(&content, bare::ADDRESS_PREFIX, |file| {
        let mut command = Command::new(env::current_exe()?);
        command.args([bare::CHILD_ARGUMENT, protocol, &threads.to_string()]).arg(file);
        Ok(command)
    })
}

/// Starts two servers that always send this response: one on a single thread, and one with a worker thread per core.
pub fn bare_on_one_thread_and_workers(
    protocol: Protocol,
    response: &RecordedResponse,
) -> Result<[ServerProcess; 2], Box<dyn Error>> {
    Ok([bare(protocol, 0, response)?, bare(protocol, server_core_count()?, response)?])
}

/// Returns the names of the servers that [`bare_on_one_thread_and_workers`] starts, for tables.
pub fn bare_names(protocol: Protocol) -> io::Result<[String; 2]> {
    let framework = match protocol {
        Protocol::Http => "axum",
        Protocol::Grpc => "tonic",
    };
    let workers = match server_core_count()? {
        1 => "one worker".to_owned(),
        count => format!("{count} workers"),
    };
    Ok([format!("{framework}, one thread"), format!("{framework}, {workers}")])
}

/// Sends the request to slidegate and returns the response.
///
/// # Errors
/// If the request fails, or if the response does not show that at least `expected` limits allowed the request.
pub fn record_response(
    slidegate: &ServerProcess,
    request: &BenchRequest,
    expected: usize,
) -> Result<RecordedResponse, Box<dyn Error>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let response = runtime.block_on(async {
        BenchConnection::connect(slidegate.address(), request).await?.send().await
    })?;
    let limit_count = match request.protocol {
        Protocol::Http => count_limits_in_ratelimit_policy_header(&response),
        Protocol::Grpc => {
            let message = RateLimitResponse::decode(response.message()?)?;
            let all = message
                .statuses
                .iter()
                .all(|status| status.current_limit.is_some() && status.code() == Code::Ok);
            usize::from(all) * message.statuses.len()
        }
    };
    if limit_count < expected {
        return Err(
            format!("expected a request allowed by {expected} limits, got {limit_count}").into()
        );
    }
    Ok(response)
}

fn count_limits_in_ratelimit_policy_header(response: &RecordedResponse) -> usize {
    let policy = response.headers.iter().find(|(name, _)| name == "ratelimit-policy");
    policy.map_or(0, |(_, policy)| policy.matches(";q=").count())
}
