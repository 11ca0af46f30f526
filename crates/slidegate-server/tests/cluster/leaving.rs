//! Nodes that stop as they are meant to be stopped.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::node::{Node, Plan, agree_on, know_each_other, plans, rule, start, wait_until};

#[test]
fn nobody_waits_for_a_node_that_has_left() {
    let [a, b, c] = start(&plans::<3>(&rule(90, 5)));
    assert_eq!(b.allows("default", 30), 30);
    b.stop();
    know_each_other(&[&a, &c]);
    agree_on(&[&a, &c], "default", 60);
    assert_eq!(a.allows("default", 40), 40, "far more than may be unacknowledged");
    agree_on(&[&a, &c], "default", 20);
    assert_eq!(a.others("silent"), [""; 0]);
}

#[test]
fn what_was_counted_last_is_told_before_a_node_goes() {
    // So seldom do they tell each other by themselves that only the farewell can have told it.
    let plans = plans::<2>(&rule(90, 80)).map(|plan| Plan { sync_interval: "5s", ..plan });
    let [a, b] = start(&plans);
    assert_eq!(b.allows("default", 40), 40);
    b.stop();
    agree_on(&[&a], "default", 50);
}

/// Requests that are let pass, by three in turn of which one may be away.
struct Crowd {
    nodes: Vec<Mutex<Option<Node>>>,
    allowed: AtomicU64,
    denied: AtomicU64,
    ended: AtomicBool,
}

impl Crowd {
    /// Asks one after the other, whoever is there, until it is over.
    fn ask(&self) {
        for node in self.nodes.iter().cycle() {
            if self.ended.load(Ordering::Relaxed) {
                return;
            }
            if let Some(node) = &*node.lock().unwrap_or_else(PoisonError::into_inner) {
                let said = node.check("default");
                let counter = if said.allowed { &self.allowed } else { &self.denied };
                counter.fetch_add(1, Ordering::Relaxed);
            }
            // A load, not a flood: a hundred in a second.
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_rolling_restart_denies_nothing_and_loses_nothing() {
    // What a node charges within a second and a half is too much, if somebody has not acknowledged it: a node that went
    // without a word would be seen.
    let max = 100_000;
    let plans = plans::<3>(&rule(max, 50));
    let nodes = start(&plans).map(|node| Mutex::new(Some(node)));
    let crowd = Crowd {
        nodes: nodes.into(),
        allowed: AtomicU64::new(0),
        denied: AtomicU64::new(0),
        ended: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        scope.spawn(|| crowd.ask());
        for (place, plan) in crowd.nodes.iter().zip(&plans) {
            let before = crowd.allowed.load(Ordering::Relaxed);
            place.lock().unwrap().take().unwrap().stop();
            let node = plan.start();
            let others = || node.others("alive").len();
            wait_until("it knows the others", others, |others| *others == 2);
            *place.lock().unwrap() = Some(node);
            let allowed = || crowd.allowed.load(Ordering::Relaxed);
            wait_until("some have asked meanwhile", allowed, |now| *now > before + 100);
        }
        crowd.ended.store(true, Ordering::Relaxed);
    });
    let nodes: Vec<Node> =
        crowd.nodes.into_iter().map(|node| node.into_inner().unwrap().unwrap()).collect();
    let nodes: Vec<&Node> = nodes.iter().collect();
    know_each_other(&nodes);
    assert_eq!(crowd.denied.into_inner(), 0);
    agree_on(&nodes, "default", max - crowd.allowed.into_inner());
}
