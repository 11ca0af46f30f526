//! `/v1/check`, `/v1/peek` and `/v1/report`.

use std::pin::pin;

use super::answer::Reply;

use super::ask::{Ask, ReportAsk};
use super::problem::Problem;
use crate::decisions::{Caller, Decisions};

/// What a request may be asked for.
#[derive(Clone, Copy)]
enum Way {
    Check,
    Peek,
}

// The body as it is, whatever type it is said to have: `curl -d` says another than JSON.

/// Charges what the request costs, if it may pass.
pub async fn check(face: &Decisions, caller: Caller, body: &[u8]) -> Result<Reply, Problem> {
    Way::Check.answer(face, caller, body).await
}

/// Says what `check` would say, and charges nothing.
pub async fn peek(face: &Decisions, caller: Caller, body: &[u8]) -> Result<Reply, Problem> {
    Way::Peek.answer(face, caller, body).await
}

/// Records units that have been consumed. Never denies.
pub async fn report(face: &Decisions, caller: Caller, body: &[u8]) -> Result<Reply, Problem> {
    let question = face.begin("slidegate.report", caller);
    let find = pin!(async {
        let ask = ReportAsk::read(body)?;
        let ruling = question.report(ask.domain(), &ask.request()).await;
        face.answers().respond(&ruling)
    });
    question.answer(find).await
}

impl Way {
    fn span(self) -> &'static str {
        match self {
            Self::Check => "slidegate.check",
            Self::Peek => "slidegate.peek",
        }
    }

    async fn answer(self, face: &Decisions, caller: Caller, body: &[u8]) -> Result<Reply, Problem> {
        let question = face.begin(self.span(), caller);
        let find = pin!(async {
            let ask = Ask::read(body)?;
            let ruling = match self {
                Self::Check => question.check(ask.domain(), &ask.request()).await,
                Self::Peek => question.peek(ask.domain(), &ask.request()).await,
            };
            face.answers().respond(&ruling)
        });
        question.answer(find).await
    }
}
