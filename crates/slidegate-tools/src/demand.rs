//! Measures the demand of clients: the maximum number of requests of each client within one second, ten seconds, a
//! minute, an hour, and a day. Denied requests are included.

use slidegate::Timestamp;

use super::exact_log::ExactLog;
use super::key_counts::KeyHashMap;

/// The lengths of the windows for which demand is measured and limits are suggested, in microseconds, shortest first.
pub const WINDOW_LENGTHS_US: [u64; 5] =
    [1_000_000, 10_000_000, 60_000_000, 3_600_000_000, 86_400_000_000];

/// Minimum number of requests between two cleanups. A cleanup releases the memory of requests older than a day.
const MIN_REQUESTS_BETWEEN_CLEANUPS: usize = 1024;

/// Minimum time between two cleanups, in microseconds. A cleanup releases the memory of requests older than a day. The
/// interval is much shorter than a day, so that the memory is released soon.
const MIN_TIME_BETWEEN_CLEANUPS_US: u64 = 3_600_000_000;

/// The demand of each client of a rule: its maximum number of requests in windows of several lengths.
#[derive(Debug, Default)]
pub struct Demand {
    /// The index in `clients` of each client, by the hash of its key. The map contains only indices, because a map of
    /// whole clients would take longer to grow.
    client_indices: KeyHashMap<u32>,
    clients: Vec<ClientDemand>,
    /// Number of requests since the last cleanup, which released the memory of requests older than a day.
    requests_since_cleanup: usize,
    last_cleanup_at_us: u64,
}

/// The requests of one client within the last day, and its maximum number of requests in a window of each length.
#[derive(Debug, Default)]
struct ClientDemand {
    recent: ExactLog<{ WINDOW_LENGTHS_US.len() }>,
    peaks: [u32; WINDOW_LENGTHS_US.len()],
}

impl Demand {
    /// Records one request of a client. `client` is the hash of its key. A request counts the units that its rule
    /// states, and one unit if the rule states no number.
    pub fn record(&mut self, client: u64, at: Timestamp, cost: u64) {
        let now_us = at.as_micros();
        let units = u32::try_from(cost.max(1)).unwrap_or(u32::MAX);
        self.get_or_create_client_demand(client).add_request_of_client(now_us, units);
        self.requests_since_cleanup += 1;
        let is_cleanup_due =
            now_us.saturating_sub(self.last_cleanup_at_us) > MIN_TIME_BETWEEN_CLEANUPS_US;
        if is_cleanup_due
            && self.requests_since_cleanup > self.clients.len().max(MIN_REQUESTS_BETWEEN_CLEANUPS)
        {
            self.release_memory_of_expired_requests(now_us);
        }
    }

    fn get_or_create_client_demand(&mut self, client: u64) -> &mut ClientDemand {
        let client_index = *self.client_indices.entry(client).or_insert_with(|| {
            self.clients.push(ClientDemand::default());
            self.clients.len() as u32 - 1
        });
        &mut self.clients[client_index as usize]
    }

    /// Returns the maximum number of requests of each client in any window of length
    /// [`WINDOW_LENGTHS_US`]`[window_index]`, in ascending order.
    pub fn peaks(&self, window_index: usize) -> Vec<u32> {
        let mut peaks: Vec<u32> =
            self.clients.iter().map(|client| client.peaks[window_index]).collect();
        peaks.sort_unstable();
        peaks
    }

    /// Releases the memory of requests older than a day, for all clients. Each cleanup visits all clients. Between two
    /// cleanups, more requests than clients are recorded, so the amortized cost per request is at most one visit.
    fn release_memory_of_expired_requests(&mut self, now_us: u64) {
        (self.requests_since_cleanup, self.last_cleanup_at_us) = (0, now_us);
        for client in &mut self.clients {
            client.recent.release_memory(now_us, &WINDOW_LENGTHS_US);
        }
    }
}

impl ClientDemand {
    fn add_request_of_client(&mut self, now_us: u64, units: u32) {
        let units = self.recent.add(now_us, units, &WINDOW_LENGTHS_US);
        for (peak, units) in self.peaks.iter_mut().zip(units) {
            *peak = units.max(*peak);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn client_peak_is_maximum_request_count_per_window(
            steps in proptest::collection::vec((0..3u64, prop_oneof![0..3u64, 0..90u64, 0..90_000u64]), 1..200),
        ) {
            let (mut demand, mut now, mut requests) = (Demand::default(), 0, vec![vec![]; 3]);
            for (client, step) in steps {
                now += step;
                demand.record(client, Timestamp::from_secs(now), 1);
                requests[client as usize].push(now * 1_000_000);
            }
            for (index, window) in WINDOW_LENGTHS_US.into_iter().enumerate() {
                let peak_of_client = |requests: &Vec<u64>| {
                    let requests_in_window = |&end: &u64| {
                        requests.iter().filter(|&&at| at <= end && at + window > end).count() as u32
                    };
                    requests.iter().map(requests_in_window).max()
                };
                let mut peaks: Vec<u32> = requests.iter().filter_map(peak_of_client).collect();
                peaks.sort_unstable();
                prop_assert_eq!(demand.peaks(index), peaks);
            }
        }
    }

    #[test]
    fn idle_client_keeps_only_peak_request_counts() {
        let mut demand = Demand::default();
        for day in 0..100 {
            (0..100).for_each(|second| {
                demand.record(day, Timestamp::from_secs(day * 86_400 + second), 1)
            });
        }
        let logs = demand.clients.iter().filter(|client| client.recent.entry_count() > 0).count();
        assert!(logs < 30, "{logs}");
        assert_eq!(demand.peaks(2), vec![60; 100]);
    }
}
