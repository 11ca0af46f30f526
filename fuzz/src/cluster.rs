//! Checks of the authentication of cluster traffic. A node that receives arbitrary bytes opens only datagrams and
//! frames that another node sealed (authenticated), and only if they are unmodified and not repeated.

use std::time::Duration;

use bytes::BytesMut;
use chitchat::{ChitchatMessage, Deserializable};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use slidegate::Timestamp;
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::seal::{
    CONFIRMATION_BYTES, ClusterKey, DatagramOpener, DatagramSealer, FrameOpener, FrameSealer,
    HELLO_HEADER_BYTES, MAX_FRAME, PeerIdentity, Session, accept_handshake, hello_length,
    start_handshake,
};

const CONNECTING_NODE: Incarnation = Incarnation(1);
const RECEIVING_NODE: Incarnation = Incarnation(2);

/// A modification of the bytes that one node sends to another.
#[derive(Arbitrary, Debug)]
pub enum Mutation {
    /// No modification.
    None,
    /// Flips the bits in the second value of the byte at the position in the first value.
    Flip(u16, u8),
    /// Removes the bytes after a position if the second value is `true`, otherwise the bytes before the position.
    Cut(u16, bool),
    /// Appends these bytes.
    Add(Vec<u8>),
    /// Replaces all bytes by these bytes.
    Replace(Vec<u8>),
}

impl Mutation {
    /// Applies the modification to a copy of the bytes, and returns the copy.
    fn apply(&self, bytes: &[u8]) -> Vec<u8> {
        let mut changed = bytes.to_vec();
        let index = |position: &u16| usize::from(*position) % (bytes.len() + 1);
        match self {
            Self::None => {}
            Self::Flip(position, bits) => {
                changed.get_mut(index(position)).into_iter().for_each(|byte| *byte ^= bits)
            }
            Self::Cut(position, true) => changed.truncate(index(position)),
            Self::Cut(position, false) => _ = changed.drain(..index(position)),
            Self::Add(more) => changed.extend_from_slice(more),
            Self::Replace(other) => changed.clone_from(other),
        }
        changed
    }
}

/// A datagram that a node seals (authenticates) and sends to the tested node.
#[derive(Arbitrary, Debug)]
pub struct DatagramInput {
    payload: Vec<u8>,
    mutation: Mutation,
    /// The node that seals the datagram, possibly the receiver.
    sender: u8,
    /// The time before the datagram is sealed, in milliseconds.
    delay_before_seal_ms: u32,
    /// The time between sealing and arrival, in milliseconds.
    transit_ms: u32,
    /// The number of additional copies of the datagram that arrive, modulo 4.
    copies: u8,
}

/// Seals datagrams of several nodes, modifies them, and opens them at one node.
///
/// # Panics
///
/// Panics if a modified, repeated, outdated or reflected datagram is opened.
pub fn check_datagrams(datagrams: &[DatagramInput]) {
    let key = ClusterKey::for_loopback();
    let mut sealers: Vec<_> =
        (0..8).map(|node| DatagramSealer::new(&key, Incarnation(node))).collect();
    let mut opener = DatagramOpener::new(&key, RECEIVING_NODE, Duration::from_secs(2));
    let mut now = Timestamp::from_secs(1_000_000);
    let mut sealed = Vec::new();
    for DatagramInput { payload, mutation, sender, delay_before_seal_ms, transit_ms, copies } in
        datagrams
    {
        now = now.after(Duration::from_millis(u64::from(*delay_before_seal_ms)));
        let sender = usize::from(*sender) % sealers.len();
        sealers[sender].seal(now, payload, &mut sealed).expect("the payload is short enough");
        now = now.after(Duration::from_millis(u64::from(*transit_ms)));
        let datagram = mutation.apply(&sealed);
        for nth in 0..=copies % 4 {
            let Ok(opened) = opener.open(now, &datagram) else { continue };
            assert_eq!(datagram, sealed, "a modified datagram was opened");
            assert_eq!((opened.from, opened.payload), (Incarnation(sender as u64), &payload[..]));
            assert!(
                nth == 0 && opened.from != RECEIVING_NODE && *transit_ms <= 62_000,
                "a repeated, outdated or reflected datagram was opened"
            );
            let _ = ChitchatMessage::deserialize(&mut &opened.payload[..]);
        }
    }
    assert!(opener.senders() < sealers.len());
}

/// A handshake between two nodes, followed by a stream of frames, with a modification of each message.
#[derive(Arbitrary, Debug)]
pub struct StreamInput {
    /// The name of the node that opens the connection.
    name: String,
    hello_mutation: Mutation,
    response_mutation: Mutation,
    confirmation_mutation: Mutation,
    frames: Vec<Vec<u8>>,
    stream_mutation: Mutation,
    /// The lengths of the chunks in which the stream arrives. The last chunk contains the remaining bytes.
    chunk_lengths: Vec<u8>,
}

/// Runs a handshake between two nodes, then sends frames from one node to the other.
///
/// # Panics
///
/// Panics if a modified message is accepted, or an unmodified message is rejected.
pub fn check_stream(input: &StreamInput) {
    let Some([alice, bob]) = complete_handshake(input) else { return };
    let StreamInput { frames, stream_mutation, chunk_lengths, .. } = input;
    let (stream_bytes, sent_frames) = seal_frames(alice.sealer, frames);
    let received_bytes = stream_mutation.apply(&stream_bytes);
    let received = open_frames(bob.opener, &received_bytes, chunk_lengths);
    assert!(
        sent_frames.starts_with(&received),
        "received frames are not a prefix of the sent frames"
    );
    assert!(
        received.len() == sent_frames.len() || received_bytes != stream_bytes,
        "a frame is missing"
    );
    assert!(
        open_frames(alice.opener, &stream_bytes, chunk_lengths).is_empty(),
        "a node opened its own frames"
    );
}

/// Runs a handshake between two nodes. Returns the sessions of both nodes, or `None` if a message was modified.
fn complete_handshake(input: &StreamInput) -> Option<[Session; 2]> {
    let key = ClusterKey::for_loopback();
    let alice = PeerIdentity { incarnation: CONNECTING_NODE, name: input.name.clone() };
    let bob = PeerIdentity { incarnation: RECEIVING_NODE, name: String::from("bob") };
    let client = start_handshake(&key, &alice, &[1; 32]);
    let hello = input.hello_mutation.apply(client.hello());
    if let Some(header) = hello.first_chunk::<HELLO_HEADER_BYTES>() {
        assert!(
            hello_length(header).is_ok_and(|length| length == hello.len())
                || hello != client.hello()
        );
    }
    let server = accept_handshake(&key, &bob, &[2; 32], &hello).ok();
    assert_eq!(server.is_some(), hello == client.hello());
    let server = server?;
    let response = input.response_mutation.apply(server.response());
    let session = client.on_response(&response).ok();
    assert_eq!(session.is_some(), response == server.response());
    let (alice, confirmation) = session?;
    let received_confirmation = input.confirmation_mutation.apply(&confirmation);
    let session = server
        .on_confirmation(&<[u8; CONFIRMATION_BYTES]>::try_from(&received_confirmation[..]).ok()?)
        .ok();
    assert_eq!(session.is_some(), received_confirmation == confirmation);
    let bob = session?;
    assert!(input.name.starts_with(&bob.peer.name) && alice.peer.name == "bob");
    Some([alice, bob])
}

/// Seals (authenticates) frames. Returns the bytes of the stream, and the frames in it: all that are not too long.
fn seal_frames(mut sealer: FrameSealer, frames: &[Vec<u8>]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (mut stream_bytes, mut sent_frames) = (Vec::new(), Vec::new());
    for frame in frames {
        let sealed = sealer.seal(frame, &mut stream_bytes);
        assert_eq!(sealed.is_ok(), frame.len() <= MAX_FRAME);
        sent_frames.extend(sealed.ok().map(|()| frame.clone()));
    }
    (stream_bytes, sent_frames)
}

/// Opens the frames of a stream that arrives in chunks of these lengths. Stops at the first invalid frame. Returns the
/// valid frames.
fn open_frames(
    mut opener: FrameOpener,
    mut remaining: &[u8],
    chunk_lengths: &[u8],
) -> Vec<Vec<u8>> {
    let (mut buffer, mut received) = (BytesMut::new(), Vec::new());
    let chunk_lengths = chunk_lengths
        .iter()
        .map(|length| usize::from(*length))
        .chain(std::iter::repeat(usize::MAX));
    for length in chunk_lengths {
        let (chunk, rest) = remaining.split_at(length.min(remaining.len()));
        buffer.extend_from_slice(chunk);
        remaining = rest;
        loop {
            match opener.open(&mut buffer) {
                Ok(Some(frame)) => received.push(frame.to_vec()),
                Ok(None) => break,
                Err(reason) => {
                    assert_eq!(
                        opener.open(&mut buffer),
                        Err(reason),
                        "a frame after an invalid frame was opened"
                    );
                    return received;
                }
            }
        }
        if remaining.is_empty() {
            break;
        }
    }
    let _ = opener.check_end(&buffer);
    received
}
