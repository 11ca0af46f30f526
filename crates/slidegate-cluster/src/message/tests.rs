use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::counts::{BucketLayout, Incarnation, Tally};

fn number() -> impl Strategy<Value = u64> {
    (0u32..64, any::<u64>()).prop_map(|(bits, number)| number >> bits)
}

fn told() -> impl Strategy<Value = Told> {
    let shape = (1u64..5, 1u32..=1441)
        .prop_map(|(seconds, buckets)| BucketLayout { bucket_us: seconds * 1_000_000, buckets });
    let near = (1_700_000_000u64..1_700_000_010).boxed();
    let bucket = prop_oneof![9 => near, 1 => any::<u64>().boxed()];
    (0u64..6, shape, 0u64..4, bucket, number(), prop_oneof![3 => Just(0), 1 => number()]).prop_map(
        |(key, shape, incarnation, bucket, charged, given_back)| Told {
            key: key.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            shape,
            incarnation: Incarnation(incarnation),
            bucket,
            tally: Tally { charged, given_back },
        },
    )
}

fn position() -> impl Strategy<Value = Position> {
    (number(), number()).prop_map(|(epoch, seq)| Position { epoch: epoch.max(1), seq: seq.max(1) })
}

fn roster() -> impl Strategy<Value = Roster> {
    let listed =
        (number(), "[a-zä-ö.-]{0,20}", any::<bool>()).prop_map(|(incarnation, name, has_left)| {
            Listed { incarnation: Incarnation(incarnation), name: name.into(), has_left }
        });
    (any::<bool>(), vec(listed, 0..12))
        .prop_map(|(is_settled, listed)| Roster { is_settled, listed })
}

/// A frame of any kind.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let counts =
        (position(), vec(told(), 1..60)).prop_map(|(at, tallies)| Body::of(&tallies)[0].frame(at));
    let rosters = (position(), roster(), any::<bool>())
        .prop_map(|(at, roster, is_complete)| Body::of_roster(&roster, is_complete).frame(at));
    let acks = (position(), position()).prop_map(|(heard, sent)| ack_frame(&Ack { heard, sent }));
    prop_oneof![4 => counts, 2 => rosters, 1 => acks, 1 => Just(leaving_frame())]
}

fn counts(frame: &[u8]) -> Counts {
    match decode(frame) {
        Ok(Message::Counts(counts)) => counts,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn tallies_come_back_as_they_were_told(at in position(), tallies in vec(told(), 1..200)) {
        let bodies = Body::of(&tallies);
        prop_assert_eq!(bodies.len(), 1);
        let expected = Counts { at, is_complete: false, roster: None, tallies };
        prop_assert_eq!(counts(&bodies[0].frame(at)), expected);
    }

    #[test]
    fn a_roster_comes_back(at in position(), roster in roster(), is_complete in any::<bool>()) {
        let frame = Body::of_roster(&roster, is_complete).frame(at);
        let expected = Counts { at, is_complete, roster: Some(roster), tallies: Vec::new() };
        prop_assert_eq!(counts(&frame), expected);
    }

    #[test]
    fn an_acknowledgement_comes_back(heard in position(), sent in position()) {
        let ack = Ack { heard, sent };
        prop_assert_eq!(decode(&ack_frame(&ack)), Ok(Message::Ack(ack)));
    }

    #[test]
    fn what_is_cut_off_is_no_message(frame in frame(), cut in any::<prop::sample::Index>()) {
        prop_assert!(decode(&frame[..cut.index(frame.len())]).is_err());
    }

    #[test]
    fn what_is_added_is_no_message(frame in frame(), more in vec(any::<u8>(), 1..9)) {
        prop_assert!(decode(&[frame, more].concat()).is_err());
    }

    /// A flipped bit may make another message, but not two forms of one, and no panic.
    #[test]
    fn a_flipped_bit_is_an_error_or_another_message(
        frame in frame(),
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let mut flipped = frame.clone();
        flipped[at.index(frame.len())] ^= 1 << bit;
        if let Ok(message) = decode(&flipped) {
            prop_assert_ne!(Ok(message), decode(&frame));
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(kind in 0u8..16, bytes in vec(any::<u8>(), 0..400)) {
        let _ = decode(&bytes);
        let _ = decode(&[&[VERSION, kind], &bytes[..]].concat());
    }
}

#[test]
fn a_changed_key_takes_a_dozen_bytes() {
    let told = |key: u64| Told {
        key: key.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        shape: BucketLayout { bucket_us: 60_000_000, buckets: 2 },
        incarnation: Incarnation(1_700_000_000_000_000),
        bucket: 28_333_333 + key % 2,
        tally: Tally { charged: key % 300, given_back: 0 },
    };
    let tallies: Vec<Told> = (0..1_000).map(told).collect();
    let bytes = Body::of(&tallies)[0].frame(Position { epoch: 1, seq: 1 }).len();
    assert!((11_000..=12_000).contains(&bytes), "{bytes} bytes for 1,000 keys");
}

#[test]
fn what_does_not_fit_into_one_frame_goes_into_several() {
    let told = |key: u64| Told {
        key: u64::MAX - key,
        shape: BucketLayout { bucket_us: u64::MAX - key, buckets: 1441 },
        incarnation: Incarnation(u64::MAX),
        bucket: u64::MAX / 2,
        tally: Tally { charged: u64::MAX, given_back: u64::MAX },
    };
    let tallies: Vec<Told> = (0..5_000).map(told).collect();
    let bodies = Body::of(&tallies);
    assert!(bodies.len() > 1);
    let place = Position { epoch: u64::MAX, seq: u64::MAX };
    let frames = bodies.iter().map(|body| body.frame(place));
    let back = frames.flat_map(|frame| {
        assert!(frame.len() <= MAX_BYTES);
        counts(&frame).tallies
    });
    assert!(back.eq(tallies));
}

#[test]
fn the_largest_roster_fits_into_a_frame() {
    let listed = |nth: u64| Listed {
        incarnation: Incarnation(u64::MAX - nth),
        name: "ä".repeat(200).into(),
        has_left: true,
    };
    let roster = Roster { is_settled: true, listed: (0..300).map(listed).collect() };
    let place = Position { epoch: u64::MAX, seq: u64::MAX };
    let frame = Body::of_roster(&roster, true).frame(place);
    assert!(frame.len() <= MAX_BYTES);
    let back = counts(&frame).roster.unwrap();
    assert_eq!(back.listed.len(), MAX_LISTED);
    assert_eq!(&*back.listed[0].name, "ä".repeat(127), "whole letters, as many as have room");
}

#[test]
fn what_is_wrong_is_told() {
    let ack = Ack { heard: Position { epoch: 1, seq: 2 }, sent: Position { epoch: 3, seq: 4 } };
    let frame = ack_frame(&ack);
    let with = |at: usize, byte: u8| {
        let mut frame = frame.clone();
        frame[at] = byte;
        decode(&frame)
    };
    assert_eq!(decode(&[]), Err(MessageError::Truncated));
    assert_eq!(decode(&vec![0; MAX_BYTES + 1]), Err(MessageError::TooLong(MAX_BYTES + 1)));
    assert_eq!(with(0, 2), Err(MessageError::Version(2)));
    assert_eq!(with(1, 3), Err(MessageError::Kind(3)));
    assert_eq!(with(1, ACK | COMPLETE), Err(MessageError::Kind(ACK | COMPLETE)));
    assert_eq!(with(3, 0), Err(MessageError::Position));
    assert_eq!(with(5, 0x80), Err(MessageError::Truncated), "the number has no end");
    assert_eq!(decode(&[&frame[..5], &[0x84, 0]].concat()), Err(MessageError::Number));
    assert_eq!(decode(&[&frame[..], &[0]].concat()), Err(MessageError::LeftOver(1)));
}

#[test]
fn nothing_is_allocated_because_a_number_says_so() {
    let claims = |counts: &[u64]| {
        let mut frame = vec![VERSION, COUNTS, 1, 1];
        counts.iter().for_each(|count| put(&mut frame, *count));
        decode(&frame)
    };
    assert_eq!(claims(&[u64::MAX]), Err(MessageError::Truncated), "slots");
    assert_eq!(claims(&[0, u64::MAX]), Err(MessageError::Truncated), "tallies");
    assert_eq!(claims(&[0, 1, 0, 0, 0]), Err(MessageError::Slot));
    assert_eq!(claims(&[1, 0, 2, 7, 0, 0]), Err(MessageError::BucketLayout));
    assert_eq!(claims(&[1, 5, 1442, 7, 0, 0]), Err(MessageError::BucketLayout));
    assert_eq!(claims(&[1, 5, 2, 7, 0, 1, 1, 0, 0]), Err(MessageError::Key));
}
