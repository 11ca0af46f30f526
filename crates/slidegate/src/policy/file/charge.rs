//! Compiles the fields `cost`, `required` and `charge` of a rule into its charge settings.

use super::SourceSpan;
use super::compile::Compiler;
use super::deserialize::Field;
use super::limits::NamedLimit;
use super::spec::{ChargeSpec, CostSpec, RuleSpec};
use crate::policy::{ChargeSettings, RuleCost};
use crate::quota::MAX_UNITS;

impl Compiler<'_> {
    /// Compiles the charge settings of a rule. If the rule has no valid field `required`, `default_required` is used,
    /// or 1 if that is `None`.
    pub(super) fn compile_charge(
        &mut self,
        spec: &RuleSpec,
        default_required: Option<u64>,
    ) -> ChargeSettings {
        ChargeSettings {
            cost: self.compile_cost(&spec.cost).unwrap_or_default(),
            required: self.compile_units(&spec.required).or(default_required).unwrap_or(1),
            charges_always: matches!(spec.charge.get(), Some(ChargeSpec::Always)),
        }
    }

    fn compile_cost(&mut self, cost: &Field<CostSpec>) -> Option<RuleCost> {
        let (cost, at) = cost.spanned()?;
        match cost {
            CostSpec::Constant(0) => {
                self.report(
                    at,
                    "a cost of 0 charges nothing: write 1 or more, or the name of a cost",
                );
                None
            }
            CostSpec::Constant(units) => {
                Some(RuleCost::Constant(self.check_max_units(*units, at)?))
            }
            CostSpec::Named(name) => {
                self.check_name("cost", name, at);
                Some(RuleCost::Named(name.as_str().into()))
            }
        }
    }

    pub(super) fn compile_units(&mut self, units: &Field<u64>) -> Option<u64> {
        let (&units, at) = units.spanned()?;
        self.check_max_units(units, at)
    }

    fn check_max_units(&mut self, units: u64, at: SourceSpan) -> Option<u64> {
        let too_many = || format!("{units} units are too many: at most {MAX_UNITS}");
        self.ok_or_report(at, (units <= MAX_UNITS).then_some(units).ok_or_else(too_many))
    }

    /// Reports each limit whose capacity is smaller than the units that the rule charges or requires, so that every
    /// request would exceed the limit.
    pub(super) fn check_charge_within_limits(
        &mut self,
        charge: &ChargeSettings,
        limits: &[NamedLimit],
    ) {
        let (field, units) = match charge.cost {
            RuleCost::Constant(cost) if cost >= charge.required => ("cost", cost),
            _ => ("required", charge.required),
        };
        for NamedLimit { limit, at, .. } in limits {
            let capacity = limit.capacity();
            if capacity > 0 && units > capacity {
                let message = format_args!(
                    "no request fits {limit}: the rule has `{field}: {units}`; lower it to {capacity}, or raise the limit"
                );
                self.report(*at, message);
            }
        }
    }
}
