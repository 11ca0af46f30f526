//! The servers that are asked: each a process of its own, on a free port, as it is by default.

use std::env;
use std::error::Error;
use std::process::Command;

use lab::server::Server;
use prost::Message;

use crate::bare;
use crate::caller::{Answer, Caller};
use crate::messages::envoy::service::ratelimit::v3::RateLimitResponse;
use crate::messages::envoy::service::ratelimit::v3::rate_limit_response::Code;
use crate::question::{Face, Question};

/// Where the Makefile installs peers.
const PEERS: &str = "target/peers/bin";

/// Three rules under which everything fits. A question of HTTP is told by all of them; of gRPC each descriptor by one.
const POLICY: &str = "
rules:
  - { name: tenant, per: [tenant|header.x-tenant], limits: [100000000/s] }
  - { name: writes, when: { method: POST }, per: [tenant|header.x-tenant], limits: [100000000/s] }
  - { name: everybody, limits: [100000000/s] }
  - { name: per-tenant, domain: bench, per: [tenant], limits: [100000000/s] }
  - { name: per-route, domain: bench, when: { method: POST }, per: [tenant, route], limits: [100000000/s] }
  - { name: all, domain: bench, when: { generic_key: all }, limits: [100000000/s] }
";

type Started = Result<Server, Box<dyn Error>>;

/// slidegate, asked at this face.
pub fn slidegate(face: Face) -> Started {
    let said = match face {
        Face::Http => " listening on http://",
        Face::Grpc => "gRPC listening on ",
    };
    let free = ["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    Server::start(POLICY.as_bytes(), said, |file| Server::slidegate(file, &free))
}

/// throttlecrab-server, which keeps its counts in memory.
pub fn throttlecrab(face: Face) -> Started {
    let face = match face {
        Face::Http => "http",
        Face::Grpc => "grpc",
    };
    let program = env::current_dir()?.join(PEERS).join("throttlecrab-server");
    Server::start_at(|address| {
        let mut command = Command::new(program);
        command.arg(format!("--{face}"));
        command.arg(format!("--{face}-host")).arg(address.ip().to_string());
        command.arg(format!("--{face}-port")).arg(address.port().to_string());
        command
    })
}

/// A server that answers what slidegate answered, on so many threads beside, or on one alone.
pub fn bare(face: Face, threads: usize, answer: &Answer) -> Started {
    let (face, content) = match face {
        Face::Http => (bare::HTTP, answer.to_bytes()?),
        Face::Grpc => (bare::GRPC, answer.message()?.to_vec()),
    };
    Server::start(&content, bare::SAID, |file| {
        let mut command = Command::new(env::current_exe()?);
        command.args([bare::ARGUMENT, face, &threads.to_string()]).arg(file);
        Ok(command)
    })
}

/// What slidegate answers: that this may pass, by three rules if it is asked over HTTP, else by each descriptor's.
pub fn answer(slidegate: &Server, question: &Question) -> Result<Answer, Box<dyn Error>> {
    let answer = Caller::connect(slidegate.address(), question)?.ask()?;
    let told = match question.face {
        Face::Http => rules_of_headers(&answer),
        Face::Grpc => {
            let message = RateLimitResponse::decode(answer.message()?)?;
            let all = message
                .statuses
                .iter()
                .all(|status| status.current_limit.is_some() && status.code() == Code::Ok);
            usize::from(all) * message.statuses.len()
        }
    };
    let expected = match question.face {
        Face::Http => 3,
        Face::Grpc => 1,
    };
    if told < expected {
        return Err(format!("by {expected} limits it should be allowed, not by {told}").into());
    }
    Ok(answer)
}

fn rules_of_headers(answer: &Answer) -> usize {
    let policy = answer.headers.iter().find(|(name, _)| name == "ratelimit-policy");
    policy.map_or(0, |(_, policy)| policy.matches(";q=").count())
}
