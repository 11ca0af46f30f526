//! `/v1/check`, `/v1/peek` and `/v1/report`.

use std::pin::pin;

use super::check_request::{CheckRequest, ReportRequest};
use super::problem::Problem;
use super::response::CountedResponse;
use crate::request_handler::{RequestHandler, TraceContext};

/// What a request may be asked for.
#[derive(Clone, Copy)]
enum CheckMode {
    Check,
    Peek,
}

// The body as it is, whatever type it is said to have: `curl -d` says another than JSON.

/// Charges what the request costs, if it may pass.
pub async fn check(
    handler: &RequestHandler,
    trace: TraceContext,
    body: &[u8],
) -> Result<CountedResponse, Problem> {
    CheckMode::Check.run(handler, trace, body).await
}

/// Says what `check` would say, and charges nothing.
pub async fn peek(
    handler: &RequestHandler,
    trace: TraceContext,
    body: &[u8],
) -> Result<CountedResponse, Problem> {
    CheckMode::Peek.run(handler, trace, body).await
}

/// Records units that have been consumed. Never denies.
pub async fn report(
    handler: &RequestHandler,
    trace: TraceContext,
    body: &[u8],
) -> Result<CountedResponse, Problem> {
    let scope = handler.begin("slidegate.report", trace);
    let work = pin!(async {
        let request = ReportRequest::parse(body)?;
        let ruling = scope.report(request.domain(), &request.to_gate_request()).await;
        handler.renderer().render_check(&ruling)
    });
    scope.run(work).await
}

impl CheckMode {
    fn span_name(self) -> &'static str {
        match self {
            Self::Check => "slidegate.check",
            Self::Peek => "slidegate.peek",
        }
    }

    async fn run(
        self,
        handler: &RequestHandler,
        trace: TraceContext,
        body: &[u8],
    ) -> Result<CountedResponse, Problem> {
        let scope = handler.begin(self.span_name(), trace);
        let work = pin!(async {
            let request = CheckRequest::parse(body)?;
            let ruling = match self {
                Self::Check => scope.check(request.domain(), &request.to_gate_request()).await,
                Self::Peek => scope.peek(request.domain(), &request.to_gate_request()).await,
            };
            handler.renderer().render_check(&ruling)
        });
        scope.run(work).await
    }
}
