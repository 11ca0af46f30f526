//! The bodies of `/v1/settle`.

use serde::{Deserialize, Serialize};
use slidegate::ActualCosts;

use crate::json::{CowText, JsonBody, NamedCosts, read_cost};

/// The body of `/v1/settle`: a reservation, and the actual costs, at least one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettleBody<'b> {
    /// The `reservation` in the response of `/v1/reserve`.
    #[serde(borrow)]
    pub reservation: CowText<'b>,
    /// Actual units for rules that state no cost. 0 without `costs` cancels the reservation: all its charges are
    /// reverted.
    #[serde(default, deserialize_with = "read_cost")]
    cost: Option<u64>,
    /// Actual units for rules that charge a named cost, such as {"tokens": 1830}.
    #[serde(default)]
    costs: NamedCosts<'b>,
}

/// The response to a settlement. It is the same if the settlement is repeated.
#[derive(Serialize)]
pub struct SettleResponse {
    /// Always true.
    pub settled: bool,
}

impl<'b> JsonBody<'b> for SettleBody<'b> {
    const REMEDY: &'static str =
        "send the `reservation` in the response of /v1/reserve, and `cost` or `costs`";

    fn validate(&self) -> Result<(), &'static str> {
        if self.cost.is_none() && self.costs.0.is_empty() {
            return Err(
                r#"the settlement contains no units; add `cost`, or `costs` such as {"tokens":1830}; {"cost":0} cancels the reservation"#,
            );
        }
        Ok(())
    }
}

impl SettleBody<'_> {
    /// Returns the actual costs.
    pub fn actual_costs(&self) -> ActualCosts<'_> {
        let costs = match self.cost {
            Some(0) if self.costs.0.is_empty() => return ActualCosts::cancelled(),
            Some(units) => ActualCosts::new().cost(units),
            None => ActualCosts::new(),
        };
        self.costs.0.iter().fold(costs, |costs, (name, units)| costs.with_cost(name, *units))
    }
}
