//! Handlers of `/v1/check`, `/v1/peek` and `/v1/report`.

use std::pin::pin;

use super::check_request::{CheckRequest, ReportRequest};
use crate::rendering::CountedResponse;
use crate::rendering::problem::HttpProblem;
use crate::request_handler::{RequestHandler, TraceContext};

/// The mode of a check: `Check` charges the counters, and `Peek` only reads them.
#[derive(Clone, Copy)]
enum CheckMode {
    Check,
    Peek,
}

// Bodies are parsed as JSON whatever the `Content-Type` says, since `curl -d` sends a different type.

/// Decides about a request, and charges its cost if the request is allowed.
pub async fn check(
    handler: &RequestHandler,
    trace: TraceContext,
    body: &[u8],
) -> Result<CountedResponse, HttpProblem> {
    CheckMode::Check.decide_about_request(handler, trace, body).await
}

/// Returns the response that `check` would return, and charges nothing.
pub async fn peek(
    handler: &RequestHandler,
    trace: TraceContext,
    body: &[u8],
) -> Result<CountedResponse, HttpProblem> {
    CheckMode::Peek.decide_about_request(handler, trace, body).await
}

/// Records units that have been consumed. Never denies.
pub async fn report(
    handler: &RequestHandler,
    trace: TraceContext,
    body: &[u8],
) -> Result<CountedResponse, HttpProblem> {
    let scope = handler.begin("slidegate.report", trace);
    let work = pin!(async {
        let request = ReportRequest::parse(body)?;
        let ruling = scope.report(request.domain(), &request.to_gate_request()).await;
        handler.renderer().render_check(&ruling)
    });
    scope.run(work).await
}

impl CheckMode {
    fn tracing_span_name(self) -> &'static str {
        match self {
            Self::Check => "slidegate.check",
            Self::Peek => "slidegate.peek",
        }
    }

    async fn decide_about_request(
        self,
        handler: &RequestHandler,
        trace: TraceContext,
        body: &[u8],
    ) -> Result<CountedResponse, HttpProblem> {
        let scope = handler.begin(self.tracing_span_name(), trace);
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
