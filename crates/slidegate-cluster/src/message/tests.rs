use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::pn_counter::{BucketLayout, Incarnation, PnCounter};

fn u64_of_any_bit_length() -> impl Strategy<Value = u64> {
    (0u32..64, any::<u64>()).prop_map(|(bits, number)| number >> bits)
}

fn any_counter_update() -> impl Strategy<Value = CounterUpdate> {
    let layout = (1u64..5, 1u32..=1441).prop_map(|(seconds, buckets)| BucketLayout {
        bucket_us: seconds * 1_000_000,
        buckets,
        drift_us: u64::from(buckets % 3) * 100_000,
    });
    let near = (1_700_000_000u64..1_700_000_010).boxed();
    let bucket = prop_oneof![9 => near, 1 => any::<u64>().boxed()];
    (
        0u64..6,
        layout,
        0u64..4,
        bucket,
        u64_of_any_bit_length(),
        prop_oneof![3 => Just(0), 1 => u64_of_any_bit_length()],
    )
        .prop_map(|(key, layout, incarnation, bucket, charged, removed)| CounterUpdate {
            key: key.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            layout,
            incarnation: Incarnation(incarnation),
            bucket,
            units: PnCounter { charged, removed },
        })
}

fn any_stream_position() -> impl Strategy<Value = Position> {
    (u64_of_any_bit_length(), u64_of_any_bit_length())
        .prop_map(|(epoch, seq)| Position { epoch: epoch.max(1), seq: seq.max(1) })
}

fn any_roster() -> impl Strategy<Value = Roster> {
    let entries = (u64_of_any_bit_length(), "[a-zä-ö.-]{0,20}", any::<bool>()).prop_map(
        |(incarnation, name, has_left)| RosterEntry {
            incarnation: Incarnation(incarnation),
            name: name.into(),
            has_left,
        },
    );
    (any::<bool>(), vec(entries, 0..12))
        .prop_map(|(is_settled, entries)| Roster { is_settled, entries })
}

/// Generates a valid frame with any kind of message.
fn any_valid_frame() -> impl Strategy<Value = Vec<u8>> {
    let counts = (any_stream_position(), vec(any_counter_update(), 1..60))
        .prop_map(|(position, updates)| FrameBody::from_updates(&updates)[0].to_frame(position));
    let rosters = (any_stream_position(), any_roster(), any::<bool>()).prop_map(
        |(position, roster, is_complete)| {
            FrameBody::from_roster(&roster, is_complete).to_frame(position)
        },
    );
    let acks = (any_stream_position(), any_stream_position())
        .prop_map(|(received, sent)| ack_frame(&Ack { received, sent }));
    prop_oneof![4 => counts, 2 => rosters, 1 => acks, 1 => Just(leaving_frame())]
}

fn decode_update_frame(frame: &[u8]) -> UpdateFrame {
    match decode(frame) {
        Ok(Message::Updates(counts)) => counts,
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn updates_round_trip(position in any_stream_position(), updates in vec(any_counter_update(), 1..200)) {
        let bodies = FrameBody::from_updates(&updates);
        prop_assert_eq!(bodies.len(), 1);
        let expected = UpdateFrame { position, is_complete: false, roster: None, updates };
        prop_assert_eq!(decode_update_frame(&bodies[0].to_frame(position)), expected);
    }

    #[test]
    fn roster_round_trips(position in any_stream_position(), roster in any_roster(), is_complete in any::<bool>()) {
        let frame = FrameBody::from_roster(&roster, is_complete).to_frame(position);
        let expected = UpdateFrame { position, is_complete, roster: Some(roster), updates: Vec::new() };
        prop_assert_eq!(decode_update_frame(&frame), expected);
    }

    #[test]
    fn ack_round_trips(received in any_stream_position(), sent in any_stream_position()) {
        let ack = Ack { received, sent };
        prop_assert_eq!(decode(&ack_frame(&ack)), Ok(Message::Ack(ack)));
    }

    #[test]
    fn truncated_frame_is_rejected(frame in any_valid_frame(), cut in any::<prop::sample::Index>()) {
        prop_assert!(decode(&frame[..cut.index(frame.len())]).is_err());
    }

    #[test]
    fn frame_with_trailing_bytes_is_rejected(frame in any_valid_frame(), more in vec(any::<u8>(), 1..9)) {
        prop_assert!(decode(&[frame, more].concat()).is_err());
    }

    /// Decodes a frame with one flipped bit. The result may be another message, but never the same message, since each
    /// message has exactly one encoding.
    #[test]
    fn flipped_bit_never_decodes_to_same_message(
        frame in any_valid_frame(),
        position in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let mut flipped = frame.clone();
        flipped[position.index(frame.len())] ^= 1 << bit;
        if let Ok(message) = decode(&flipped) {
            prop_assert_ne!(Ok(message), decode(&frame));
        }
    }

    #[test]
    fn decoding_arbitrary_bytes_does_not_panic(kind in 0u8..16, bytes in vec(any::<u8>(), 0..400)) {
        let _ = decode(&bytes);
        let _ = decode(&[&[VERSION, kind], &bytes[..]].concat());
    }
}

#[test]
fn encoded_update_needs_at_most_twelve_bytes() {
    let update = |key: u64| CounterUpdate {
        key: key.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        layout: BucketLayout { bucket_us: 60_000_000, buckets: 2, drift_us: 0 },
        incarnation: Incarnation(1_700_000_000_000_000),
        bucket: 28_333_333 + key % 2,
        units: PnCounter { charged: key % 300, removed: 0 },
    };
    let updates: Vec<CounterUpdate> = (0..1_000).map(update).collect();
    let bytes = FrameBody::from_updates(&updates)[0].to_frame(Position { epoch: 1, seq: 1 }).len();
    assert!((11_000..=12_000).contains(&bytes), "{bytes} bytes for 1,000 keys");
}

#[test]
fn many_updates_are_split_into_several_frames() {
    let update = |key: u64| CounterUpdate {
        key: u64::MAX - key,
        layout: BucketLayout { bucket_us: u64::MAX - key, buckets: 1441, drift_us: 0 },
        incarnation: Incarnation(u64::MAX),
        bucket: u64::MAX / 2,
        units: PnCounter { charged: u64::MAX, removed: u64::MAX },
    };
    let updates: Vec<CounterUpdate> = (0..5_000).map(update).collect();
    let bodies = FrameBody::from_updates(&updates);
    assert!(bodies.len() > 1);
    let place = Position { epoch: u64::MAX, seq: u64::MAX };
    let frames = bodies.iter().map(|body| body.to_frame(place));
    let decoded = frames.flat_map(|frame| {
        assert!(frame.len() <= MAX_MESSAGE_BYTES);
        decode_update_frame(&frame).updates
    });
    assert!(decoded.eq(updates));
}

#[test]
fn largest_roster_fits_into_one_frame() {
    let entries = |nth: u64| RosterEntry {
        incarnation: Incarnation(u64::MAX - nth),
        name: "ä".repeat(200).into(),
        has_left: true,
    };
    let roster = Roster { is_settled: true, entries: (0..300).map(entries).collect() };
    let place = Position { epoch: u64::MAX, seq: u64::MAX };
    let frame = FrameBody::from_roster(&roster, true).to_frame(place);
    assert!(frame.len() <= MAX_MESSAGE_BYTES);
    let decoded = decode_update_frame(&frame).roster.unwrap();
    assert_eq!(decoded.entries.len(), MAX_ROSTER_ENTRIES);
    assert_eq!(&*decoded.entries[0].name, "ä".repeat(127), "truncated at a character boundary");
}

#[test]
fn invalid_frames_return_specific_errors() {
    let ack = Ack { received: Position { epoch: 1, seq: 2 }, sent: Position { epoch: 3, seq: 4 } };
    let frame = ack_frame(&ack);
    let decode_with = |position: usize, byte: u8| {
        let mut frame = frame.clone();
        frame[position] = byte;
        decode(&frame)
    };
    assert_eq!(decode(&[]), Err(MessageError::Truncated));
    assert_eq!(
        decode(&vec![0; MAX_MESSAGE_BYTES + 1]),
        Err(MessageError::TooLong(MAX_MESSAGE_BYTES + 1))
    );
    assert_eq!(decode_with(0, 2), Err(MessageError::UnsupportedVersion(2)));
    assert_eq!(decode_with(1, 3), Err(MessageError::UnknownKind(3)));
    assert_eq!(
        decode_with(1, MESSAGE_KIND_ACK | MESSAGE_FLAG_INITIAL_STATE_COMPLETE),
        Err(MessageError::UnknownKind(MESSAGE_KIND_ACK | MESSAGE_FLAG_INITIAL_STATE_COMPLETE))
    );
    assert_eq!(decode_with(3, 0), Err(MessageError::InvalidPosition));
    assert_eq!(decode_with(5, 0x80), Err(MessageError::Truncated), "integer without a last byte");
    assert_eq!(decode(&[&frame[..5], &[0x84, 0]].concat()), Err(MessageError::InvalidNumber));
    assert_eq!(decode(&[&frame[..], &[0]].concat()), Err(MessageError::TrailingBytes(1)));
}

#[test]
fn counts_larger_than_frame_are_rejected() {
    let decode_counts = |counts: &[u64]| {
        let mut frame = vec![VERSION, MESSAGE_KIND_UPDATES, 1, 1];
        counts.iter().for_each(|count| write_varint(&mut frame, *count));
        decode(&frame)
    };
    assert_eq!(decode_counts(&[u64::MAX]), Err(MessageError::Truncated), "slots");
    assert_eq!(decode_counts(&[0, u64::MAX]), Err(MessageError::Truncated), "updates");
    assert_eq!(decode_counts(&[0, 1, 0, 0, 0]), Err(MessageError::UnknownGroup));
    assert_eq!(decode_counts(&[1, 0, 2, 0, 7, 0, 0]), Err(MessageError::InvalidShape));
    assert_eq!(decode_counts(&[1, 5, 1442, 0, 7, 0, 0]), Err(MessageError::InvalidShape));
    assert_eq!(decode_counts(&[1, 5, 2, 5, 7, 0, 0]), Err(MessageError::InvalidShape), "drift");
    assert_eq!(decode_counts(&[1, 5, 2, 0, 7, 0, 1, 1, 0, 0]), Err(MessageError::MissingKey));
}
