use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::*;

fn introduction(incarnation: Incarnation) -> PeerIdentity {
    PeerIdentity { incarnation, name: format!("node-{}", incarnation.0) }
}

fn nonces(seed: u8) -> [Nonce; 2] {
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

fn shake(seed: u8) -> CompletedHandshake {
    let (key, [one, two]) = (key(), nonces(seed));
    let client = start_handshake(&key, &introduction(ALICE), &one);
    let hello = client.hello().to_vec();
    let server = super::accept_handshake(&key, &introduction(BOB), &two, &hello).unwrap();
    let response = server.response().to_vec();
    let (alice, confirmation) = client.on_response(&response).unwrap();
    let bob = server.on_confirmation(&confirmation).unwrap();
    CompletedHandshake { hello, response, confirmation, alice, bob }
}

fn seal(sealer: &mut FrameSealer, payload: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    sealer.seal(payload, &mut sealed).unwrap();
    sealed
}

fn open(opener: &mut FrameOpener, arrived: &[u8]) -> Result<Option<Bytes>, RejectReason> {
    opener.open(&mut BytesMut::from(arrived))
}

/// Sends a hello to Bob, and returns his reason for rejecting it.
fn greet_bob(hello: &[u8]) -> Option<RejectReason> {
    super::accept_handshake(&key(), &introduction(BOB), &nonces(9)[1], hello).err()
}

/// Sends a response to Alice, who has sent a hello with the first nonce of this seed. Returns her reason for rejecting
/// it.
fn answer_alice(seed: u8, response: &[u8]) -> Option<RejectReason> {
    start_handshake(&key(), &introduction(ALICE), &nonces(seed)[0]).on_response(response).err()
}

/// Sends a confirmation to Bob, who has responded to `hello` with the second nonce of this seed. Returns his reason for
/// rejecting it.
fn confirm_to_bob(
    seed: u8,
    hello: &[u8],
    confirmation: &[u8; CONFIRMATION_BYTES],
) -> Option<RejectReason> {
    let key = key();
    let server =
        super::accept_handshake(&key, &introduction(BOB), &nonces(seed)[1], hello).unwrap();
    server.on_confirmation(confirmation).err()
}

#[test]
fn both_sides_know_each_other_and_understand_what_follows() {
    let CompletedHandshake { mut alice, mut bob, .. } = shake(1);
    assert_eq!((alice.peer, bob.peer), (introduction(BOB), introduction(ALICE)));
    for payload in [&b"one"[..], b"", b"three"] {
        let frame = seal(&mut alice.sealer, payload);
        assert_eq!(frame.len(), payload.len() + FRAME_OVERHEAD);
        assert_eq!(open(&mut bob.opener, &frame).unwrap().unwrap(), payload);
        let frame = seal(&mut bob.sealer, payload);
        assert_eq!(open(&mut alice.opener, &frame).unwrap().unwrap(), payload);
    }
}

#[test]
fn a_greeting_tells_its_length_and_another_version_by_its_head() {
    let hello = shake(1).hello;
    let mut head = *hello.first_chunk::<HELLO_HEADER_BYTES>().unwrap();
    assert_eq!(hello_length(&head), Ok(hello.len()));
    head[0] += 1;
    assert_eq!(hello_length(&head), Err(RejectReason::WrongVersion));
}

#[test]
fn a_long_name_is_cut_between_letters() {
    let (key, [one, two]) = (key(), nonces(1));
    let long = PeerIdentity { incarnation: ALICE, name: "é".repeat(200) };
    let client = start_handshake(&key, &long, &one);
    let server = super::accept_handshake(&key, &introduction(BOB), &two, client.hello()).unwrap();
    let (_, confirmation) = client.on_response(server.response()).unwrap();
    assert_eq!(server.on_confirmation(&confirmation).unwrap().peer.name, "é".repeat(127));
}

#[test]
fn whoever_has_another_key_shakes_no_hands() {
    let (own, strange, [one, two]) = (key(), stranger(), nonces(1));
    let client = start_handshake(&strange, &introduction(ALICE), &one);
    assert_eq!(greet_bob(client.hello()), Some(RejectReason::WrongMac));
    let server =
        super::accept_handshake(&strange, &introduction(BOB), &two, client.hello()).unwrap();
    assert_eq!(answer_alice(1, server.response()), Some(RejectReason::WrongMac));
    let client = start_handshake(&own, &introduction(ALICE), &one);
    let server = super::accept_handshake(&own, &introduction(BOB), &two, client.hello()).unwrap();
    assert_eq!(
        server.on_confirmation(&[0; CONFIRMATION_BYTES]).err(),
        Some(RejectReason::WrongMac)
    );
}

#[test]
fn a_repeated_handshake_ends_at_the_confirmation() {
    let recorded = shake(1);
    assert_eq!(greet_bob(&recorded.hello), None, "Bob cannot know yet");
    assert_eq!(
        confirm_to_bob(2, &recorded.hello, &recorded.confirmation),
        Some(RejectReason::WrongMac)
    );
    assert_eq!(
        confirm_to_bob(1, &recorded.hello, &recorded.confirmation),
        None,
        "that was his nonce"
    );
}

#[test]
fn a_repeated_answer_is_none_to_another_greeting() {
    assert_eq!(answer_alice(1, &shake(1).response), None);
    assert_eq!(answer_alice(2, &shake(1).response), Some(RejectReason::WrongMac));
}

#[test]
fn parts_of_two_handshakes_do_not_make_one() {
    let (one, other) = (shake(1), shake(2));
    assert_eq!(answer_alice(1, &other.response), Some(RejectReason::WrongMac));
    assert_eq!(confirm_to_bob(1, &one.hello, &other.confirmation), Some(RejectReason::WrongMac));
    assert_eq!(confirm_to_bob(1, &other.hello, &one.confirmation), Some(RejectReason::WrongMac));
}

#[test]
fn ones_own_words_are_no_handshake() {
    let hello = shake(1).hello;
    let (key, [one, two]) = (key(), nonces(1));
    let to_herself = super::accept_handshake(&key, &introduction(ALICE), &two, &hello);
    assert_eq!(to_herself.err(), Some(RejectReason::Reflected));
    assert_eq!(answer_alice(1, &hello), Some(RejectReason::WrongMac), "a greeting is no answer");
    // A node with the same incarnation as Alice, if that were possible.
    let twin = super::accept_handshake(&key, &introduction(BOB), &two, &hello).unwrap();
    let response = twin.response().to_vec();
    let client = start_handshake(&key, &introduction(BOB), &one);
    assert!(client.on_response(&response).is_err());
    assert_eq!(greet_bob(&response), Some(RejectReason::WrongMac), "an answer is no greeting");
}

#[test]
fn a_name_that_is_no_text_is_refused_even_from_a_node() {
    let (key, mut hello) = (key(), shake(1).hello);
    hello.truncate(hello.len() - MAC_BYTES);
    hello[HELLO_HEADER_BYTES] = 0xFF;
    let mac = key::sign(key.handshakes(), &[b"who dials greets", &hello]);
    hello.extend_from_slice(mac.as_ref());
    assert_eq!(greet_bob(&hello), Some(RejectReason::Malformed));
}

#[test]
fn a_frame_is_opened_once_and_in_its_place() {
    let CompletedHandshake { mut alice, bob: Session { mut opener, .. }, .. } = shake(1);
    let [one, two] = [b"one", b"two"].map(|payload| seal(&mut alice.sealer, payload));
    assert!(open(&mut opener, &one).is_ok());
    assert_eq!(open(&mut opener, &one), Err(RejectReason::Replayed));
    assert_eq!(open(&mut opener, &two), Err(RejectReason::Replayed), "the stream is over");
    assert_eq!(
        open(&mut shake(1).bob.opener, &two),
        Err(RejectReason::Replayed),
        "the first one is missing"
    );
}

#[test]
fn ones_own_frames_are_not_heard() {
    let mut alice = shake(1).alice;
    let frame = seal(&mut alice.sealer, b"one");
    assert_eq!(open(&mut alice.opener, &frame), Err(RejectReason::WrongMac));
}

#[test]
fn frames_of_one_session_are_nothing_in_another() {
    let (mut one, mut other) = (shake(1), shake(2));
    let frames = [&mut one, &mut other].map(|shaken| seal(&mut shaken.alice.sealer, b"one"));
    assert_eq!(open(&mut one.bob.opener, &frames[1]), Err(RejectReason::WrongMac));
    assert_eq!(open(&mut other.bob.opener, &frames[0]), Err(RejectReason::WrongMac));
}

#[test]
fn a_frame_that_is_too_long_is_neither_sealed_nor_waited_for() {
    let CompletedHandshake { mut alice, mut bob, .. } = shake(1);
    let mut sealed = b"before".to_vec();
    assert_eq!(alice.sealer.seal(&vec![7; MAX_FRAME + 1], &mut sealed), Err(RejectReason::TooLong));
    assert_eq!(sealed, b"before");
    let longest = seal(&mut alice.sealer, &[7; MAX_FRAME]);
    assert_eq!(open(&mut bob.opener, &longest).unwrap().unwrap().len(), MAX_FRAME);
    let length = u32::try_from(MAX_FRAME + 1).unwrap().to_be_bytes();
    assert_eq!(open(&mut bob.opener, &length), Err(RejectReason::TooLong), "by its length alone");
}

#[test]
fn a_stream_may_end_between_frames_only() {
    let CompletedHandshake { mut alice, mut bob, .. } = shake(1);
    let frame = seal(&mut alice.sealer, b"one");
    let mut arrived = BytesMut::from(&frame[..frame.len() - 1]);
    assert_eq!(bob.opener.open(&mut arrived), Ok(None));
    assert_eq!(bob.opener.end(&arrived), Err(RejectReason::Truncated));
    arrived.extend_from_slice(&frame[frame.len() - 1..]);
    assert_eq!(bob.opener.open(&mut arrived).unwrap().unwrap(), &b"one"[..]);
    assert_eq!(bob.opener.end(&arrived), Ok(()));
}

fn flip(bytes: &[u8], bit: prop::sample::Index) -> Vec<u8> {
    let (mut flipped, bit) = (bytes.to_vec(), bit.index(bytes.len() * 8));
    flipped[bit / 8] ^= 1 << (bit % 8);
    flipped
}

proptest! {
    #[test]
    fn a_handshake_of_which_any_bit_is_flipped_is_refused(bit: prop::sample::Index) {
        let CompletedHandshake { hello, response, confirmation, .. } = shake(1);
        prop_assert!(greet_bob(&flip(&hello, bit)).is_some());
        prop_assert!(answer_alice(1, &flip(&response, bit)).is_some());
        let flipped = flip(&confirmation, bit).try_into().unwrap();
        prop_assert_eq!(confirm_to_bob(1, &hello, &flipped), Some(RejectReason::WrongMac));
    }

    #[test]
    fn a_handshake_that_is_cut_or_lengthened_is_refused(cut: prop::sample::Index, more: u8) {
        let CompletedHandshake { hello, response, .. } = shake(1);
        prop_assert!(greet_bob(&hello[..cut.index(hello.len())]).is_some());
        prop_assert!(answer_alice(1, &response[..cut.index(response.len())]).is_some());
        prop_assert_eq!(greet_bob(&[&hello[..], &[more]].concat()), Some(RejectReason::TooLong));
        prop_assert_eq!(answer_alice(1, &[&response[..], &[more]].concat()), Some(RejectReason::TooLong));
    }

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20),
        pieces in prop::collection::vec(1..200_usize, 1..20),
    ) {
        let CompletedHandshake { mut alice, mut bob, .. } = shake(1);
        let stream: Vec<u8> = payloads.iter().flat_map(|payload| seal(&mut alice.sealer, payload)).collect();
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
        prop_assert_eq!(bob.opener.end(&arrived), Ok(()));
    }

    #[test]
    fn a_stream_of_which_any_bit_is_flipped_tells_nothing_from_there_on(
        payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..10),
        bit: prop::sample::Index,
    ) {
        let CompletedHandshake { mut alice, mut bob, .. } = shake(1);
        let frames: Vec<_> = payloads.iter().map(|payload| seal(&mut alice.sealer, payload)).collect();
        let stream = frames.concat();
        let mut arrived = BytesMut::from(&flip(&stream, bit)[..]);
        let flipped_byte = bit.index(stream.len() * 8) / 8;
        let mut ends = frames.iter().scan(0, |end, frame| { *end += frame.len(); Some(*end) });
        let whole = ends.by_ref().take_while(|end| *end <= flipped_byte).count();
        let opened: Vec<_> = std::iter::from_fn(|| bob.opener.open(&mut arrived).ok().flatten()).collect();
        prop_assert_eq!(opened, &payloads[..whole]);
        prop_assert!(bob.opener.open(&mut arrived).is_err() || bob.opener.end(&arrived).is_err());
    }

    #[test]
    fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bob = shake(1).bob;
        let mut arrived = BytesMut::from(&bytes[..]);
        prop_assert!(!matches!(bob.opener.open(&mut arrived), Ok(Some(_))));
        prop_assert!(greet_bob(&bytes).is_some());
        prop_assert!(answer_alice(1, &bytes).is_some());
    }
}
