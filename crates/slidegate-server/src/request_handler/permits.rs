//! The handling of `/v1/release` and `/v1/renew`.

use std::pin::pin;
use std::sync::atomic::AtomicU64;

use slidegate::PermitChange;

use crate::http::PermitRequest;
use crate::rendering::CountedResponse;
use crate::rendering::problem::HttpProblem;

use super::{RequestHandler, TraceHeaders};

impl RequestHandler {
    /// Handles a request to release or renew a permit.
    pub async fn change_permit<'b>(
        &self,
        change: PermitChange,
        span_name: &'static str,
        trace: TraceHeaders<'_>,
        parse: impl FnOnce() -> Result<PermitRequest<'b>, HttpProblem>,
    ) -> Result<CountedResponse, HttpProblem> {
        let work = pin!(async {
            let changed = async {
                let request = parse()?;
                match change {
                    PermitChange::Release => {
                        let was_live = self.service.release(request.token()).await?;
                        self.renderer.render_release(was_live)
                    }
                    PermitChange::Renew => {
                        let ttl = self.service.renew(request.token()).await?;
                        self.renderer.render_renew(ttl)
                    }
                }
            };
            (changed.await, None)
        });
        self.measure(span_name, trace, &AtomicU64::new(0), work).await
    }
}
