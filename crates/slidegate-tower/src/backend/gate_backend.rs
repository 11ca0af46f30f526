//! A backend that decides requests with a gate. The gate receives the attributes of the request.

use std::sync::Arc;

use slidegate::{Gate, Request, Store};

use super::{AsyncBackend, BackendDecision, PendingCharge};
use crate::extract::{Attributes, RequestHead};
use crate::request_options::RequestOptions;
use crate::settlement::Settlement;

/// A gate, and the extractors of the attributes that the rules of the gate use.
pub struct GateBackend<S> {
    gate: Arc<Gate<S>>,
    attributes: Attributes,
}

impl<S> GateBackend<S> {
    pub fn new(gate: Arc<Gate<S>>, attributes: Attributes) -> Self {
        Self { gate, attributes }
    }
}

impl<S: Store> AsyncBackend for GateBackend<S> {
    type Kind = S::Kind;

    async fn decide(&self, options: &RequestOptions, head: RequestHead<'_>) -> BackendDecision {
        let costs = match options.read_costs(head) {
            Ok(costs) => costs,
            Err(malformed) => return BackendDecision::Malformed(malformed),
        };
        let values = self.attributes.read_values(head);
        let descriptor = values.descriptor(&costs);
        let context = options.settle_context(&costs, values.iter());
        let ruling = self.gate.check(&Request::new(&options.domain, descriptor)).await;
        BackendDecision::Ruling(ruling, context)
    }

    async fn settle(
        &self,
        options: &RequestOptions,
        charge: &PendingCharge,
        settlement: Settlement,
    ) {
        let decision = charge.ruling.decision();
        let _ = match (settlement, &charge.context) {
            (Settlement::Revert, _) => self.gate.revert(decision).await,
            (Settlement::Cost(cost), Some(context)) => {
                self.gate.settle(&context.request(&options.domain), decision, cost).await
            }
            (Settlement::Report { cost, units }, Some(context)) => {
                self.gate.report(&context.report(&options.domain, cost, units)).await;
                Ok(())
            }
            (Settlement::Cost(_) | Settlement::Report { .. }, None) | (Settlement::Keep, _) => {
                Ok(())
            }
        };
    }
}
