//! Measures the demand of clients regardless of the decisions: the maximum number of requests of each client within a
//! second, a minute, a day.

use slidegate::Timestamp;

use super::exact_log::ExactLog;
use super::key_counts::ByHash;

/// The windows for which limits are suggested, in microseconds, shortest first.
pub const WINDOWS_US: [u64; 5] = [1_000_000, 10_000_000, 60_000_000, 3_600_000_000, 86_400_000_000];

/// Minimum number of clients before memory is released.
const MIN_SWEEP_CLIENTS: usize = 1024;

/// Minimum time between two sweeps. Much shorter than a day, so that memory of expired requests is released soon.
const SWEEP_INTERVAL_US: u64 = 3_600_000_000;

/// The demand of each client of a rule.
#[derive(Default)]
pub struct Demand {
    /// The index of each client in `clients`. A map of small indices grows faster than a map of clients.
    client_indices: ByHash<u32>,
    clients: Vec<ClientDemand>,
    /// Number of requests since the last sweep.
    requests_since_sweep: usize,
    swept_at_us: u64,
}

/// The requests of a client within the last day, and its peaks.
#[derive(Default)]
struct ClientDemand {
    recent: ExactLog<{ WINDOWS_US.len() }>,
    peaks: [u32; WINDOWS_US.len()],
}

impl Demand {
    /// Records one request of a client.
    pub fn record(&mut self, client: u64, at: Timestamp) {
        let now_us = at.as_micros();
        self.client_mut(client).record(now_us);
        self.requests_since_sweep += 1;
        let is_sweep_due = now_us.saturating_sub(self.swept_at_us) > SWEEP_INTERVAL_US;
        if is_sweep_due && self.requests_since_sweep > self.clients.len().max(MIN_SWEEP_CLIENTS) {
            self.sweep(now_us);
        }
    }

    fn client_mut(&mut self, client: u64) -> &mut ClientDemand {
        let client_index = *self.client_indices.entry(client).or_insert_with(|| {
            self.clients.push(ClientDemand::default());
            self.clients.len() as u32 - 1
        });
        &mut self.clients[client_index as usize]
    }

    /// Returns the maximum number of requests of each client in any window of length [`WINDOWS_US`]`[window_index]`,
    /// sorted.
    pub fn peaks(&self, window_index: usize) -> Vec<u32> {
        let mut peaks: Vec<u32> =
            self.clients.iter().map(|client| client.peaks[window_index]).collect();
        peaks.sort_unstable();
        peaks
    }

    /// Releases the memory of requests older than a day. There are at least as many requests between two sweeps as
    /// clients, so the amortized cost per request is one client.
    fn sweep(&mut self, now_us: u64) {
        (self.requests_since_sweep, self.swept_at_us) = (0, now_us);
        for client in &mut self.clients {
            client.recent.release_memory(now_us, &WINDOWS_US);
        }
    }
}

impl ClientDemand {
    fn record(&mut self, now_us: u64) {
        let units = self.recent.add(now_us, 1, &WINDOWS_US);
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
        fn peak_is_maximum_over_all_windows(
            steps in proptest::collection::vec((0..3u64, prop_oneof![0..3u64, 0..90u64, 0..90_000u64]), 1..200),
        ) {
            let (mut demand, mut now, mut requests) = (Demand::default(), 0, vec![vec![]; 3]);
            for (client, step) in steps {
                now += step;
                demand.record(client, Timestamp::from_secs(now));
                requests[client as usize].push(now * 1_000_000);
            }
            for (index, window) in WINDOWS_US.into_iter().enumerate() {
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
    fn idle_client_keeps_only_its_peaks() {
        let mut demand = Demand::default();
        for day in 0..100 {
            (0..100)
                .for_each(|second| demand.record(day, Timestamp::from_secs(day * 86_400 + second)));
        }
        let logs = demand.clients.iter().filter(|client| client.recent.entry_count() > 0).count();
        assert!(logs < 30, "{logs}");
        assert_eq!(demand.peaks(2), vec![60; 100]);
    }
}
