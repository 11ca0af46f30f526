//! Counter kinds. A kind is an algorithm with its bucket length and its number of buckets. The state of each key
//! contains the index of its kind, which uses less memory than the three values.

use std::collections::HashMap;

use parking_lot::RwLock;
use slidegate::StoreError;
use slidegate::algorithm::AnyAdditive;
use slidegate::store::Hit;

/// Index of a counter kind (an algorithm with its bucket length and its number of buckets) in [`CounterKinds`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CounterKindId(u16);

/// All counter kinds that have been used on this node. Two limits that differ only in their maximum have the same kind.
#[derive(Default)]
pub(super) struct CounterKinds(RwLock<CounterKindTable>);

/// The counter (algorithm with its parameters) of each kind, and the index of the kind of each limit shape.
#[derive(Default)]
struct CounterKindTable {
    counters: Vec<AnyAdditive>,
    kind_by_limit_shape: HashMap<u64, CounterKindId>,
}

impl CounterKinds {
    /// Returns the counter (algorithm with its parameters) of a kind.
    pub(super) fn counter_of_kind(&self, kind: CounterKindId) -> AnyAdditive {
        self.0.read().counters[usize::from(kind.0)]
    }

    /// Returns the index of the kind of a hit's counter. Registers the kind if this is the first hit with it.
    pub(super) fn get_or_register_kind(
        &self,
        hit: &Hit<'_>,
        counter: AnyAdditive,
    ) -> Result<CounterKindId, StoreError> {
        let shape = hit.limit.cluster_counter_shape();
        if let Some(kind) = self.0.read().kind_by_limit_shape.get(&shape) {
            return Ok(*kind);
        }
        let CounterKindTable { counters, kind_by_limit_shape } = &mut *self.0.write();
        let Ok(next) = u16::try_from(counters.len()) else {
            return Err(StoreError::Unsupported(
                "more than 65,536 combinations of algorithm and window; use fewer different windows"
                    .to_owned(),
            ));
        };
        let kind = *kind_by_limit_shape.entry(shape).or_insert(CounterKindId(next));
        if kind == CounterKindId(next) {
            counters.push(counter);
        }
        Ok(kind)
    }
}
