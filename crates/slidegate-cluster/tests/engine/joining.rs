//! Who comes, who goes, and what they may count on.

use std::time::Duration;

use slidegate_cluster::replicated_counters::FlushSeq;

use crate::rig::{Rig, name_of, node};

#[test]
fn nothing_is_acknowledged_to_a_joiner_before_a_settled_member_has_told_it_all() {
    let mut rig = Rig::of(2);
    rig.start(3, "c");
    assert_eq!(rig.acknowledged(3), 0, "it knows nobody yet");
    assert!(rig.status(3).is_joining && rig.sites[&3].progress.load().nodes >= 2);
    rig.all_see_all();
    rig.deliver_but(|frame| frame.to == 3);
    assert!(rig.status(3).is_joining);
    rig.settle();
    assert!(!rig.status(3).is_joining && rig.status(3).is_settled);
}

#[test]
fn a_joiner_may_not_charge_freely_before_all_have_told_it_all() {
    let mut rig = Rig::of(3);
    rig.start(4, "d");
    rig.charge(4, 7);
    // It hears of 1 alone, and 1 of it.
    rig.sees(4, &[1]);
    rig.sees(1, &[2, 3, 4]);
    for _ in 0..4 {
        rig.deliver_but(|frame| frame.from + frame.to != 5);
        rig.interval();
    }
    assert!(!rig.status(4).is_joining, "it knows who is there");
    assert!(rig.status(4).flush > 0 && rig.acknowledged(4) == 0, "2 and 3 have not acknowledged");
    assert_eq!(rig.status(4).members.len(), 3, "it counts whom 1 counts");
    assert!(!rig.status(4).is_settled);
    rig.all_see_all();
    rig.settle();
    assert_eq!(rig.acknowledged(4), rig.status(4).flush);
    assert!(rig.status(4).is_settled);
}

#[test]
fn nobody_waits_until_a_joiner_has_what_was_told_before_it_came() {
    let mut rig = Rig::of(2);
    rig.charge(1, 7);
    rig.interval();
    rig.deliver();
    let told = rig.status(1).flush;
    rig.start(3, "c");
    rig.sees(1, &[2, 3]);
    assert_eq!(rig.acknowledged(1), told);
    rig.charge(1, 8);
    rig.interval();
    rig.deliver_but(|frame| frame.to == 3);
    assert_eq!(rig.acknowledged(1), told, "but for what is told from then on");
}

#[test]
fn a_joiner_learns_what_the_dead_had_counted() {
    let mut rig = Rig::of(3);
    rig.charge(3, 7);
    rig.interval();
    rig.deliver();
    rig.kill(3);
    rig.sees(1, &[2]);
    rig.sees(2, &[1]);
    rig.settle();
    rig.start(4, "d");
    rig.sees(1, &[2, 4]);
    rig.sees(2, &[1, 4]);
    rig.sees(4, &[1, 2]);
    rig.settle();
    assert_eq!(rig.map(4).units(7), 1);
    assert_eq!(rig.status(4).members.len(), 3, "it counts the silent one, too");
}

/// 3 joins through 1, and 4 through 2, before any of them hears of the other.
#[test]
fn of_two_that_join_through_different_members_neither_charges_freely_without_the_other() {
    let mut rig = Rig::of(2);
    rig.start(3, "c");
    rig.start(4, "d");
    rig.charge(3, 7);
    rig.charge(4, 7);
    rig.sees(3, &[1, 2]);
    rig.sees(4, &[1, 2]);
    rig.sees(1, &[2, 3]);
    rig.sees(2, &[1, 4]);
    rig.settle();
    assert!([3, 4].iter().all(|joiner| rig.acknowledged(*joiner) == 0), "each lacks one member");
    rig.sees(1, &[2, 3, 4]);
    rig.sees(2, &[1, 3, 4]);
    rig.settle();
    let freely = |joiner: u64| rig.acknowledged(joiner) > 0;
    assert!(!(freely(3) && freely(4)), "they do not see each other yet");
    rig.all_see_all();
    rig.settle();
    assert!(rig.agree() && (1..=4).all(|at| rig.acknowledged(at) == rig.status(at).flush));
}

#[test]
fn joiners_among_themselves_know_nothing() {
    let mut rig = Rig::of(2);
    rig.start(3, "c");
    rig.start(4, "d");
    rig.sees(3, &[4]);
    rig.sees(4, &[3]);
    for _ in 0..4 {
        rig.deliver_but(|frame| frame.from < 3 || frame.to < 3);
        rig.interval();
    }
    assert!(rig.status(3).is_joining && rig.status(4).is_joining);
}

#[test]
fn who_finds_nobody_begins_a_cluster_of_its_own() {
    let mut rig = Rig::new();
    rig.start(1, "a");
    rig.kill(1);
    let first = rig.now;
    // It knows the addresses of others, but none is there.
    rig.start(9, "x");
    rig.start(1, "a");
    rig.kill(9);
    assert_eq!(rig.acknowledged(1), 0);
    while rig.now < first.after(Duration::from_secs(5)) {
        assert!(rig.status(1).is_joining);
        rig.interval();
    }
    assert!(!rig.status(1).is_joining && rig.acknowledged(1) == FlushSeq::MAX);
    assert!(rig.sites[&1].progress.load().is_alone());
}

#[test]
fn those_that_start_together_settle_together() {
    let mut rig = Rig::new();
    rig.start(9, "x");
    (1..=3).for_each(|nth| rig.start(nth, name_of(nth)));
    rig.kill(9);
    (1..=3).for_each(|nth| rig.charge(nth, 7));
    rig.all_see_all();
    for _ in 0..30 {
        rig.interval();
        rig.deliver();
    }
    for at in 1..=3 {
        assert!(rig.status(at).is_settled && rig.status(at).is_majority);
        assert_eq!((rig.map(at).units(7), rig.acknowledged(at)), (3, rig.status(at).flush));
    }
}

#[test]
fn two_clusters_that_meet_wait_for_each_other() {
    let mut rig = Rig::of(1);
    let mut other = Rig::new();
    other.start(2, "b");
    rig.sites.append(&mut other.sites);
    (1..=2).for_each(|at| rig.charge(at, 7));
    rig.sees(1, &[2]);
    rig.sees(2, &[1]);
    let acks = |rig: &mut Rig| rig.deliver_but(crate::rig::Frame::is_ack);
    acks(&mut rig);
    (1..=2).for_each(|at| {
        rig.charge(at, 8);
        rig.tick(at);
    });
    assert!([1, 2].iter().all(|at| rig.acknowledged(*at) == 0));
    rig.settle();
    assert!(rig.agree() && rig.acknowledged(1) == rig.status(1).flush);
}

#[test]
fn a_node_that_starts_anew_takes_the_place_of_its_last_life() {
    let mut rig = Rig::of(3);
    rig.charge(3, 7);
    rig.interval();
    rig.deliver_but(|frame| frame.to == 2);
    rig.kill(3);
    rig.start(13, "c");
    rig.sees(1, &[2, 13]);
    rig.sees(2, &[1, 13]);
    rig.sees(13, &[1, 2]);
    assert!(rig.member(1, 3).is_none() && rig.status(1).members.len() == 2);
    rig.settle();
    assert!(rig.agree() && rig.map(13).units(7) == 1, "what it had counted outlives it");
    // The failure detector may still believe in the old one.
    rig.sees(1, &[2, 3, 13]);
    assert!(rig.member(1, 3).is_none() && rig.member(1, 13).is_some());
}

#[test]
fn who_leaves_is_not_waited_for() {
    let mut rig = Rig::of(3);
    rig.charge(3, 7);
    rig.at(3, |engine, map, now| engine.leave(map, now));
    rig.deliver();
    rig.kill(3);
    for at in [1, 2] {
        assert!(rig.member(at, 3).is_none() && rig.map(at).units(7) == 1);
    }
    // Gossip is slower.
    rig.sees(1, &[2, 3]);
    rig.sees(2, &[1, 3]);
    rig.charge(1, 8);
    rig.settle();
    assert_eq!(rig.acknowledged(1), rig.status(1).flush);
    assert!(rig.member(1, 3).is_none());
}

#[test]
fn that_a_member_has_left_is_known_to_all_to_whom_one_tells_it() {
    let mut rig = Rig::of(3);
    rig.kill(3);
    rig.sees_left(1, 3, &[2]);
    rig.deliver();
    assert!(rig.member(2, 3).is_none());
    rig.start(4, "d");
    rig.sees(4, &[2]);
    rig.sees(2, &[1, 4]);
    rig.settle();
    rig.at(4, |engine, map, now| {
        engine.on_membership_changed(map, &[node(2, "b"), node(3, "c")], &[], now)
    });
    assert!(rig.member(4, 3).is_none(), "nor does anybody take it for a member again");
}

#[test]
fn nobody_waits_for_a_joiner_of_which_only_others_have_heard() {
    let mut rig = Rig::of(2);
    rig.start(3, "c");
    rig.sees(3, &[2]);
    rig.sees(2, &[1, 3]);
    rig.settle();
    assert!(rig.member(1, 3).is_some(), "2 has told of it");
    rig.charge(1, 7);
    rig.settle();
    assert_eq!(rig.acknowledged(1), rig.status(1).flush);
    assert_eq!(rig.acknowledged(3), 0, "nor does that one charge freely");
    rig.charge(1, 8);
    rig.tick(1);
    let told = rig.status(1).flush;
    rig.all_see_all();
    assert!(
        rig.member(1, 3).unwrap().acknowledged_flush >= told,
        "and then not for what was told before"
    );
    rig.settle();
    assert!(rig.agree() && rig.acknowledged(3) == rig.status(3).flush);
}
