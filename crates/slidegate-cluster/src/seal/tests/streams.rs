use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::*;

fn test_identity(incarnation: Incarnation) -> PeerIdentity {
    PeerIdentity { incarnation, name: format!("node-{}", incarnation.0) }
}

fn test_nonces(seed: u8) -> [Nonce; 2] {
    [[seed; 32], [seed ^ 0xFF; 32]]
}

/// The messages of a completed handshake, and the sessions of both sides.
struct CompletedHandshake {
    hello: Vec<u8>,
    response: Vec<u8>,
    confirmation: [u8; CONFIRMATION_BYTES],
    alice: Session,
    bob: Session,
}

fn complete_handshake(seed: u8) -> CompletedHandshake {
    let (key, [one, two]) = (test_key(), test_nonces(seed));
    let client = start_handshake(&key, &test_identity(ALICE), &one);
    let hello = client.hello().to_vec();
    let server = super::accept_handshake(&key, &test_identity(BOB), &two, &hello).unwrap();
    let response = server.response().to_vec();
    let (alice, confirmation) = client.on_response(&response).unwrap();
    let bob = server.on_confirmation(&confirmation).unwrap();
    CompletedHandshake { hello, response, confirmation, alice, bob }
}

fn seal_frame(sealer: &mut FrameSealer, payload: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    sealer.seal(payload, &mut sealed).unwrap();
    sealed
}

fn open_frame(opener: &mut FrameOpener, arrived: &[u8]) -> Result<Option<Bytes>, RejectReason> {
    opener.open(&mut BytesMut::from(arrived))
}

/// Sends a hello to Bob, and returns his reason for rejecting it; `None` if he accepts it.
fn reject_reason_of_hello(hello: &[u8]) -> Option<RejectReason> {
    super::accept_handshake(&test_key(), &test_identity(BOB), &test_nonces(9)[1], hello).err()
}

/// Starts a handshake of Alice with the first nonce of `seed`, and sends `response` to her. Returns her reason for
/// rejecting the response; `None` if she accepts it.
fn reject_reason_of_response(seed: u8, response: &[u8]) -> Option<RejectReason> {
    start_handshake(&test_key(), &test_identity(ALICE), &test_nonces(seed)[0])
        .on_response(response)
        .err()
}

/// Sends `hello` to Bob. After he has responded with the second nonce of `seed`, sends `confirmation` to him. Returns
/// his reason for rejecting the confirmation; `None` if he accepts it.
fn reject_reason_of_confirmation(
    seed: u8,
    hello: &[u8],
    confirmation: &[u8; CONFIRMATION_BYTES],
) -> Option<RejectReason> {
    let key = test_key();
    let server =
        super::accept_handshake(&key, &test_identity(BOB), &test_nonces(seed)[1], hello).unwrap();
    server.on_confirmation(confirmation).err()
}

#[test]
fn handshake_authenticates_both_sides() {
    let CompletedHandshake { mut alice, mut bob, .. } = complete_handshake(1);
    assert_eq!((alice.peer, bob.peer), (test_identity(BOB), test_identity(ALICE)));
    for payload in [&b"one"[..], b"", b"three"] {
        let frame = seal_frame(&mut alice.sealer, payload);
        assert_eq!(frame.len(), payload.len() + FRAME_OVERHEAD);
        assert_eq!(open_frame(&mut bob.opener, &frame).unwrap().unwrap(), payload);
        let frame = seal_frame(&mut bob.sealer, payload);
        assert_eq!(open_frame(&mut alice.opener, &frame).unwrap().unwrap(), payload);
    }
}

#[test]
fn hello_header_has_length_and_version() {
    let hello = complete_handshake(1).hello;
    let mut header = *hello.first_chunk::<HELLO_HEADER_BYTES>().unwrap();
    assert_eq!(hello_length(&header), Ok(hello.len()));
    header[0] += 1;
    assert_eq!(hello_length(&header), Err(RejectReason::WrongVersion));
}

#[test]
fn long_name_is_truncated_at_character_boundary() {
    let (key, [one, two]) = (test_key(), test_nonces(1));
    let long = PeerIdentity { incarnation: ALICE, name: "é".repeat(200) };
    let client = start_handshake(&key, &long, &one);
    let server = super::accept_handshake(&key, &test_identity(BOB), &two, client.hello()).unwrap();
    let (_, confirmation) = client.on_response(server.response()).unwrap();
    assert_eq!(server.on_confirmation(&confirmation).unwrap().peer.name, "é".repeat(127));
}

#[test]
fn handshake_with_other_key_is_rejected() {
    let (own, other, [one, two]) = (test_key(), key_of_other_cluster(), test_nonces(1));
    let client = start_handshake(&other, &test_identity(ALICE), &one);
    assert_eq!(reject_reason_of_hello(client.hello()), Some(RejectReason::WrongMac));
    let server =
        super::accept_handshake(&other, &test_identity(BOB), &two, client.hello()).unwrap();
    assert_eq!(reject_reason_of_response(1, server.response()), Some(RejectReason::WrongMac));
    let client = start_handshake(&own, &test_identity(ALICE), &one);
    let server = super::accept_handshake(&own, &test_identity(BOB), &two, client.hello()).unwrap();
    assert_eq!(
        server.on_confirmation(&[0; CONFIRMATION_BYTES]).err(),
        Some(RejectReason::WrongMac)
    );
}

#[test]
fn replayed_handshake_fails_at_confirmation() {
    let recorded = complete_handshake(1);
    assert_eq!(reject_reason_of_hello(&recorded.hello), None, "Bob cannot detect the replay yet");
    assert_eq!(
        reject_reason_of_confirmation(2, &recorded.hello, &recorded.confirmation),
        Some(RejectReason::WrongMac)
    );
    assert_eq!(
        reject_reason_of_confirmation(1, &recorded.hello, &recorded.confirmation),
        None,
        "the same nonce"
    );
}

#[test]
fn response_to_hello_of_other_handshake_is_rejected() {
    assert_eq!(reject_reason_of_response(1, &complete_handshake(1).response), None);
    assert_eq!(
        reject_reason_of_response(2, &complete_handshake(1).response),
        Some(RejectReason::WrongMac)
    );
}

#[test]
fn messages_of_different_handshakes_cannot_be_mixed() {
    let (one, other) = (complete_handshake(1), complete_handshake(2));
    assert_eq!(reject_reason_of_response(1, &other.response), Some(RejectReason::WrongMac));
    assert_eq!(
        reject_reason_of_confirmation(1, &one.hello, &other.confirmation),
        Some(RejectReason::WrongMac)
    );
    assert_eq!(
        reject_reason_of_confirmation(1, &other.hello, &one.confirmation),
        Some(RejectReason::WrongMac)
    );
}

#[test]
fn reflected_handshake_is_rejected() {
    let hello = complete_handshake(1).hello;
    let (key, [one, two]) = (test_key(), test_nonces(1));
    let reflected = super::accept_handshake(&key, &test_identity(ALICE), &two, &hello);
    assert_eq!(reflected.err(), Some(RejectReason::Reflected));
    assert_eq!(
        reject_reason_of_response(1, &hello),
        Some(RejectReason::WrongMac),
        "a hello is not a response"
    );
    // A node with the same incarnation as Alice, if that were possible.
    let twin = super::accept_handshake(&key, &test_identity(BOB), &two, &hello).unwrap();
    let response = twin.response().to_vec();
    let client = start_handshake(&key, &test_identity(BOB), &one);
    assert!(client.on_response(&response).is_err());
    assert_eq!(
        reject_reason_of_hello(&response),
        Some(RejectReason::WrongMac),
        "a response is not a hello"
    );
}

#[test]
fn non_utf8_name_is_rejected() {
    let (key, mut hello) = (test_key(), complete_handshake(1).hello);
    hello.truncate(hello.len() - MAC_BYTES);
    hello[HELLO_HEADER_BYTES] = 0xFF;
    let mac = key::compute_mac(key.handshake_key(), &[b"who dials greets", &hello]);
    hello.extend_from_slice(mac.as_ref());
    assert_eq!(reject_reason_of_hello(&hello), Some(RejectReason::Malformed));
}

#[test]
fn frames_open_only_once_and_in_order() {
    let CompletedHandshake { mut alice, bob: Session { mut opener, .. }, .. } =
        complete_handshake(1);
    let [one, two] = [b"one", b"two"].map(|payload| seal_frame(&mut alice.sealer, payload));
    assert!(open_frame(&mut opener, &one).is_ok());
    assert_eq!(open_frame(&mut opener, &one), Err(RejectReason::Replayed));
    assert_eq!(open_frame(&mut opener, &two), Err(RejectReason::Replayed), "the stream has failed");
    assert_eq!(
        open_frame(&mut complete_handshake(1).bob.opener, &two),
        Err(RejectReason::Replayed),
        "the first frame is missing"
    );
}

#[test]
fn reflected_frame_is_rejected() {
    let mut alice = complete_handshake(1).alice;
    let frame = seal_frame(&mut alice.sealer, b"one");
    assert_eq!(open_frame(&mut alice.opener, &frame), Err(RejectReason::WrongMac));
}

#[test]
fn frame_of_other_session_is_rejected() {
    let (mut one, mut other) = (complete_handshake(1), complete_handshake(2));
    let frames = [&mut one, &mut other].map(|shaken| seal_frame(&mut shaken.alice.sealer, b"one"));
    assert_eq!(open_frame(&mut one.bob.opener, &frames[1]), Err(RejectReason::WrongMac));
    assert_eq!(open_frame(&mut other.bob.opener, &frames[0]), Err(RejectReason::WrongMac));
}

#[test]
fn frame_above_max_size_is_rejected_by_both_sides() {
    let CompletedHandshake { mut alice, mut bob, .. } = complete_handshake(1);
    let mut sealed = b"before".to_vec();
    assert_eq!(alice.sealer.seal(&vec![7; MAX_FRAME + 1], &mut sealed), Err(RejectReason::TooLong));
    assert_eq!(sealed, b"before");
    let longest = seal_frame(&mut alice.sealer, &[7; MAX_FRAME]);
    assert_eq!(open_frame(&mut bob.opener, &longest).unwrap().unwrap().len(), MAX_FRAME);
    let length = u32::try_from(MAX_FRAME + 1).unwrap().to_be_bytes();
    assert_eq!(
        open_frame(&mut bob.opener, &length),
        Err(RejectReason::TooLong),
        "rejected by its length"
    );
}

#[test]
fn stream_end_inside_frame_is_rejected() {
    let CompletedHandshake { mut alice, mut bob, .. } = complete_handshake(1);
    let frame = seal_frame(&mut alice.sealer, b"one");
    let mut arrived = BytesMut::from(&frame[..frame.len() - 1]);
    assert_eq!(bob.opener.open(&mut arrived), Ok(None));
    assert_eq!(bob.opener.check_end(&arrived), Err(RejectReason::Truncated));
    arrived.extend_from_slice(&frame[frame.len() - 1..]);
    assert_eq!(bob.opener.open(&mut arrived).unwrap().unwrap(), &b"one"[..]);
    assert_eq!(bob.opener.check_end(&arrived), Ok(()));
}

fn flip_bit(bytes: &[u8], bit: prop::sample::Index) -> Vec<u8> {
    let (mut flipped, bit) = (bytes.to_vec(), bit.index(bytes.len() * 8));
    flipped[bit / 8] ^= 1 << (bit % 8);
    flipped
}

proptest! {
    #[test]
    fn handshake_with_flipped_bit_is_rejected(bit: prop::sample::Index) {
        let CompletedHandshake { hello, response, confirmation, .. } = complete_handshake(1);
        prop_assert!(reject_reason_of_hello(&flip_bit(&hello, bit)).is_some());
        prop_assert!(reject_reason_of_response(1, &flip_bit(&response, bit)).is_some());
        let flipped = flip_bit(&confirmation, bit).try_into().unwrap();
        prop_assert_eq!(reject_reason_of_confirmation(1, &hello, &flipped), Some(RejectReason::WrongMac));
    }

    #[test]
    fn handshake_of_changed_length_is_rejected(cut: prop::sample::Index, more: u8) {
        let CompletedHandshake { hello, response, .. } = complete_handshake(1);
        prop_assert!(reject_reason_of_hello(&hello[..cut.index(hello.len())]).is_some());
        prop_assert!(reject_reason_of_response(1, &response[..cut.index(response.len())]).is_some());
        prop_assert_eq!(reject_reason_of_hello(&[&hello[..], &[more]].concat()), Some(RejectReason::TooLong));
        prop_assert_eq!(reject_reason_of_response(1, &[&response[..], &[more]].concat()), Some(RejectReason::TooLong));
    }

    #[test]
    fn frames_round_trip_when_split_arbitrarily(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20),
        pieces in prop::collection::vec(1..200_usize, 1..20),
    ) {
        let CompletedHandshake { mut alice, mut bob, .. } = complete_handshake(1);
        let stream: Vec<u8> = payloads.iter().flat_map(|payload| seal_frame(&mut alice.sealer, payload)).collect();
        let (mut arrived, mut opened, mut rest) = (BytesMut::new(), Vec::new(), &stream[..]);
        for piece in pieces.into_iter().cycle() {
            let (now, later) = rest.split_at(piece.min(rest.len()));
            arrived.extend_from_slice(now);
            rest = later;
            while let Some(frame) = bob.opener.open(&mut arrived).unwrap() {
                opened.push(frame.to_vec());
            }
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(opened, payloads);
        prop_assert_eq!(bob.opener.check_end(&arrived), Ok(()));
    }

    #[test]
    fn frame_with_flipped_bit_is_rejected(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..10),
        bit: prop::sample::Index,
    ) {
        let CompletedHandshake { mut alice, mut bob, .. } = complete_handshake(1);
        let frames: Vec<_> = payloads.iter().map(|payload| seal_frame(&mut alice.sealer, payload)).collect();
        let stream = frames.concat();
        let mut arrived = BytesMut::from(&flip_bit(&stream, bit)[..]);
        let flipped_byte = bit.index(stream.len() * 8) / 8;
        let mut ends = frames.iter().scan(0, |end, frame| { *end += frame.len(); Some(*end) });
        let whole = ends.by_ref().take_while(|end| *end <= flipped_byte).count();
        let opened: Vec<_> = std::iter::from_fn(|| bob.opener.open(&mut arrived).ok().flatten()).collect();
        prop_assert_eq!(opened, &payloads[..whole]);
        prop_assert!(bob.opener.open(&mut arrived).is_err() || bob.opener.check_end(&arrived).is_err());
    }

    #[test]
    fn arbitrary_stream_is_rejected(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bob = complete_handshake(1).bob;
        let mut arrived = BytesMut::from(&bytes[..]);
        prop_assert!(!matches!(bob.opener.open(&mut arrived), Ok(Some(_))));
        prop_assert!(reject_reason_of_hello(&bytes).is_some());
        prop_assert!(reject_reason_of_response(1, &bytes).is_some());
    }
}
