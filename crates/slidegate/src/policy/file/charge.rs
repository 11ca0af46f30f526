//! Reads `cost`, `required` and `charge` of a rule.

use super::SourceSpan;
use super::compile::Compiler;
use super::deserialize::Field;
use super::limits::Counted;
use super::spec::{ChargeSpec, CostSpec, RuleSpec};
use crate::policy::{ChargeSettings, RuleCost};
use crate::quota::MAX_UNITS;

impl Compiler<'_> {
    /// Reads the charges of a rule. `required` is the default of the policy.
    pub(super) fn charge(&mut self, entry: &RuleSpec, required: Option<u64>) -> ChargeSettings {
        ChargeSettings {
            cost: self.cost(&entry.cost).unwrap_or_default(),
            required: self.units(&entry.required).or(required).unwrap_or(1),
            always: matches!(entry.charge.get(), Some(ChargeSpec::Always)),
        }
    }

    fn cost(&mut self, cost: &Field<CostSpec>) -> Option<RuleCost> {
        let (cost, at) = cost.given()?;
        match cost {
            CostSpec::Constant(0) => {
                self.wrong(
                    at,
                    "a cost of 0 charges nothing: write 1 or more, or the name of a cost",
                );
                None
            }
            CostSpec::Constant(units) => Some(RuleCost::Constant(self.at_most(*units, at)?)),
            CostSpec::Named(name) => {
                self.name("cost", name, at);
                Some(RuleCost::Named(name.as_str().into()))
            }
        }
    }

    pub(super) fn units(&mut self, units: &Field<u64>) -> Option<u64> {
        let (&units, at) = units.given()?;
        self.at_most(units, at)
    }

    fn at_most(&mut self, units: u64, at: SourceSpan) -> Option<u64> {
        let too_many = || format!("{units} units are too many: at most {MAX_UNITS}");
        self.or_wrong(at, (units <= MAX_UNITS).then_some(units).ok_or_else(too_many))
    }

    /// Reports limits that no request of the rule fits.
    pub(super) fn charge_fits(&mut self, charge: &ChargeSettings, limits: &[Counted]) {
        let (what, units) = match charge.cost {
            RuleCost::Constant(cost) if cost >= charge.required => ("cost", cost),
            _ => ("required", charge.required),
        };
        for Counted { limit, at, .. } in limits {
            let capacity = limit.capacity();
            if capacity > 0 && units > capacity {
                let message = format_args!(
                    "no request fits {limit}: the rule has `{what}: {units}`; lower it to {capacity}, or raise the limit"
                );
                self.wrong(*at, message);
            }
        }
    }
}
