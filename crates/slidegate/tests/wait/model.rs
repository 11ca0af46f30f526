//! Random arrivals, compared with a model: a queue for each key, and an exact log of the charges.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;
use slidegate::Check;
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use crate::wait::fixture::{ms, new_exact_limiter, run_on_paused_time};

const MAX: u64 = 5;
const WINDOW_MS: u64 = 10_000;
const QUOTA: &str = "5/10s";

/// Times of different calls differ by at least this, so that no two events are at the same time. The precision of the
/// timers is finer.
const SPACING_MS: u64 = 3;

/// A call that arrives at a time, and may give up before it is decided.
#[derive(Clone, Debug)]
struct Arrival {
    at: u64,
    key: u8,
    cost: u64,
    max_wait: u64,
    gives_up_after: Option<u64>,
}

/// The end of a call, with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Allowed(u64),
    Denied(u64),
    GaveUp(u64),
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let arrival =
        (0..40_u64, 0..2_u8, 1..=MAX + 1, 0..30_u64, prop::option::weighted(0.3, 1..20_u64));
    prop::collection::vec(arrival, 1..40).prop_map(|arrivals| {
        let arrival = |(nth, (second, key, cost, wait, gives_up)): (
            u64,
            (u64, u8, u64, u64, Option<u64>),
        )| Arrival {
            at: second * 1_000 + nth * SPACING_MS,
            key,
            cost,
            max_wait: wait * 1_000,
            // Between the whole seconds, in which all other events of the call are.
            gives_up_after: gives_up.map(|seconds| seconds * 1_000 - 500),
        };
        (0..).zip(arrivals).map(arrival).collect()
    })
}

/// The state of one key in the model.
#[derive(Default)]
struct Key {
    /// The times and costs of the charges.
    log: Vec<(u64, u64)>,
    /// The waiting calls. The first one has a time at which it decides again.
    queue: VecDeque<usize>,
    wakes_at: u64,
}

impl Key {
    fn used(&self, now: u64) -> u64 {
        self.log.iter().filter(|(at, _)| at + WINDOW_MS > now).map(|(_, cost)| cost).sum()
    }

    /// Returns the time at which a cost fits if nothing else is charged; `None` if it never fits.
    fn fits_at(&self, now: u64, cost: u64) -> Option<u64> {
        let expiries = self.log.iter().map(|(at, _)| at + WINDOW_MS).filter(|at| *at > now);
        (cost <= MAX)
            .then(|| std::iter::once(now).chain(expiries).find(|at| self.used(*at) + cost <= MAX))?
    }

    /// Decides the first calls of the queue, as long as they are decided immediately.
    fn decide_first(&mut self, now: u64, calls: &[Arrival], ends: &mut [Option<End>]) {
        while let Some(&first) = self.queue.front() {
            let call = &calls[first];
            let fits_at = self.fits_at(now, call.cost).unwrap();
            if fits_at == now {
                self.log.push((now, call.cost));
                ends[first] = Some(End::Allowed(now));
            } else if fits_at > call.at + call.max_wait {
                ends[first] = Some(End::Denied(now));
            } else {
                self.wakes_at = fits_at;
                return;
            }
            self.queue.pop_front();
        }
    }

    fn arrive(&mut self, index: usize, calls: &[Arrival], ends: &mut [Option<End>]) {
        let call = &calls[index];
        let now = call.at;
        let fits_at = self.fits_at(now, call.cost);
        let waits_behind_others = call.max_wait > 0 && !self.queue.is_empty();
        if fits_at == Some(now) && !waits_behind_others {
            self.log.push((now, call.cost));
            ends[index] = Some(End::Allowed(now));
            return;
        }
        let earliest =
            if waits_behind_others { fits_at.map(|at| at.max(self.wakes_at)) } else { fits_at };
        match earliest {
            Some(at) if at <= now + call.max_wait => {
                self.queue.push_back(index);
                if !waits_behind_others {
                    self.wakes_at = at;
                }
            }
            _ => ends[index] = Some(End::Denied(now)),
        }
    }

    fn remove(&mut self, index: usize, now: u64, calls: &[Arrival], ends: &mut [Option<End>]) {
        let was_first = self.queue.front() == Some(&index);
        self.queue.retain(|other| *other != index);
        if was_first {
            self.decide_first(now, calls, ends);
        }
    }
}

/// Returns the ends of all calls, from the model.
fn expected_ends(calls: &[Arrival]) -> Vec<End> {
    let mut ends = vec![None; calls.len()];
    let mut keys: BTreeMap<u8, Key> = BTreeMap::new();
    for key in calls.iter().map(|call| call.key) {
        keys.entry(key).or_default();
    }
    enum Event {
        Arrives(usize),
        Wakes(u8),
        GivesUp(usize),
        TimesOut(usize),
    }
    let mut now = None;
    loop {
        let is_later = |(at, _): &(u64, Event)| now.is_none_or(|now| *at > now);
        let arrivals = (0..calls.len()).map(|index| (calls[index].at, Event::Arrives(index)));
        let wakes = keys.iter().filter(|(_, key)| !key.queue.is_empty());
        let wakes = wakes.map(|(name, key)| (key.wakes_at, Event::Wakes(*name)));
        let waiting = || keys.values().flat_map(|key| key.queue.iter().copied());
        let time_outs = waiting()
            .map(|index| (calls[index].at + calls[index].max_wait, Event::TimesOut(index)));
        let give_ups = waiting().filter_map(|index| {
            Some((calls[index].at + calls[index].gives_up_after?, Event::GivesUp(index)))
        });
        let events = arrivals.chain(wakes).chain(time_outs).chain(give_ups).filter(is_later);
        let Some((at, event)) = events.min_by_key(|(at, _)| *at) else { break };
        now = Some(at);
        let (index, end) = match event {
            Event::Arrives(index) => {
                keys.get_mut(&calls[index].key).unwrap().arrive(index, calls, &mut ends);
                continue;
            }
            Event::Wakes(key) => {
                keys.get_mut(&key).unwrap().decide_first(at, calls, &mut ends);
                continue;
            }
            Event::GivesUp(index) => (index, End::GaveUp(at)),
            Event::TimesOut(index) => (index, End::Denied(at)),
        };
        ends[index] = Some(end);
        keys.get_mut(&calls[index].key).unwrap().remove(index, at, calls, &mut ends);
    }
    ends.into_iter().map(Option::unwrap).collect()
}

/// Returns the ends of all calls, from a limiter.
fn actual_ends(calls: &[Arrival]) -> Vec<End> {
    run_on_paused_time(async {
        let (clock, limiter) = new_exact_limiter(&[QUOTA]);
        let run = |call: Arrival| {
            let limiter = limiter.clone();
            async move {
                sleep(ms(call.at)).await;
                let waiting = limiter
                    .check_async(Check::new(&call.key).cost(call.cost).max_wait(ms(call.max_wait)));
                let gives_up_after = call.gives_up_after.unwrap_or(1_000_000);
                let end = timeout(ms(gives_up_after), waiting).await;
                let now = clock.elapsed_ms();
                match end {
                    Err(_) => End::GaveUp(now),
                    Ok(decision) if decision.is_allowed() => End::Allowed(now),
                    Ok(_) => End::Denied(now),
                }
            }
        };
        let tasks: Vec<_> = calls.iter().cloned().map(|call| spawn_local(run(call))).collect();
        let mut ends = Vec::new();
        for task in tasks {
            ends.push(task.await.unwrap());
        }
        let stats = limiter.wait_stats();
        assert_eq!(stats.waiting, 0);
        let gave_up = ends.iter().filter(|end| matches!(end, End::GaveUp(_))).count();
        assert_eq!(stats.cancelled, gave_up as u64);
        assert_eq!(Arc::strong_count(&limiter), 1);
        ends
    })
}

proptest! {
    #[test]
    fn random_arrivals_end_as_in_model(calls in arrivals()) {
        prop_assert_eq!(actual_ends(&calls), expected_ends(&calls));
    }
}
