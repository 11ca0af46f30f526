//! Links that are cut.

use crate::node::{Node, agree_on, bound, know_each_other, plans, start, wait_until};
use crate::relay::Network;

const POLICY: &str = "
defaults: { algorithm: sliding_buckets }
rules:
  - { name: bounded, domain: bounded, per: [client], limits: [90/h], cluster: { max_unsynced: 5 } }
  - { name: available, domain: available, per: [client], limits: [90/h], cluster: { max_unsynced: 5, on_partition: available } }
  - { name: soon, domain: soon, per: [client], limits: [1000/s], cluster: { max_unsynced: 1 } }
";

fn wait_for_silence(node: &Node, of: &[&str]) {
    wait_until("they are silent", || node.others("silent"), |silent| *silent == of);
}

#[test]
fn parts_of_a_cluster_stay_within_the_bound_and_agree_when_they_meet_again() {
    let mut plans = plans::<3>(POLICY);
    let network = Network::between(&mut plans);
    let [a, b, c] = start(&plans);
    for domain in ["bounded", "available"] {
        assert_eq!(b.allows(domain, 30), 30);
        agree_on(&[&a, &b, &c], domain, 60);
    }
    network.cut(&[&plans[0]], &[&plans[1], &plans[2]]);
    wait_for_silence(&a, &["b", "c"]);
    wait_for_silence(&b, &["a"]);
    wait_for_silence(&c, &["a"]);
    assert_eq!((&a.status()["majority"], &b.status()["majority"]), (&false.into(), &true.into()));

    // Each is ahead of the others by what it may be, and no more.
    let bounded = [&a, &b, &c].map(|node| node.allows("bounded", 20));
    assert_eq!(bounded, [5, 5, 5]);
    // Each part enforces all of it, by what it knew.
    let apart =
        [a.allows("available", 100), b.allows("available", 30) + c.allows("available", 100)];
    assert_eq!(apart[0], 60);
    assert!((60..=bound(60, 2, 5)).contains(&apart[1]), "{apart:?}");
    // What the lost node may have counted has left its window: most go on without it, and it does not.
    let many = || [&b, &c].map(|node| node.allows("soon", 30));
    wait_until("most go on", many, |many| many == &[30, 30]);
    assert!(a.allows("soon", 30) < 10, "who is left waits for the others");

    network.heal();
    know_each_other(&[&a, &b, &c]);
    let nodes = [&a, &b, &c];
    agree_on(&nodes, "bounded", 90 - 30 - 15);
    agree_on(&nodes, "available", 0);
    let more: u64 = nodes.iter().map(|node| node.allows("bounded", 100)).sum();
    assert!((90..=bound(90, 3, 5)).contains(&(45 + more)), "{more}");
    agree_on(&nodes, "bounded", 0);
}

#[test]
fn a_link_that_was_cut_for_a_moment_is_no_matter() {
    let mut plans = plans::<2>(POLICY);
    let network = Network::between(&mut plans);
    let [a, b] = start(&plans);
    network.cut(&[&plans[0]], &[&plans[1]]);
    assert_eq!(a.allows("bounded", 20), 5);
    network.heal();
    agree_on(&[&a, &b], "bounded", 85);
    assert_eq!(a.allows("bounded", 20), 20);
    agree_on(&[&a, &b], "bounded", 65);
}

#[test]
fn what_slipped_through_is_told() {
    let rule = "{ max: 20, window: 4s, precision: 1s }";
    let policy = format!(
        "rules: [{{ name: a, per: [client], algorithm: sliding_buckets, limits: [{rule}], cluster: {{ max_unsynced: 20 }} }}]"
    );
    let mut plans = plans::<2>(&policy);
    let network = Network::between(&mut plans);
    let [a, b] = start(&plans);
    network.cut(&[&plans[0]], &[&plans[1]]);
    assert_eq!([&a, &b].map(|node| node.allows("default", 30)), [20, 20]);
    network.heal();
    // When that is over, and the next is told.
    let seen = || {
        a.check("default");
        b.remaining("default");
        b.metric("slidegate_cluster_overshoot_ratio_count", "")
    };
    wait_until("it was seen", seen, |seen| *seen > 0.0);
    assert_eq!(b.metric("slidegate_cluster_overshoot_ratio_sum", ""), 1.0, "as much as max");
    let overshoot = b.status()["overshoot"].clone();
    let beyond = &overshoot[8];
    assert!(beyond["le"].is_null() && beyond["count"] == 1, "{overshoot}");
    assert_eq!(bound(20, 2, 20), 40, "it is the bound");
}
