//! The load: h2load, with one request over and over.

use std::error::Error;
use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use prost::Message;
use tokio::runtime::Builder;
use tonic::transport::Channel;

use crate::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use crate::messages::envoy::service::ratelimit::v3::RateLimitRequest;
use crate::messages::envoy::service::ratelimit::v3::rate_limit_response::Code;
use crate::messages::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use crate::server::Server;

/// Connections at once.
const CONNECTIONS: usize = 50;

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// How it is asked.
pub struct Load {
    pub name: &'static str,
    /// Descriptors of a request, each of another rule.
    pub descriptors: usize,
    /// Calls that a connection has at once.
    pub depth: usize,
}

/// What came of a round.
#[derive(Clone, Copy, Default)]
pub struct Measured {
    /// Calls a second.
    pub per_second: f64,
    /// CPU time of the server for a call, in microseconds.
    pub cpu_us: f64,
}

impl Measured {
    /// Of each figure the median.
    pub fn median(rounds: &[Self]) -> Self {
        let median = |of: fn(&Self) -> f64| {
            let mut values: Vec<f64> = rounds.iter().map(of).collect();
            values.sort_unstable_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or_default()
        };
        Self { per_second: median(|round| round.per_second), cpu_us: median(|round| round.cpu_us) }
    }
}

impl Load {
    fn request(&self) -> RateLimitRequest {
        let tenant = ("tenant", "tenant-0042");
        let rules: [&[(&str, &str)]; 3] = [
            &[tenant],
            &[tenant, ("method", "POST"), ("route", "/v1/orders")],
            &[("generic_key", "all")],
        ];
        let descriptor = |entries: &&[(&str, &str)]| {
            let entry =
                |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
            let entries = entries.iter().map(entry).collect();
            RateLimitDescriptor { entries, ..Default::default() }
        };
        RateLimitRequest {
            domain: "bench".into(),
            descriptors: rules.iter().take(self.descriptors).map(descriptor).collect(),
            hits_addend: 0,
        }
    }

    /// What a server answers, in bytes: that this may pass, by as many limits as there are descriptors.
    pub fn answer(&self, server: SocketAddr) -> Result<Vec<u8>, Box<dyn Error>> {
        let asked = async {
            let channel = Channel::from_shared(format!("http://{server}"))?.connect().await?;
            let mut client = RateLimitServiceClient::new(channel);
            let answer = client.should_rate_limit(self.request()).await?;
            Ok::<_, Box<dyn Error>>(answer.into_inner())
        };
        let answer = Builder::new_current_thread().enable_all().build()?.block_on(asked)?;
        let limits = answer.statuses.iter().filter(|status| status.current_limit.is_some());
        if answer.overall_code() != Code::Ok || limits.count() != self.descriptors {
            return Err(format!("another answer was expected: {answer:?}").into());
        }
        Ok(answer.encode_to_vec())
    }

    /// One round: so many calls.
    pub fn run(&self, server: &Server, calls: usize) -> Result<Measured, Box<dyn Error>> {
        let message = self.request().encode_to_vec();
        let length = u32::try_from(message.len())?.to_be_bytes();
        let body = std::env::temp_dir().join(format!("bench-grpc-{}", std::process::id()));
        fs::write(&body, [&[0], &length[..], &message].concat())?;
        let before = server.cpu_s()?;
        let output = Command::new("h2load")
            .args(["-t", "1", "-H", "content-type: application/grpc", "-H", "te: trailers"])
            .args(["-n", &calls.to_string(), "-c", &CONNECTIONS.to_string()])
            .args(["-m", &self.depth.to_string()])
            .arg("-d")
            .arg(&body)
            .arg(format!("http://{}{PATH}", server.address()))
            .output()
            .map_err(|error| format!("h2load: {error}"))?;
        let cpu_us = (server.cpu_s()? - before) * 1e6 / calls as f64;
        let _ = fs::remove_file(&body);
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let per_second = per_second(&told, calls).ok_or(told)?;
        Ok(Measured { per_second, cpu_us })
    }
}

/// What h2load says, if all has succeeded.
fn per_second(told: &str, calls: usize) -> Option<f64> {
    told.contains(&format!("{calls} succeeded, 0 failed")).then_some(())?;
    let finished = told.lines().find_map(|line| line.strip_prefix("finished in "))?;
    finished.split(", ").nth(1)?.strip_suffix(" req/s")?.parse().ok()
}
