//! A backend that decides requests with a gate. The gate receives the attributes of the request.

use std::sync::Arc;

use http::request::Parts;
use slidegate::store::StoreKind;
use slidegate::{ActualCosts, Decision, Descriptor, Gate, Permit, Policy, Reason, Request, Store};

use super::{Backend, BackendDecision, BoxFuture, PendingCharge, log_missing_extension};
use crate::costs::RequestCosts;
use crate::extract::{AttributeValues, Attributes, RequestHead};
use crate::names::{NamesError, check_names, find_needed_extractors};
use crate::request_options::RequestOptions;
use crate::settlement::Settlement;

/// A gate, and the extractors of the attributes that the rules of the gate use.
pub struct GateBackend<S> {
    gate: Arc<Gate<S>>,
    attributes: Attributes,
}

impl<S: Store> GateBackend<S> {
    pub fn new(gate: Arc<Gate<S>>, attributes: Attributes) -> Self {
        Self { gate, attributes }
    }

    /// Reads the attributes of a request. Logs a warning if the policy was replaced by one that the names do not fit,
    /// and if the server has not added the extension of an attribute that a rule needs.
    fn read_values<'r>(
        &'r self,
        options: &RequestOptions,
        policy: &Policy,
        head: RequestHead<'r>,
        values: &mut AttributeValues<'r>,
    ) {
        if !options.names.is_policy_checked(policy.id()) {
            self.warn_about_names(options);
        }
        let missing = self.attributes.read_values(head, values);
        if options.names.needs_any_extractor(missing) {
            self.warn_about_missing_extensions(options, head, missing);
        }
    }

    fn warn_about_missing_extensions(
        &self,
        options: &RequestOptions,
        head: RequestHead<'_>,
        missing: u64,
    ) {
        for (bit, name, extension) in self.attributes.missing_extensions(missing, head.extensions) {
            if options.names.remove_needed_extractor(bit) {
                log_missing_extension(name, extension);
            }
        }
    }

    async fn check(
        &self,
        options: &RequestOptions,
        head: RequestHead<'_>,
    ) -> BackendDecision<'static> {
        let unnamed = match options.cost.read_cost(head) {
            Ok(cost) => cost,
            Err(malformed) => return BackendDecision::Malformed(malformed),
        };
        let costs = RequestCosts { unnamed, named: self.attributes.named_costs(head) };
        let policy = self.gate.policy();
        let mut values = AttributeValues::default();
        self.read_values(options, &policy, head, &mut values);
        let mut descriptor = Descriptor::new([]);
        values.extend_descriptor(&mut descriptor, &costs);
        let context = options.settle_context(values.iter());
        let request = Request::new(self.attributes.policy_domain(), descriptor);
        // In place of `check_async`, which would warn again about unknown costs that `warn_about_names` has reported.
        let decision = self.gate.decide_async(&policy.apply(&request)).await;
        BackendDecision::Counted(decision, context)
    }

    async fn settle_charge(&self, charge: &PendingCharge, settlement: Settlement) {
        // Errors are ignored: after a failure of the store, the charge stays.
        let _ = match (settlement, &charge.context) {
            (Settlement::Revert, _) => self.gate.revert_async(&charge.decision).await,
            (Settlement::Cost(cost), _) => self.gate.settle_async(&charge.decision, cost).await,
            (Settlement::NamedCost { cost, units }, _) => {
                let actual = ActualCosts::new().with_cost(cost, units);
                self.gate.settle_async(&charge.decision, actual).await
            }
            (Settlement::Report { cost, units }, Some(context)) => {
                let _ = self
                    .gate
                    .report_async(&context.report(self.attributes.policy_domain(), cost, units))
                    .await;
                Ok(())
            }
            (Settlement::Report { .. }, None) | (Settlement::Keep, _) => Ok(()),
        };
    }
}

impl<S: Store> Backend for GateBackend<S> {
    fn decide(
        &self,
        options: &RequestOptions,
        head: RequestHead<'_>,
    ) -> Option<BackendDecision<'_>> {
        S::Kind::poll_if_synchronous(self.check(options, head)).ok()
    }

    fn decide_async(
        self: Arc<Self>,
        options: Arc<RequestOptions>,
        parts: Parts,
    ) -> BoxFuture<(Parts, BackendDecision<'static>)> {
        Box::pin(async move {
            let decision = self.check(&options, RequestHead::from(&parts)).await;
            (parts, decision)
        })
    }

    fn settle(
        self: Arc<Self>,
        charge: PendingCharge,
        settlement: Settlement,
    ) -> Option<BoxFuture<()>> {
        if S::Kind::poll_if_synchronous(self.settle_charge(&charge, settlement)).is_ok() {
            return None;
        }
        Some(Box::pin(async move { self.settle_charge(&charge, settlement).await }))
    }

    fn check_names(&self, options: &RequestOptions) -> Result<(), NamesError> {
        check_names(&self.gate.policy(), &self.attributes, options)
    }

    fn warn_about_names(&self, options: &RequestOptions) {
        let policy = self.gate.policy();
        if options.names.begin_check(policy.id()) {
            let needed =
                find_needed_extractors(&policy, &self.attributes, self.attributes.policy_domain());
            options.names.set_needed_extractors(needed);
            if let Err(error) = check_names(&policy, &self.attributes, options) {
                error.log();
            }
        }
    }

    fn missing_extension(
        &self,
        decision: &Decision<'_>,
        head: RequestHead<'_>,
    ) -> Option<&'static str> {
        if decision.reason() != Some(Reason::MissingAttribute) {
            return None;
        }
        let entries = decision.binding()?.rule()?.per().entries();
        entries
            .iter()
            .find_map(|entry| self.attributes.missing_extension_for_attributes(entry.names(), head))
    }

    fn has_permits(&self) -> bool {
        self.gate.policy().has_concurrent_limits()
    }

    fn release(&self, permit: Permit) {
        permit.release_later(&self.gate);
    }

    fn renew(self: Arc<Self>, permit: Permit) -> BoxFuture<bool> {
        Box::pin(async move { permit.renew_async(&self.gate).await.unwrap_or(true) })
    }
}
