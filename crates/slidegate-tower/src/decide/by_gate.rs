//! A gate decides, by attributes.

use std::sync::Arc;

use slidegate::{Gate, Request, Store};

use super::{Charge, Decided, Judge};
use crate::extract::{Attributes, Head};
use crate::question::Question;
use crate::settle::Settle;

pub struct ByGate<S> {
    gate: Arc<Gate<S>>,
    attributes: Attributes,
}

impl<S> ByGate<S> {
    pub fn new(gate: Arc<Gate<S>>, attributes: Attributes) -> Self {
        Self { gate, attributes }
    }
}

impl<S: Store> Judge for ByGate<S> {
    type Kind = S::Kind;

    async fn judge(&self, question: &Question, head: Head<'_>) -> Decided {
        let costs = match question.costs_of(head) {
            Ok(costs) => costs,
            Err(malformed) => return Decided::Malformed(malformed),
        };
        let read = self.attributes.read(head);
        let descriptor = read.descriptor(&costs);
        let kept = question.keep(&costs, read.iter());
        let ruling = self.gate.check(&Request::new(&question.domain, descriptor)).await;
        Decided::Ruled(ruling, kept)
    }

    async fn settle(&self, question: &Question, charge: &Charge, settle: Settle) {
        let decision = charge.ruling.decision();
        let _ = match (settle, &charge.kept) {
            (Settle::Revert, _) => self.gate.revert(decision).await,
            (Settle::Cost(cost), Some(kept)) => {
                self.gate.settle(&kept.request(&question.domain), decision, cost).await
            }
            (Settle::Report { cost, units }, Some(kept)) => {
                self.gate.report(&kept.report(&question.domain, cost, units)).await;
                Ok(())
            }
            (Settle::Cost(_) | Settle::Report { .. }, None) | (Settle::Keep, _) => Ok(()),
        };
    }
}
