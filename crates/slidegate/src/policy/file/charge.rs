//! Compiles the fields `cost`, `required` and `charge` of a rule into its charge settings.

use super::compiler::Compiler;
use super::deserialize::Field;
use super::limits::CompiledLimit;
use super::spec::{ChargeSpec, CostSpec, RuleSpec};
use crate::policy::cost::{ChargeSettings, RuleCost};
use crate::policy::error::SourceSpan;
use crate::quota::MAX_UNITS;

impl Compiler<'_> {
    /// Compiles the charge settings of a rule. If the rule has no valid field `required`, `default_required` is used,
    /// or 1 if that is `None`.
    pub(super) fn compile_charge_settings(
        &mut self,
        spec: &RuleSpec,
        default_required: Option<u64>,
    ) -> ChargeSettings {
        ChargeSettings {
            cost: self.rule_cost_from_field(&spec.cost).unwrap_or_default(),
            required: self.units_from_field(&spec.required).or(default_required).unwrap_or(1),
            charges_always: matches!(spec.charge.get(), Some(ChargeSpec::Always)),
        }
    }

    /// Converts the field `cost` of a rule. Reports an invalid cost.
    fn rule_cost_from_field(&mut self, cost: &Field<CostSpec>) -> Option<RuleCost> {
        let (cost, at) = cost.value_and_span()?;
        match cost {
            CostSpec::Constant(0) => {
                self.report(
                    at,
                    "a cost of 0 charges nothing; write 1 or more, or the name of a cost",
                );
                None
            }
            CostSpec::Constant(units) => {
                Some(RuleCost::Constant(self.validate_unit_count(*units, at)?))
            }
            CostSpec::Named(name) => {
                self.report_invalid_name("cost", name, at);
                Some(RuleCost::Named(name.as_str().into()))
            }
        }
    }

    /// Returns the number of units in a field. Reports a number above [`MAX_UNITS`].
    pub(super) fn units_from_field(&mut self, units: &Field<u64>) -> Option<u64> {
        let (&units, at) = units.value_and_span()?;
        self.validate_unit_count(units, at)
    }

    /// Returns `units`, or reports an error if they exceed [`MAX_UNITS`].
    fn validate_unit_count(&mut self, units: u64, at: SourceSpan) -> Option<u64> {
        let too_many = || format!("{units} units are too many; the maximum is {MAX_UNITS}");
        self.ok_or_report(at, (units <= MAX_UNITS).then_some(units).ok_or_else(too_many))
    }

    /// Reports each limit whose capacity is smaller than the units that the rule charges or requires, so that every
    /// request would exceed the limit.
    pub(super) fn report_limits_smaller_than_charge(
        &mut self,
        charge: &ChargeSettings,
        limits: &[CompiledLimit],
    ) {
        let (field, units) = match charge.cost {
            RuleCost::Constant(cost) if cost >= charge.required => ("cost", cost),
            _ => ("required", charge.required),
        };
        for CompiledLimit { limit, at, .. } in limits {
            let capacity = limit.capacity();
            // Limits on requests in flight are left out, because a request takes one permit, whatever it costs.
            if capacity > 0 && units > capacity && !limit.is_concurrent() {
                let message = format_args!(
                    "every request exceeds {limit}, because the rule has `{field}: {units}`; lower it to {capacity}, or raise the limit"
                );
                self.report(*at, message);
            }
        }
    }
}
