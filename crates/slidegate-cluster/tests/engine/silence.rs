//! Members that are not heard of: who waits for them, for how long, and what they are told when they come back.

use std::time::Duration;

use slidegate_cluster::message::Message;
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::replication::Liveness;

use crate::map::SHAPE;
use crate::rig::{Frame, Rig};

/// So long a silent member is waited for: until the window has passed, on the clock that is furthest off.
const WAITED_FOR: Duration = Duration::from_secs(22);

/// Cuts a cluster in two, and lets both parts know.
fn part(rig: &mut Rig, one: &[u64], other: &[u64]) {
    for part in [one, other] {
        for at in part {
            let rest: Vec<u64> = part.iter().copied().filter(|peer| peer != at).collect();
            rig.sees(*at, &rest);
        }
    }
    rig.network.clear();
}

/// An interval in which only those of one part hear each other.
fn interval_within(rig: &mut Rig, part: &[u64]) {
    rig.interval();
    rig.deliver_but(|frame| part.contains(&frame.from) != part.contains(&frame.to));
}

fn wait(rig: &mut Rig, part: &[u64], span: Duration) {
    let until = rig.now.after(span);
    while rig.now <= until {
        interval_within(rig, part);
    }
}

#[test]
fn a_majority_waits_for_a_silent_member_until_its_window_has_passed() {
    let mut rig = Rig::of(3);
    part(&mut rig, &[1, 2], &[3]);
    rig.charge(1, 7);
    interval_within(&mut rig, &[1, 2]);
    let told = rig.status(1).flush;
    assert!(rig.acknowledged(1) < told && rig.status(1).is_majority);
    wait(&mut rig, &[1, 2], WAITED_FOR - Duration::from_secs(1));
    assert!(rig.acknowledged(1) < told, "something that it has charged may still count");
    wait(&mut rig, &[1, 2], Duration::from_secs(1));
    assert!(rig.acknowledged(1) >= told);
}

#[test]
fn a_minority_waits_for_as_long_as_the_partition_lasts() {
    let mut rig = Rig::of(3);
    part(&mut rig, &[1, 2], &[3]);
    rig.charge(3, 7);
    wait(&mut rig, &[1, 2], 3 * WAITED_FOR);
    assert!(!rig.status(3).is_majority);
    rig.tick(3);
    assert_eq!(rig.acknowledged(3), rig.member(3, 1).unwrap().acknowledged_flush);
    assert!(
        matches!(rig.member(3, 1).unwrap().liveness, Liveness::Silent(since) if since > 2 * WAITED_FOR)
    );
}

#[test]
fn of_an_even_split_the_side_with_the_smallest_name_is_the_majority() {
    let mut rig = Rig::of(4);
    part(&mut rig, &[2, 1], &[3, 4]);
    let majority: Vec<bool> = (1..=4).map(|at| rig.status(at).is_majority).collect();
    assert_eq!(majority, [true, true, false, false]);
}

#[test]
fn who_comes_to_a_majority_waits_for_a_window_there() {
    let mut rig = Rig::of(3);
    part(&mut rig, &[1, 2], &[3]);
    wait(&mut rig, &[1, 2], 2 * WAITED_FOR);
    // 1 changes sides. 2 may just have charged freely with what 1 acknowledged.
    part(&mut rig, &[2], &[1, 3]);
    rig.sees(1, &[3]);
    rig.sees(3, &[1]);
    rig.network.clear();
    rig.charge(3, 7);
    wait(&mut rig, &[1, 3], Duration::from_secs(10));
    assert!(rig.status(3).is_majority && rig.acknowledged(3) < rig.status(3).flush);
    wait(&mut rig, &[1, 3], WAITED_FOR);
    assert_eq!(rig.acknowledged(3), rig.status(3).flush.max(rig.acknowledged(3)));
    assert!(
        rig.member(3, 2).unwrap().acknowledged_flush < rig.status(3).flush,
        "2 has not heard of it"
    );
}

#[test]
fn a_joiner_on_the_small_side_makes_no_majority_of_it() {
    let mut rig = Rig::of(3);
    part(&mut rig, &[1, 2], &[3]);
    for (nth, name) in [(4, "d"), (5, "e"), (6, "f")] {
        rig.start(nth, name);
    }
    let small = [3, 4, 5, 6];
    for at in small {
        let others: Vec<u64> = small.into_iter().filter(|other| *other != at).collect();
        rig.sees(at, &others);
    }
    wait(&mut rig, &small, 2 * WAITED_FOR);
    assert!(
        small.iter().all(|at| !rig.status(*at).is_majority && rig.status(*at).members.len() == 5)
    );
    assert!(small[1..].iter().all(|at| !rig.status(*at).is_joining && !rig.status(*at).is_settled));
}

#[test]
fn a_node_may_start_anew_while_another_is_dead() {
    let mut rig = Rig::of(5);
    rig.kill(5);
    rig.kill(4);
    rig.start(14, "d");
    rig.all_see_all();
    rig.settle();
    assert!(rig.status(14).is_settled, "a majority knows it");
    assert!([1, 2, 3, 14].iter().all(|at| rig.status(*at).is_majority));
}

#[test]
fn survivors_tell_each_other_what_the_dead_had_counted() {
    let mut rig = Rig::of(3);
    rig.charge(3, 7);
    rig.interval();
    rig.deliver_but(|frame| frame.to == 2);
    rig.kill(3);
    assert_eq!((rig.map(1).units(7), rig.map(2).units(7)), (1, 0));
    rig.sees(1, &[2]);
    rig.sees(2, &[1]);
    rig.interval();
    // What they tell is lost, too.
    rig.network.clear();
    rig.settle();
    assert!(rig.agree() && rig.map(2).units(7) == 1);
}

#[test]
fn what_comes_late_from_the_dead_is_passed_on() {
    let mut rig = Rig::of(3);
    rig.charge(3, 7);
    rig.interval();
    let late = rig.take(|frame| frame.from == 3 && frame.to == 1);
    rig.network.clear();
    rig.kill(3);
    rig.sees(1, &[2]);
    rig.sees(2, &[1]);
    rig.settle();
    late.iter().for_each(|frame| rig.hand_over(frame));
    rig.settle();
    assert!(rig.agree() && rig.map(2).units(7) == 1);
}

/// Frames of a silent member that still come are counted, and not acknowledged.
#[test]
fn nothing_is_acknowledged_to_a_silent_member_before_it_is_told_all() {
    let mut rig = Rig::of(3);
    part(&mut rig, &[1, 2], &[3]);
    // 3 has noticed nothing: it sees both, and they hear it.
    rig.sees(3, &[1, 2]);
    rig.network.clear();
    rig.charge(1, 7);
    rig.charge(3, 7);
    rig.interval();
    rig.deliver();
    assert!(rig.map(1).units(7) == 2 && rig.map(3).units(7) == 1, "it was heard, and told nothing");
    assert!(rig.acknowledged(3) < rig.status(3).flush);
    rig.all_see_all();
    let told = |frame: &Frame| frame.to == 3 && matches!(frame.message(), Message::Updates(_));
    let late = rig.take(told);
    assert!(!late.is_empty());
    rig.deliver();
    rig.interval();
    rig.deliver_but(told);
    assert!(rig.acknowledged(3) < rig.status(3).flush, "not before what it was told has come");
    late.iter().for_each(|frame| rig.hand_over(frame));
    rig.settle();
    assert!(rig.agree() && rig.acknowledged(3) == rig.status(3).flush);
}

#[test]
fn who_comes_back_learns_of_those_that_came_and_went_meanwhile() {
    let mut rig = Rig::of(3);
    part(&mut rig, &[1, 2], &[3]);
    rig.start(4, "d");
    rig.sees(1, &[2, 4]);
    rig.sees(2, &[1, 4]);
    rig.sees(4, &[1, 2]);
    rig.charge(4, 7);
    wait(&mut rig, &[1, 2, 4], Duration::from_secs(2));
    rig.kill(4);
    rig.sees(1, &[2]);
    rig.sees(2, &[1]);
    wait(&mut rig, &[1, 2], Duration::from_secs(2));
    rig.all_see_all();
    rig.settle();
    assert_eq!(rig.map(3).units(7), 1);
    assert!(rig.member(3, 4).is_some(), "it counts whom the others count");
}

#[test]
fn a_member_that_comes_back_has_to_acknowledge_what_went_on_without_it() {
    let mut rig = Rig::of(3);
    part(&mut rig, &[1, 2], &[3]);
    rig.charge(1, 7);
    wait(&mut rig, &[1, 2], 2 * WAITED_FOR);
    assert!(rig.acknowledged(1) >= rig.status(1).flush);
    rig.all_see_all();
    assert!(rig.acknowledged(1) < rig.status(1).flush);
    rig.settle();
    assert_eq!(rig.acknowledged(1), rig.status(1).flush);
}

#[test]
fn who_was_forgotten_may_come_back() {
    let mut rig = Rig::new();
    rig.settings.silent_timeout = Duration::from_secs(60);
    (1..=3).for_each(|nth| {
        rig.start(nth, crate::rig::name_of(nth));
        rig.all_see_all();
        rig.settle();
    });
    part(&mut rig, &[1, 2], &[3]);
    wait(&mut rig, &[1, 2], Duration::from_secs(61));
    assert!(rig.member(1, 3).is_none() && rig.member(2, 3).is_none());
    rig.charge(1, 7);
    rig.all_see_all();
    rig.settle();
    assert!(rig.agree() && rig.member(1, 3).is_some());
    assert!((1..=3).all(|at| rig.acknowledged(at) == rig.status(at).flush));
}

#[test]
fn the_status_tells_who_is_silent() {
    let mut rig = Rig::of(3);
    rig.sees(1, &[2]);
    rig.interval();
    assert_eq!(rig.member(1, 2).unwrap().liveness, Liveness::Alive);
    assert_eq!(rig.member(1, 3).unwrap().liveness, Liveness::Silent(crate::rig::INTERVAL));
    assert_eq!(rig.member(1, 3).unwrap().node.incarnation, Incarnation(3));
    assert_eq!(SHAPE.lifetime_us(), 20_000_000);
}
