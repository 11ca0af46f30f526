//! What clients ask for, whatever is allowed: the most that each asks within a second, a minute, a day.

use slidegate::Timestamp;

use super::exact_log::ExactLog;
use super::key_counts::ByHash;

/// The windows that limits are suggested for, in microseconds, the shortest first.
pub const WINDOWS_US: [u64; 5] = [1_000_000, 10_000_000, 60_000_000, 3_600_000_000, 86_400_000_000];

/// Tables with fewer clients are not swept.
const MIN_SWEEP_CLIENTS: usize = 1024;

/// An hour: what is a day old then has waited for little longer.
const SWEEP_INTERVAL_US: u64 = 3_600_000_000;

/// What each client of a rule asks for.
#[derive(Default)]
pub struct Demand {
    /// Where a client stands: a table of numbers grows faster than one of clients.
    client_indices: ByHash<u32>,
    clients: Vec<ClientDemand>,
    /// Requests since logs were last swept.
    unswept: usize,
    swept_at_us: u64,
}

/// What a client asked for within the last day, and the most that it ever did.
#[derive(Default)]
struct ClientDemand {
    recent: ExactLog<{ WINDOWS_US.len() }>,
    peaks: [u32; WINDOWS_US.len()],
}

impl Demand {
    /// Takes note of one request.
    pub fn record(&mut self, client: u64, at: Timestamp) {
        let now_us = at.as_micros();
        self.client(client).record(now_us);
        self.unswept += 1;
        let is_long_ago = now_us.saturating_sub(self.swept_at_us) > SWEEP_INTERVAL_US;
        if is_long_ago && self.unswept > self.clients.len().max(MIN_SWEEP_CLIENTS) {
            self.sweep(now_us);
        }
    }

    fn client(&mut self, client: u64) -> &mut ClientDemand {
        let client_index = *self.client_indices.entry(client).or_insert_with(|| {
            self.clients.push(ClientDemand::default());
            self.clients.len() as u32 - 1
        });
        &mut self.clients[client_index as usize]
    }

    /// The most requests that each client made in any window of [`WINDOWS_US`]`[nth]`; sorted.
    pub fn peaks(&self, nth: usize) -> Vec<u32> {
        let mut peaks: Vec<u32> = self.clients.iter().map(|client| client.peaks[nth]).collect();
        peaks.sort_unstable();
        peaks
    }

    /// Gives back the memory of what is a day old. A request pays for the look at one client.
    fn sweep(&mut self, now_us: u64) {
        (self.unswept, self.swept_at_us) = (0, now_us);
        for client in &mut self.clients {
            client.recent.release_memory(now_us, &WINDOWS_US);
        }
    }
}

impl ClientDemand {
    fn record(&mut self, now_us: u64) {
        let inside = self.recent.add(now_us, 1, &WINDOWS_US);
        for (peaks, inside) in self.peaks.iter_mut().zip(inside) {
            *peaks = inside.max(*peaks);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_peak_is_the_most_in_any_window(
            steps in proptest::collection::vec((0..3u64, prop_oneof![0..3u64, 0..90u64, 0..90_000u64]), 1..200),
        ) {
            let (mut demand, mut now, mut asked) = (Demand::default(), 0, vec![vec![]; 3]);
            for (client, step) in steps {
                now += step;
                demand.record(client, Timestamp::from_secs(now));
                asked[client as usize].push(now * 1_000_000);
            }
            for (nth, window) in WINDOWS_US.into_iter().enumerate() {
                let of_client = |asked: &Vec<u64>| {
                    let inside = |&end: &u64| {
                        asked.iter().filter(|&&at| at <= end && at + window > end).count() as u32
                    };
                    asked.iter().map(inside).max()
                };
                let mut peaks: Vec<u32> = asked.iter().filter_map(of_client).collect();
                peaks.sort_unstable();
                prop_assert_eq!(demand.peaks(nth), peaks);
            }
        }
    }

    #[test]
    fn a_client_that_is_gone_keeps_its_peak_only() {
        let mut demand = Demand::default();
        for day in 0..100 {
            (0..100).for_each(|nth| demand.record(day, Timestamp::from_secs(day * 86_400 + nth)));
        }
        let logs = demand.clients.iter().filter(|client| client.recent.entries() > 0).count();
        assert!(logs < 30, "{logs}");
        assert_eq!(demand.peaks(2), vec![60; 100]);
    }
}
