//! The handling of `/v1/release` and `/v1/renew`.

use std::pin::pin;
use std::sync::atomic::AtomicU64;

use crate::http::PermitRequest;
use crate::rendering::CountedResponse;
use crate::rendering::problem::HttpProblem;

use super::{RequestHandler, TraceHeaders};

impl RequestHandler {
    /// Handles a request to release a permit.
    pub async fn release<'b>(
        &self,
        span_name: &'static str,
        trace: TraceHeaders<'_>,
        parse: impl FnOnce() -> Result<PermitRequest<'b>, HttpProblem>,
    ) -> Result<CountedResponse, HttpProblem> {
        let work = pin!(async {
            let released = async {
                let was_live = self.service.release(parse()?.token()).await?;
                self.renderer.render_release(was_live)
            };
            (released.await, None)
        });
        self.measure(span_name, trace, &AtomicU64::new(0), work).await
    }

    /// Handles a request to renew a permit.
    pub async fn renew<'b>(
        &self,
        span_name: &'static str,
        trace: TraceHeaders<'_>,
        parse: impl FnOnce() -> Result<PermitRequest<'b>, HttpProblem>,
    ) -> Result<CountedResponse, HttpProblem> {
        let work = pin!(async {
            let renewed = async {
                let ttl = self.service.renew(parse()?.token()).await?;
                self.renderer.render_renew(ttl)
            };
            (renewed.await, None)
        });
        self.measure(span_name, trace, &AtomicU64::new(0), work).await
    }
}
