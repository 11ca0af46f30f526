//! Nodes that end without a word, and such that stand still for a while.

use crate::node::{Node, agree_on, bound, know_each_other, plans, start, wait_until};

/// In each domain one rule: of one that waits for silent nodes, and of one that does not.
const POLICY: &str = "
defaults: { algorithm: sliding_buckets }
rules:
  - { name: bounded, domain: bounded, per: [client], limits: [90/h], cluster: { max_unsynced: 5 } }
  - { name: available, domain: available, per: [client], limits: [90/h], cluster: { max_unsynced: 5, on_partition: available } }
";

const DOMAINS: [&str; 2] = ["bounded", "available"];

fn wait_for_silence(nodes: &[&Node], of: &str) {
    for node in nodes {
        wait_until("it is silent", || node.others("silent"), |silent| *silent == [of]);
    }
}

#[test]
fn what_a_killed_node_has_told_counts_on_and_it_comes_back_as_another() {
    let plans = plans::<3>(POLICY);
    let [a, b, c] = start(&plans);
    for domain in DOMAINS {
        assert_eq!(b.allows(domain, 30), 30);
        agree_on(&[&a, &b, &c], domain, 60);
    }
    let before = b.status()["incarnation"].clone();
    drop(b);
    wait_for_silence(&[&a, &c], "b");
    assert_eq!(a.metric("slidegate_cluster_members", r#"state="silent""#), 1.0);
    // Nobody knows what it may still have allowed: beyond what they may be ahead of it, they wait.
    let bounded = a.allows("bounded", 20) + c.allows("bounded", 20);
    assert_eq!(bounded, 10);
    assert!(a.metric("slidegate_cluster_unsynced_denials_total", "") > 0.0);
    // Unless they shall not.
    let available = a.allows("available", 20) + c.allows("available", 20);
    assert_eq!(available, 40);
    agree_on(&[&a, &c], "bounded", 50);
    agree_on(&[&a, &c], "available", 20);

    let b = plans[1].start();
    know_each_other(&[&a, &b, &c]);
    assert_ne!(b.status()["incarnation"], before);
    agree_on(&[&b], "bounded", 50);
    agree_on(&[&b], "available", 20);
    let nodes = [&a, &b, &c];
    for (domain, left, allowed) in [("bounded", 50, 40), ("available", 20, 70)] {
        let more: u64 = nodes.iter().map(|node| node.allows(domain, 100)).sum();
        assert!((left..=bound(90, 4, 5) - allowed).contains(&more), "{domain}: {more}");
        agree_on(&nodes, domain, 0);
    }
}

#[test]
fn a_node_that_stood_still_goes_on_with_what_the_others_counted() {
    let plans = plans::<3>(POLICY);
    let [a, b, c] = start(&plans);
    assert_eq!(b.allows("bounded", 30), 30);
    agree_on(&[&a, &b, &c], "bounded", 60);
    b.signal("STOP");
    // Before it is known to be silent as after: they wait for its word.
    assert_eq!(a.allows("bounded", 20), 5);
    wait_for_silence(&[&a, &c], "b");
    assert_eq!(c.allows("bounded", 20), 5);
    b.signal("CONT");
    // It does not know that it was away.
    let ahead = b.allows("bounded", 5);
    know_each_other(&[&a, &b, &c]);
    let nodes = [&a, &b, &c];
    agree_on(&nodes, "bounded", 60 - 10 - ahead);
    let more: u64 = nodes.iter().map(|node| node.allows("bounded", 100)).sum();
    let allowed = 30 + 10 + ahead + more;
    assert!((90..=bound(90, 3, 5)).contains(&allowed), "{allowed}");
    agree_on(&nodes, "bounded", 0);
}
