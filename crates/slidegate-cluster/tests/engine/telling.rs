//! What is told arrives, whatever happens on the way, and costs what it may.

use std::time::Duration;

use slidegate::Timestamp;
use slidegate_cluster::message::{FrameBody, Position};
use slidegate_cluster::pn_counter::{CounterUpdate, Incarnation, PnCounter};
use slidegate_cluster::replicated_counters::ReplicatedCounters;

use crate::map::SHAPE;
use crate::rig::{INTERVAL, Rig};

#[test]
fn what_is_charged_is_known_everywhere_after_a_tick() {
    let mut rig = Rig::of(3);
    rig.charge(1, 7);
    rig.interval();
    rig.deliver();
    assert!((1..=3).all(|at| rig.map(at).units(7) == 1));
}

#[test]
fn a_flush_does_not_wait_for_a_tick() {
    let mut rig = Rig::of(2);
    rig.charge(1, 7);
    rig.at(1, |engine, map, now| engine.flush(map, now));
    rig.deliver();
    assert_eq!((rig.map(2).units(7), rig.acknowledged(1)), (1, rig.status(1).flush));
    rig.at(1, |engine, map, now| engine.flush(map, now));
    assert!(rig.network.is_empty(), "nothing has changed since");
}

#[test]
fn what_is_lost_is_told_anew() {
    let mut rig = Rig::of(3);
    for key in 0..3 {
        rig.charge(1, key);
        rig.interval();
        rig.deliver_but(|frame| frame.to == 2);
    }
    assert!(rig.map(2).units(0) == 0 && rig.map(3).units(2) == 1);
    (0..4).for_each(|_| {
        rig.deliver();
        rig.interval();
    });
    rig.deliver();
    assert!(rig.agree() && rig.acknowledged(1) == rig.status(1).flush);
}

#[test]
fn what_comes_twice_or_late_changes_nothing() {
    let mut rig = Rig::of(3);
    let mut rng = fastrand::Rng::with_seed(5);
    let mut all = Vec::new();
    for _ in 0..30 {
        rig.charge(rng.u64(1..=3), rng.u64(..5));
        rig.interval();
        all.extend(rig.network.iter().cloned());
        rig.deliver();
    }
    let (tallies, acknowledged) = (rig.map(2).tallies(), rig.acknowledged(2));
    for _ in 0..3 {
        rng.shuffle(&mut all);
        all.iter().for_each(|frame| rig.hand_over(frame));
        rig.network.clear();
    }
    assert!(rig.agree() && rig.map(2).tallies() == tallies);
    assert_eq!(rig.acknowledged(2), acknowledged, "replayed acknowledgements are nothing new");
}

#[test]
fn what_comes_out_of_order_needs_not_come_again() {
    let mut rig = Rig::of(2);
    for key in 0..5 {
        rig.charge(1, key);
        rig.at(1, |engine, map, now| engine.flush(map, now));
    }
    let epochs = rig.member(1, 2).unwrap().epochs;
    let frames = rig.take(|_| true);
    frames.iter().rev().for_each(|frame| rig.hand_over(frame));
    rig.deliver();
    assert!(rig.agree() && rig.acknowledged(1) == rig.status(1).flush);
    assert_eq!(rig.member(1, 2).unwrap().epochs, epochs);
}

#[test]
fn a_link_that_comes_up_is_told_at_once_what_may_be_lost() {
    let mut rig = Rig::of(2);
    rig.charge(1, 7);
    rig.interval();
    rig.network.clear();
    rig.at(1, |engine, map, now| engine.on_link_up(map, Incarnation(2), now));
    rig.deliver();
    assert_eq!(rig.map(2).units(7), 1);
    rig.at(1, |engine, map, now| engine.on_link_up(map, Incarnation(2), now));
    assert!(rig.network.is_empty(), "nothing was on its way");
}

#[test]
fn a_peer_of_which_nothing_is_heard_is_told_ever_more_rarely() {
    let mut rig = Rig::of(2);
    rig.charge(1, 7);
    let epochs = rig.member(1, 2).unwrap().epochs;
    for _ in 0..100 {
        rig.interval();
        rig.network.clear();
    }
    let begun = rig.member(1, 2).unwrap().epochs - epochs;
    assert!((4..=9).contains(&begun), "{begun} times in 100 intervals");
}

#[test]
fn an_interval_sends_no_more_than_its_bytes_and_all_is_told_in_the_end() {
    let mut rig = Rig::new();
    rig.settings.interval_bytes = 200_000;
    rig.start(1, "a");
    for key in 0..60_000 {
        rig.charge(1, key << 20);
    }
    rig.start(2, "b");
    rig.all_see_all();
    let mut intervals = 0;
    while rig.map(2).tallies().len() < 60_000 {
        let bytes: usize = rig.network.iter().map(|frame| frame.bytes.len()).sum();
        assert!(bytes <= 200_000 + 1_000, "{bytes} bytes");
        rig.deliver();
        rig.interval();
        intervals += 1;
        assert!(intervals < 8, "what begins anew again and again never comes to an end");
    }
    rig.deliver();
    assert_eq!(rig.member(1, 2).unwrap().epochs, 1);
}

#[test]
fn what_changes_a_lot_is_told_within_the_bytes_too() {
    let mut rig = Rig::new();
    rig.settings.interval_bytes = 200_000;
    rig.start(1, "a");
    rig.start(2, "b");
    rig.all_see_all();
    rig.settle();
    for key in 0..20_000 {
        rig.charge(1, key << 20);
    }
    for _ in 0..5 {
        rig.interval();
        let bytes: usize = rig.network.iter().map(|frame| frame.bytes.len()).sum();
        assert!(bytes <= 110_000, "half is for what has changed, not {bytes} bytes");
        rig.deliver();
    }
    assert!(rig.agree());
}

#[test]
fn a_cluster_of_one_says_nothing_and_waits_for_nobody() {
    let mut rig = Rig::new();
    rig.start(1, "a");
    rig.charge(1, 7);
    rig.interval();
    rig.at(1, |engine, map, now| engine.flush(map, now));
    assert!(rig.network.is_empty() && rig.sites[&1].progress.load().is_alone());
    assert_eq!(rig.status(1).flush, 0);
    let mut told = Vec::new();
    rig.map(1).visit_changed_since(0, false, rig.now, &mut |tally| told.push(tally));
    assert_eq!(told.len(), 1, "and nothing was taken off the ledger");
}

#[test]
fn a_quiet_cluster_is_quiet() {
    let mut rig = Rig::of(3);
    for _ in 0..100 {
        rig.interval();
        assert!(rig.network.is_empty());
    }
}

#[test]
fn tallies_dated_absurdly_far_in_the_future_are_refused_and_counted() {
    let mut rig = Rig::of(2);
    let skew = rig.settings.max_clock_skew;
    let span = Duration::from_micros(SHAPE.lifetime_us());
    let latest = SHAPE.bucket(rig.now.after(skew).after(span));
    let told = |key, bucket| CounterUpdate {
        key,
        layout: SHAPE,
        incarnation: Incarnation(2),
        bucket,
        units: PnCounter { charged: 1, removed: 0 },
    };
    let tallies = [told(1, latest), told(2, latest + 1), told(3, u64::MAX)];
    let frame = FrameBody::from_updates(&tallies)[0].to_frame(Position { epoch: 90, seq: 1 });
    rig.at(1, |engine, map, now| engine.on_frame_received(map, Incarnation(2), &frame, now));
    assert_eq!([1, 2, 3].map(|key| rig.map(1).units(key)), [1, 0, 0]);
    assert_eq!(rig.member(1, 2).unwrap().rejected_updates, 2);
}

#[test]
fn what_is_no_message_is_counted_and_changes_nothing() {
    let mut rig = Rig::of(2);
    let before = rig.status(1);
    for (from, frame) in [(2, &[9, 9][..]), (2, &[]), (77, &[1, 1, 1])] {
        rig.at(1, |engine, map, now| engine.on_frame_received(map, Incarnation(from), frame, now));
    }
    let after = rig.status(1);
    assert_eq!((after.members[0].rejected_frames, after.rejected_frames), (2, 1));
    assert_eq!(after.members[0].acknowledged_flush, before.members[0].acknowledged_flush);
    assert!(rig.network.is_empty());
}

#[test]
fn nobody_tells_a_node_of_itself() {
    let mut rig = Rig::of(2);
    let told = CounterUpdate {
        key: 7,
        layout: SHAPE,
        incarnation: Incarnation(1),
        bucket: SHAPE.bucket(rig.now),
        units: PnCounter { charged: 1_000, removed: 0 },
    };
    let frame = FrameBody::from_updates(&[told])[0].to_frame(Position { epoch: 90, seq: 1 });
    rig.at(1, |engine, map, now| engine.on_frame_received(map, Incarnation(2), &frame, now));
    rig.at(1, |engine, map, now| engine.on_frame_received(map, Incarnation(1), &frame, now));
    assert_eq!(rig.map(1).units(7), 0);
}

#[test]
fn the_status_tells_how_far_a_member_lags_behind() {
    let mut rig = Rig::of(2);
    rig.charge(1, 7);
    rig.interval();
    let told_at = rig.now;
    rig.network.clear();
    rig.charge(1, 8);
    rig.interval();
    rig.network.clear();
    let lag = Duration::from_micros(rig.now.as_micros() - told_at.as_micros());
    assert_eq!((rig.member(1, 2).unwrap().lag, lag), (INTERVAL, INTERVAL));
    rig.settle();
    assert_eq!(rig.member(1, 2).unwrap().lag, Duration::ZERO);
    let (sent, heard) = (rig.member(1, 2).unwrap().sent, rig.member(2, 1).unwrap().received);
    assert!(heard.frames < sent.frames && heard.bytes < sent.bytes, "some were lost");
    assert!(rig.now > Timestamp::default());
}
