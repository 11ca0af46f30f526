//! The reference: the algorithms over plain maps, one request after another, nothing ever forgotten.
//!
//! It follows the words of the design step by step, and shares nothing with a real store but the
//! algorithms.

use std::any::Any;
use std::collections::HashMap;

use parking_lot::Mutex;

use crate::algorithm::{AnyCounter, Counter, with_counter};
use crate::clock::{Clock, ManualClock, Timestamp};
use crate::hit::{Admission, Hit};
use crate::outcome::Outcome;
use crate::store::{Charge, CounterName, LocalStore, Outcomes, Receipt, Taken};

/// The state of each counter by its full name.
type States = HashMap<Box<str>, Box<dyn Any + Send>>;

/// The reference store.
pub struct ModelStore {
    clock: ManualClock,
    states: Mutex<States>,
}

impl ModelStore {
    /// An empty store that reads the given clock.
    pub fn new(clock: ManualClock) -> Self {
        Self { clock, states: Mutex::default() }
    }
}

/// What a store must tell apart, in full.
pub(super) fn counter_name(hit: &Hit<'_>) -> Box<str> {
    format!("{} {}", hit.key, hit.limit.shape_text()).into()
}

fn own_time(clock: &ManualClock, hit: &Hit<'_>) -> Timestamp {
    Timestamp::from_micros(clock.now().as_micros() + hit.limit.phase_us(&hit.key))
}

fn state_of<'s, C: Counter>(_: &C, states: &'s mut States, name: &str) -> &'s mut C::State {
    let state = states.entry(name.into()).or_insert_with(|| Box::new(C::State::default()));
    match state.downcast_mut() {
        Some(state) => state,
        None => unreachable!("a counter's name holds its algorithm"),
    }
}

fn peek(
    states: &mut States,
    counter: AnyCounter,
    name: &str,
    now: Timestamp,
    cost: u64,
) -> Outcome {
    with_counter!(counter, counter => {
        counter.peek(state_of(&counter, states, name), now, cost)
    })
}

fn charge(
    states: &mut States,
    counter: AnyCounter,
    name: &str,
    now: Timestamp,
    cost: u64,
) -> Timestamp {
    with_counter!(counter, counter => {
        counter.charge(state_of(&counter, states, name), now, cost).at
    })
}

impl ModelStore {
    /// Each hit's outcome, given what the hits before it would charge.
    fn peek_all(&self, states: &mut States, hits: &[Hit<'_>]) -> Outcomes {
        let mut pending: HashMap<Box<str>, u64> = HashMap::new();
        let mut outcomes = Outcomes::new();
        for hit in hits {
            let name = counter_name(hit);
            let before = pending.entry(name.clone()).or_default();
            let cost = before.saturating_add(hit.cost.max(1));
            let outcome =
                peek(states, hit.limit.counter(), &name, own_time(&self.clock, hit), cost);
            if hit.admission != Admission::Observe || outcome.fits() {
                *before = before.saturating_add(hit.cost);
            }
            outcomes.push(outcome);
        }
        outcomes
    }
}

impl LocalStore for ModelStore {
    fn take_now(&self, hits: &[Hit<'_>]) -> Taken {
        let states = &mut *self.states.lock();
        let mut outcomes = self.peek_all(states, hits);
        let vetoes = |(hit, outcome): (&Hit<'_>, &Outcome)| {
            hit.admission == Admission::Enforce && !outcome.fits()
        };
        let allowed = !hits.iter().zip(&outcomes).any(vetoes);
        let mut receipt = Receipt::default();
        for (hit, outcome) in hits.iter().zip(&mut outcomes) {
            let wanted = match hit.admission {
                Admission::Enforce => allowed,
                Admission::Observe => allowed && outcome.fits(),
                Admission::Always => true,
            };
            if !wanted || hit.cost == 0 {
                continue;
            }
            let (counter, name) = (hit.limit.counter(), counter_name(hit));
            let now = own_time(&self.clock, hit);
            let charged_at = charge(states, counter, &name, now, hit.cost);
            *outcome = peek(states, counter, &name, now, 0).charged();
            receipt.charges.push(Charge {
                counter: CounterName::Text(name),
                limit: *hit.limit,
                charged_at,
                cost: hit.cost,
            });
        }
        Taken { allowed, outcomes, receipt }
    }

    fn take_many_now(&self, asks: &[&[Hit<'_>]], answer: impl FnMut(Taken)) {
        asks.iter().map(|hits| self.take_now(hits)).for_each(answer);
    }

    fn peek_now(&self, hits: &[Hit<'_>]) -> Outcomes {
        self.peek_all(&mut self.states.lock(), hits)
    }

    fn give_back_now(&self, receipt: &Receipt) {
        let states = &mut *self.states.lock();
        for charge in &receipt.charges {
            let CounterName::Text(name) = &charge.counter else {
                continue;
            };
            with_counter!(charge.limit.counter(), counter => {
                let state = state_of(&counter, states, name);
                counter.give_back(state, charge.charged_at, charge.cost);
            });
        }
    }

    fn refund_now(&self, hits: &[Hit<'_>]) -> Outcomes {
        let states = &mut *self.states.lock();
        let refund = |hit: &Hit<'_>| {
            let (name, now) = (counter_name(hit), own_time(&self.clock, hit));
            with_counter!(hit.limit.counter(), counter => {
                let state = state_of(&counter, states, &name);
                counter.refund(state, now, hit.cost);
                counter.peek(state, now, 0)
            })
        };
        hits.iter().map(refund).collect()
    }

    fn reset_now(&self, hits: &[Hit<'_>]) {
        let states = &mut *self.states.lock();
        for hit in hits {
            states.remove(&counter_name(hit));
        }
    }
}
