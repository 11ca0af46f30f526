//! What an acknowledgement means.

use slidegate_cluster::message::{Ack, Message, Position, ack_frame};
use slidegate_cluster::pn_counter::Incarnation;

use crate::rig::{Frame, Rig};

#[test]
fn a_charge_counts_as_acknowledged_once_all_members_have_it() {
    let mut rig = Rig::of(3);
    let before = rig.acknowledged(1);
    rig.charge(1, 7);
    rig.interval();
    rig.deliver_but(|frame| frame.to == 3);
    assert_eq!(rig.acknowledged(1), before, "one of them has it");
    (0..4).for_each(|_| rig.interval());
    rig.deliver();
    assert!(rig.acknowledged(1) > before && rig.acknowledged(1) == rig.status(1).flush);
}

/// 2 has told something that is under way, and acknowledges a charge of 1.
fn acknowledged_with_something_under_way() -> (Rig, Vec<Frame>) {
    let mut rig = Rig::of(2);
    rig.charge(2, 8);
    rig.interval();
    let told = rig.take(|frame| frame.from == 2);
    assert_eq!(told.len(), 1);
    rig.charge(1, 7);
    rig.interval();
    rig.deliver();
    assert_eq!(rig.map(2).units(7), 1, "it has heard of the charge");
    (rig, told)
}

#[test]
fn an_acknowledgement_counts_only_once_all_has_come_that_its_sender_had_told() {
    let (mut rig, told) = acknowledged_with_something_under_way();
    assert!(rig.acknowledged(1) < rig.status(1).flush, "what was told before has not come");
    told.iter().for_each(|frame| rig.hand_over(frame));
    assert_eq!(rig.acknowledged(1), rig.status(1).flush);
}

#[test]
fn what_was_lost_before_an_acknowledgement_may_come_with_a_later_epoch() {
    let (mut rig, _lost) = acknowledged_with_something_under_way();
    rig.settle();
    assert_eq!(rig.acknowledged(1), rig.status(1).flush);
    assert_eq!(rig.map(1).units(8), 1);
}

#[test]
fn a_forged_acknowledgement_of_what_was_never_sent_counts_for_nothing() {
    let mut rig = Rig::of(2);
    rig.charge(1, 7);
    rig.interval();
    let sent = rig.take(|frame| frame.from == 1);
    let Message::Updates(counts) = sent[0].message() else { panic!("{sent:?}") };
    let next = Position { seq: counts.position.seq + 1, ..counts.position };
    let other = Position { epoch: counts.position.epoch + 1, ..counts.position };
    let before = rig.acknowledged(1);
    for heard in [next, other, Position { seq: u64::MAX, ..counts.position }] {
        let ack = ack_frame(&Ack { received: heard, sent: Position { epoch: 1, seq: 1 } });
        rig.at(1, |engine, map, now| engine.on_frame_received(map, Incarnation(2), &ack, now));
    }
    assert_eq!(rig.acknowledged(1), before);
}

#[test]
fn an_acknowledgement_that_is_lost_is_given_again() {
    let mut rig = Rig::of(2);
    rig.charge(1, 7);
    rig.interval();
    rig.deliver_but(Frame::is_ack);
    assert!(rig.acknowledged(1) < rig.status(1).flush && rig.map(2).units(7) == 1);
    rig.settle();
    assert_eq!(rig.acknowledged(1), rig.status(1).flush);
}

#[test]
fn a_peer_is_acknowledged_to_only_with_what_it_was_told_first() {
    let mut rig = Rig::new();
    rig.start(1, "a");
    rig.charge(1, 7);
    rig.start(2, "b");
    rig.charge(2, 7);
    rig.sees(1, &[2]);
    rig.sees(2, &[1]);
    // What 1 begins its stream with is late.
    let begun = rig.take(|frame| frame.from == 1);
    rig.deliver();
    let acks = rig.member(2, 1).unwrap().received.frames;
    assert!(acks > 0 && rig.acknowledged(2) == 0, "2 does not know what 1 has counted");
    begun.iter().for_each(|frame| rig.hand_over(frame));
    rig.settle();
    assert_eq!((rig.map(2).units(7), rig.acknowledged(2)), (2, rig.status(2).flush));
}
