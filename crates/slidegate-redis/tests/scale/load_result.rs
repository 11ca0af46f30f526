//! Compares the results of all calls with the final counters and the losses that Redis reports.

use std::sync::Arc;

use slidegate::Timestamp;

use super::load::{CallOutcome, CallRecord, Client};

/// The results of all calls, and the number of units that are charged to each limit of each client at the end.
pub struct LoadResult {
    pub clients: Arc<[Client]>,
    pub records: Vec<CallRecord>,
    pub charged: Vec<Vec<u64>>,
}

/// The lost charges of a load test.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// Number of allowed charges that are missing in the end.
    pub lost: u64,
    /// Number of units that were allowed above the maxima of the limits because of lost charges.
    pub above_max: u64,
}

impl LoadResult {
    fn count_matching_calls(&self, client: usize, is_match: impl Fn(CallOutcome) -> bool) -> u64 {
        self.records
            .iter()
            .filter(|record| record.client == client && is_match(record.outcome))
            .count() as u64
    }

    /// Asserts that the final counts of these clients are consistent with the loss of at most `max_lost` charges by
    /// Redis:
    ///
    /// - At most `max_lost` units were allowed above the maxima of the limits.
    /// - At most `max_lost` charges are missing.
    /// - No charge was repeated: each remaining charge was allowed, or its result is unknown.
    pub fn assert_counts(&self, clients: &[usize], max_lost: u64) -> Loss {
        let (mut lost, mut above_max) = (0, 0);
        for &client in clients {
            let allowed =
                self.count_matching_calls(client, |answer| answer == CallOutcome::Allowed);
            let unknown =
                self.count_matching_calls(client, |answer| answer == CallOutcome::TimedOut);
            assert!(allowed > 0, "the test must allow units");
            let limits = &self.clients[client].limits;
            for (limit, &charged) in limits.iter().zip(&self.charged[client]) {
                assert!(
                    charged <= allowed + unknown,
                    "{charged} charged, {allowed} allowed, {unknown} unknown"
                );
                above_max += allowed.saturating_sub(limit.capacity());
            }
            let min_charged = self.charged[client].iter().min().unwrap();
            lost += allowed.saturating_sub(*min_charged);
        }
        println!(
            "{lost} charges lost, {above_max} more allowed than max, at most {max_lost} expected"
        );
        assert!(lost <= max_lost, "{lost} charges lost, at most {max_lost} expected");
        assert!(
            above_max <= max_lost,
            "{above_max} more allowed than max, at most {max_lost} expected"
        );
        Loss { lost, above_max }
    }

    /// Asserts that the stores decided the calls of these clients that began within a time range. At most 1 % of the
    /// calls may fail, because the machine may be slow.
    pub fn assert_available(&self, clients: &[usize], from: Timestamp, to: Timestamp) {
        let is_in_range = |record: &&CallRecord| {
            clients.contains(&record.client) && (from..to).contains(&record.began)
        };
        let (mut calls, mut errors) = (0_usize, Vec::new());
        for record in self.records.iter().filter(is_in_range) {
            calls += 1;
            errors.extend(record.outcome.is_error().then_some(record.outcome));
        }
        assert!(calls > 0, "no calls");
        let first_errors = &errors[..errors.len().min(10)];
        assert!(
            errors.len() <= calls / 100,
            "errors of {calls} calls: {}: {first_errors:?}…",
            errors.len()
        );
    }

    /// Returns the indexes of all clients.
    pub fn all_clients(&self) -> Vec<usize> {
        (0..self.clients.len()).collect()
    }
}
