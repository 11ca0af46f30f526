//! Envoy's rate limit service, version 3: its messages, what is asked in them, and what they answer. Knows
//! no transport: gRPC and `POST /json` ask here.

mod answer;
mod ask;
pub mod json;
mod unit;

use slidegate::Ruling;
use thiserror::Error;

use self::ask::Ask;
pub use self::ask::MAX_DESCRIPTORS;
pub use self::json::JsonError;
use self::messages::envoy::service::ratelimit::v3;
use crate::decisions::{Decisions, Question};
use crate::watch::metrics::Answered;

pub use self::v3::{RateLimitRequest, RateLimitResponse};

/// The types of the messages, made from `proto/`.
#[allow(missing_docs, clippy::all, reason = "generated")]
mod messages {
    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}

/// The files of the messages, as a `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The name of the service.
pub const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// The request makes no sense.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct Invalid(String);

/// What is answered, and how that is counted.
pub struct Reply {
    pub message: RateLimitResponse,
    pub answered: Answered,
}

/// Decides what a message asks: all of its descriptors as one.
pub async fn decide(
    face: &Decisions,
    question: &Question<'_>,
    message: RateLimitRequest,
) -> Result<Reply, Invalid> {
    let ask = Ask::read(message)?;
    let ruling = question.check(ask.domain(), &ask.request()).await;
    let message = answer::message(ask.descriptors(), &ruling, face.answers());
    Ok(Reply { message, answered: answered(&ruling) })
}

fn answered(ruling: &Ruling) -> Answered {
    let decision = ruling.decision();
    match decision.is_allowed() {
        true => Answered::Allowed,
        false if decision.is_store_unavailable() => Answered::Refused,
        false => Answered::Denied,
    }
}
