//! The metrics of settlements.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// The result of a settlement, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettlementResult {
    Settled,
    /// The same settlement has been applied before.
    Repeated,
    /// The reservation has been settled with other costs.
    Conflict,
    Expired,
    /// The record that shows whether the reservation has been settled may have been evicted.
    Forgotten,
    OtherInstance,
    /// The token is forged or damaged.
    Invalid,
    /// No rule charges one of the costs.
    UnknownCost,
    StoreUnavailable,
}

/// The metrics of settlements.
pub struct SettlementMetrics(Family<SettlementLabels, Counter>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SettlementLabels {
    result: &'static str,
}

impl SettlementResult {
    const ALL: [Self; 9] = [
        Self::Settled,
        Self::Repeated,
        Self::Conflict,
        Self::Expired,
        Self::Forgotten,
        Self::OtherInstance,
        Self::Invalid,
        Self::UnknownCost,
        Self::StoreUnavailable,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Repeated => "repeated",
            Self::Conflict => "conflict",
            Self::Expired => "expired",
            Self::Forgotten => "forgotten",
            Self::OtherInstance => "other_instance",
            Self::Invalid => "invalid",
            Self::UnknownCost => "unknown_cost",
            Self::StoreUnavailable => "store_unavailable",
        }
    }
}

impl SettlementMetrics {
    /// Creates the metrics, all with the value 0.
    pub fn register(registry: &mut Registry) -> Self {
        let settlements = Family::default();
        for result in SettlementResult::ALL {
            drop(settlements.get_or_create(&SettlementLabels { result: result.name() }));
        }
        let help = "Settlements of reservations, by result";
        registry.register("settlements", help, settlements.clone());
        Self(settlements)
    }

    /// Counts a settlement by its result.
    pub fn count(&self, result: SettlementResult) {
        self.0.get_or_create(&SettlementLabels { result: result.name() }).inc();
    }
}
