//! The handling of `/v1/reserve` and `/v1/settle`.

use std::pin::pin;
use std::sync::atomic::AtomicU64;

use crate::http::{ReserveRequest, SettleRequest};
use crate::rendering::CountedResponse;
use crate::rendering::problem::HttpProblem;
use crate::service::names::NameSource;
use crate::telemetry::traces::span::TracedDecision;

use super::{ParsedRequest, RequestHandler, TraceHeaders};

impl RequestHandler {
    /// Handles a request for a reservation: decides, and returns the response with the token of the reservation.
    pub async fn reserve<'b>(
        &self,
        span_name: &'static str,
        trace: TraceHeaders<'_>,
        parse: impl FnOnce() -> Result<ReserveRequest<'b>, HttpProblem>,
    ) -> Result<CountedResponse, HttpProblem> {
        let work = pin!(async {
            let parsed = match parse() {
                Ok(parsed) => parsed,
                Err(problem) => return (Err(problem), None),
            };
            let request = parsed.to_gate_request();
            if let Err(error) = self.service.check_request(&request) {
                return (Err(error.into()), None);
            }
            let ttl = parsed.ttl();
            let reserved = match self.service.reserve(&request, parsed.idempotency_key(), ttl).await
            {
                Ok(reserved) => reserved,
                Err(problem) => return (Err(problem), None),
            };
            if let Err(error) =
                self.check_attributes(&request, &reserved.decision, NameSource::Caller)
            {
                return (Err(error.into()), None);
            }
            let permit = match self.service.seal_permit(&reserved.decision) {
                Ok(permit) => permit,
                Err(error) => return (Err(error.into()), None),
            };
            let response =
                self.renderer.render_reserve(&reserved.decision, permit.as_ref(), reserved.token);
            let domain = self.tracer.as_ref().map(|_| request.domain().to_owned());
            let decision = reserved.decision;
            (response, domain.map(|domain| TracedDecision { domain, decision }))
        });
        self.measure(span_name, trace, &AtomicU64::new(0), work).await
    }

    /// Handles a request to settle a reservation.
    pub async fn settle<'b>(
        &self,
        span_name: &'static str,
        trace: TraceHeaders<'_>,
        parse: impl FnOnce() -> Result<SettleRequest<'b>, HttpProblem>,
    ) -> Result<CountedResponse, HttpProblem> {
        let work = pin!(async {
            let settled = async {
                let parsed = parse()?;
                self.service.settle(parsed.token(), &parsed.actual_costs()).await?;
                self.renderer.render_settle()
            };
            (settled.await, None)
        });
        self.measure(span_name, trace, &AtomicU64::new(0), work).await
    }
}
