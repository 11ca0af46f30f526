use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::pn_counter::{BucketLayout, PnCounter};

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

fn u64_of_any_bit_length() -> impl Strategy<Value = u64> {
    (0u32..64, any::<u64>()).prop_map(|(bits, number)| number >> bits)
}

fn any_counter_update() -> impl Strategy<Value = CounterUpdate> {
    let layout = (1u64..5, 1u32..=1441).prop_map(|(seconds, buckets)| BucketLayout {
        bucket_us: seconds * 1_000_000,
        buckets,
        mean_excess_us: u64::from(buckets % 3) * 100_000,
        epoch_offset_in_first_period_s: buckets % 3,
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
    let entries = (u64_of_any_bit_length(), "[a-zä-ö.-]{1,20}", any::<bool>()).prop_map(
        |(incarnation, name, has_left)| RosterEntry {
            incarnation: Incarnation(incarnation),
            name: name.into(),
            has_left,
        },
    );
    (any::<bool>(), vec(entries, 0..12))
        .prop_map(|(is_settled, entries)| Roster { is_settled, entries })
}

fn any_node() -> impl Strategy<Value = NodeInfo> {
    let address = prop::option::of(any::<([u8; 4], u16)>());
    (u64_of_any_bit_length(), "[a-zä-ö.-]{1,20}", address).prop_map(
        |(incarnation, name, address)| NodeInfo {
            incarnation: Incarnation(incarnation),
            name: name.into(),
            address: address.map(|address| address.into()),
        },
    )
}

fn any_members() -> impl Strategy<Value = Vec<MemberEntry>> {
    let entry = (any_node(), u64_of_any_bit_length(), any::<bool>(), any::<bool>(), 0u64..9_000);
    let entry = entry.prop_map(|(node, heartbeat, has_left, is_direct, silent_for_ms)| {
        let silent_for = Duration::from_millis(silent_for_ms);
        MemberEntry { node, heartbeat, has_left, is_direct, silent_for }
    });
    vec(entry, 0..12)
}

/// Generates a valid frame with any kind of message.
fn any_valid_frame() -> impl Strategy<Value = Bytes> {
    let updates = (any_stream_position(), vec(any_counter_update(), 1..60)).prop_map(
        |(position, updates)| FrameBody::from_updates(&updates)[0].to_frame(position, NOW),
    );
    let rosters = (any_stream_position(), any_roster())
        .prop_map(|(position, roster)| FrameBody::from_roster(&roster).to_frame(position, NOW));
    let acks = (any_stream_position(), any_stream_position())
        .prop_map(|(received, sent)| ack_frame(&Ack { received, sent }, NOW));
    let members = any_members().prop_map(|entries| members_frame(&entries, NOW));
    let requests = any::<u64>().prop_map(|epoch| full_state_request_frame(epoch, NOW));
    prop_oneof![4 => updates, 2 => rosters, 1 => acks, 1 => members, 1 => requests]
}

fn decode_message(frame: Bytes) -> Message {
    let received = decode(frame).unwrap();
    assert_eq!(received.sent_at, NOW);
    received.message.unwrap()
}

fn decode_updates(frame: Bytes) -> UpdateFrame {
    match decode_message(frame) {
        Message::Updates(updates) => updates,
        other => panic!("{other:?}"),
    }
}

/// Returns updates in an order that does not depend on their groups.
fn sorted(mut updates: Vec<CounterUpdate>) -> Vec<CounterUpdate> {
    updates.sort_by_key(|update| {
        let PnCounter { charged, removed } = update.units;
        (update.layout, update.incarnation, update.key, update.bucket, charged, removed)
    });
    updates
}

proptest! {
    #[test]
    fn updates_round_trip(position in any_stream_position(), updates in vec(any_counter_update(), 1..200)) {
        let bodies = FrameBody::from_updates(&updates);
        prop_assert_eq!(bodies.len(), 1);
        let decoded = decode_updates(bodies[0].to_frame(position, NOW));
        prop_assert_eq!((decoded.position, decoded.is_complete, decoded.roster), (position, false, None));
        prop_assert_eq!(sorted(decoded.updates), sorted(updates));
    }

    #[test]
    fn roster_round_trips(position in any_stream_position(), roster in any_roster(), is_full in any::<bool>()) {
        let expected = UpdateFrame { position, roster: Some(roster.clone()), ..UpdateFrame::default() };
        let frame = FrameBody::from_roster(&roster).to_frame(position, NOW);
        prop_assert_eq!(decode_updates(frame), expected.clone());
        let frame = FrameBody::end_of_initial_state(&roster, is_full).to_frame(position, NOW);
        prop_assert_eq!(decode_updates(frame), UpdateFrame { is_complete: true, is_full, ..expected });
    }

    #[test]
    fn full_state_request_round_trips(after_epoch in any::<u64>()) {
        let frame = full_state_request_frame(after_epoch, NOW);
        prop_assert_eq!(decode_message(frame), Message::FullStateRequest { after_epoch });
    }

    #[test]
    fn ack_round_trips(received in any_stream_position(), sent in any_stream_position()) {
        let ack = Ack { received, sent };
        prop_assert_eq!(decode_message(ack_frame(&ack, NOW)), Message::Ack(ack));
    }

    #[test]
    fn members_round_trip(entries in any_members()) {
        prop_assert_eq!(decode_message(members_frame(&entries, NOW)), Message::Members(entries));
    }

    #[test]
    fn hello_round_trips(node in any_node()) {
        prop_assert_eq!(decode_hello(hello_frame(&node)), Ok(node));
    }

    /// A later version may add fields.
    #[test]
    fn unknown_fields_are_skipped(frame in any_valid_frame(), number in 100u32..1_000, value in vec(any::<u8>(), 0..20)) {
        let mut extended = frame.to_vec();
        prost::encoding::bytes::encode(number, &value, &mut extended);
        prop_assert_eq!(decode(extended.into()), decode(frame));
    }

    #[test]
    fn decoding_arbitrary_bytes_does_not_panic(bytes in vec(any::<u8>(), 0..400)) {
        let _ = decode(bytes.clone().into());
        let _ = decode_hello(bytes.into());
    }

    #[test]
    fn decoding_changed_frame_does_not_panic(
        frame in any_valid_frame(),
        index in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut changed = frame.to_vec();
        changed[index.index(frame.len())] = byte;
        let _ = decode(changed.into());
        let _ = decode(frame.slice(..index.index(frame.len())));
    }
}

/// Later versions must understand frames of this version.
#[test]
fn recorded_frames_of_this_version_are_decoded() {
    let node = NodeInfo {
        incarnation: Incarnation(0x0102_0304_0506_0708),
        name: "node-1".into(),
        address: Some(([192, 0, 2, 11], 7946).into()),
    };
    let layout = BucketLayout {
        bucket_us: 1_000_000,
        buckets: 61,
        mean_excess_us: 0,
        epoch_offset_in_first_period_s: 0,
    };
    let update = |key, bucket, charged, removed| CounterUpdate {
        key,
        layout,
        incarnation: node.incarnation,
        bucket,
        units: PnCounter { charged, removed },
    };
    let updates = [update(7, 1_700_000_000, 300, 0), update(8, 1_699_999_999, 2, 1)];
    let entry = RosterEntry {
        incarnation: node.incarnation,
        name: node.name.clone().as_ref().into(),
        has_left: true,
    };
    let roster = Roster { is_settled: true, entries: vec![entry] };
    let member = MemberEntry {
        node: node.clone(),
        heartbeat: 5,
        has_left: false,
        is_direct: true,
        silent_for: Duration::from_millis(250),
    };
    let position = Position { epoch: 3, seq: 4 };
    let frames = [
        hello_frame(&node),
        FrameBody::from_updates(&updates)[0].to_frame(position, NOW),
        FrameBody::end_of_initial_state(&roster, true).to_frame(position, NOW),
        ack_frame(&Ack { received: position, sent: Position { epoch: 1, seq: 2 } }, NOW),
        members_frame(&[member], NOW),
        full_state_request_frame(7, NOW),
    ];
    let hex =
        frames.map(|frame| frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    assert_eq!(hex, include_str!("recorded_frames.txt").lines().collect::<Vec<_>>()[..]);
}

#[test]
fn unknown_kind_of_message_is_skipped() {
    let mut frame = wire::Frame { sent_at_us: NOW.as_micros(), kind: None }.encode_to_vec();
    prost::encoding::bytes::encode(15, &b"later".to_vec(), &mut frame);
    assert_eq!(decode(frame.into()), Ok(ReceivedMessage { sent_at: NOW, message: None }));
}

#[test]
fn encoded_update_needs_at_most_twelve_bytes() {
    let update = |key: u64| CounterUpdate {
        key: key.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        layout: BucketLayout {
            bucket_us: 60_000_000,
            buckets: 2,
            mean_excess_us: 0,
            epoch_offset_in_first_period_s: 0,
        },
        incarnation: Incarnation(1_700_000_000_000_000),
        bucket: 28_333_333 + key % 2,
        units: PnCounter { charged: key % 300, removed: 0 },
    };
    let updates: Vec<CounterUpdate> = (0..1_000).map(update).collect();
    let bytes =
        FrameBody::from_updates(&updates)[0].to_frame(Position { epoch: 1, seq: 1 }, NOW).len();
    assert!((10_000..=12_000).contains(&bytes), "{bytes} bytes for 1,000 keys");
}

#[test]
fn many_updates_are_split_into_several_frames() {
    let update = |key: u64| CounterUpdate {
        key: u64::MAX - key,
        layout: BucketLayout {
            bucket_us: u64::MAX - key,
            buckets: 1441,
            mean_excess_us: 0,
            epoch_offset_in_first_period_s: 0,
        },
        incarnation: Incarnation(u64::MAX),
        bucket: u64::MAX / 2,
        units: PnCounter { charged: u64::MAX, removed: u64::MAX },
    };
    let updates: Vec<CounterUpdate> = (0..5_000).map(update).collect();
    let bodies = FrameBody::from_updates(&updates);
    assert!(bodies.len() > 1);
    let place = Position { epoch: u64::MAX, seq: u64::MAX };
    let frames = bodies.iter().map(|body| body.to_frame(place, NOW));
    let decoded = frames.flat_map(|frame| {
        assert!(frame.len() <= MAX_FRAME_BYTES);
        decode_updates(frame).updates
    });
    assert!(decoded.eq(updates));
}

#[test]
fn largest_lists_fit_into_one_frame() {
    let name = "ä".repeat(MAX_NAME_BYTES / 2);
    let address = Some(std::net::SocketAddr::from(([u16::MAX; 8], u16::MAX)));
    let incarnation = Incarnation(u64::MAX);
    let entry = RosterEntry { incarnation, name: name.as_str().into(), has_left: true };
    let roster = Roster { is_settled: true, entries: vec![entry; 300] };
    let place = Position { epoch: u64::MAX, seq: u64::MAX };
    let frame = FrameBody::from_roster(&roster).to_frame(place, NOW);
    assert!(frame.len() <= MAX_FRAME_BYTES);
    assert_eq!(decode_updates(frame).roster.unwrap().entries.len(), MAX_MEMBERS);
    let node = NodeInfo { incarnation, name: name.into(), address };
    let silent_for = Duration::from_millis(u64::MAX);
    let entry =
        MemberEntry { node, heartbeat: u64::MAX, has_left: true, is_direct: true, silent_for };
    let frame = members_frame(&vec![entry; 300], NOW);
    assert!(frame.len() <= MAX_FRAME_BYTES, "{} bytes", frame.len());
    assert!(
        matches!(decode_message(frame), Message::Members(entries) if entries.len() == MAX_MEMBERS)
    );
}

#[test]
fn invalid_values_are_rejected() {
    let decode_kind = |kind| decode(encode(kind, NOW)).unwrap_err();
    let position = wire::Position { epoch: 1, seq: 1 };
    let ack = wire::Ack { received: position, sent: wire::Position { epoch: 1, seq: 0 } };
    assert_eq!(decode_kind(wire::MessageKind::Ack(ack)), MessageError::InvalidPosition);
    let node = |name: &str, address: &str| wire::Node {
        incarnation: 1,
        name: name.to_owned(),
        address: address.to_owned(),
    };
    for node in [node("", ""), node(&"a".repeat(MAX_NAME_BYTES + 1), ""), node("a", "b:1")] {
        let hello = decode_hello(node.encode_to_vec().into());
        assert_eq!(hello, Err(MessageError::InvalidMembers));
        let entries = vec![wire::Member { node, ..wire::Member::default() }];
        let members = wire::MessageKind::Members(wire::Members { entries });
        assert_eq!(decode_kind(members), MessageError::InvalidMembers);
    }
    let entries = vec![wire::Member { node: node("a", ""), ..wire::Member::default() }; 201];
    let members = wire::MessageKind::Members(wire::Members { entries });
    assert_eq!(decode_kind(members), MessageError::InvalidMembers);
    let valid = wire::UpdateGroup {
        bucket_us: 5,
        buckets: 2,
        keys: vec![1],
        bucket_offsets: vec![1],
        charged_units: vec![1],
        ..wire::UpdateGroup::default()
    };
    for group in [
        wire::UpdateGroup { buckets: 0, ..valid.clone() },
        wire::UpdateGroup { buckets: 1_442, ..valid.clone() },
        wire::UpdateGroup { mean_excess_us: 5, ..valid.clone() },
        wire::UpdateGroup { keys: vec![1, 2], ..valid.clone() },
        wire::UpdateGroup { charged_units: vec![], ..valid.clone() },
        wire::UpdateGroup { removed_units: vec![1, 1], ..valid },
    ] {
        let body = wire::UpdatesBody { groups: vec![group], ..wire::UpdatesBody::default() };
        let updates = wire::Updates { position, body: body.encode_to_vec().into() };
        assert_eq!(decode_kind(wire::MessageKind::Updates(updates)), MessageError::InvalidUpdates);
    }
}
