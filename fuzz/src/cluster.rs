//! What has to be true of any bytes that reach a node: nothing is opened but what was sealed, as it was sealed and once.

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

const ALICE: Incarnation = Incarnation(1);
const BOB: Incarnation = Incarnation(2);

/// What somebody between two nodes does to bytes.
#[derive(Arbitrary, Debug)]
pub enum Change {
    /// Nothing.
    None,
    /// Flips bits of one byte, which is counted from the start.
    Flip(u16, u8),
    /// Leaves out the rest, or the beginning.
    Cut(u16, bool),
    /// Adds some.
    Add(Vec<u8>),
    /// Says something else.
    Replace(Vec<u8>),
}

impl Change {
    fn to(&self, bytes: &[u8]) -> Vec<u8> {
        let mut changed = bytes.to_vec();
        let place = |at: &u16| usize::from(*at) % (bytes.len() + 1);
        match self {
            Self::None => {}
            Self::Flip(at, bits) => {
                changed.get_mut(place(at)).into_iter().for_each(|byte| *byte ^= bits)
            }
            Self::Cut(at, true) => changed.truncate(place(at)),
            Self::Cut(at, false) => _ = changed.drain(..place(at)),
            Self::Add(more) => changed.extend_from_slice(more),
            Self::Replace(other) => changed.clone_from(other),
        }
        changed
    }
}

/// A datagram.
#[derive(Arbitrary, Debug)]
pub struct Sent {
    payload: Vec<u8>,
    change: Change,
    /// Who of several nodes seals it, the hearer among them.
    by: u8,
    /// Time passes before it is sealed, and before it arrives: in milliseconds.
    before: u32,
    under_way: u32,
    /// Copies arrive.
    copies: u8,
}

/// Seals datagrams and has them opened. A panic is a finding.
pub fn hold_datagrams(sent: &[Sent]) {
    let key = ClusterKey::for_loopback();
    let mut sealers: Vec<_> =
        (0..8).map(|node| DatagramSealer::new(&key, Incarnation(node))).collect();
    let mut opener = DatagramOpener::new(&key, BOB, Duration::from_secs(2));
    let mut now = Timestamp::from_secs(1_000_000);
    let mut sealed = Vec::new();
    for Sent { payload, change, by, before, under_way, copies } in sent {
        now = now.after(Duration::from_millis(u64::from(*before)));
        let by = usize::from(*by) % sealers.len();
        sealers[by].seal(now, payload, &mut sealed).expect("it is short");
        now = now.after(Duration::from_millis(u64::from(*under_way)));
        let datagram = change.to(&sealed);
        for nth in 0..=copies % 4 {
            let Ok(opened) = opener.open(now, &datagram) else { continue };
            assert_eq!(datagram, sealed, "only what was sealed is opened");
            assert_eq!((opened.from, opened.payload), (Incarnation(by as u64), &payload[..]));
            assert!(
                nth == 0 && opened.from != BOB && *under_way <= 62_000,
                "once, in time, and by others"
            );
            let _ = ChitchatMessage::deserialize(&mut &opened.payload[..]);
        }
    }
    assert!(opener.senders() < sealers.len());
}

/// What two nodes say, and what becomes of it on the way.
#[derive(Arbitrary, Debug)]
pub struct Conversation {
    name: String,
    greeting: Change,
    answer: Change,
    confirmation: Change,
    frames: Vec<Vec<u8>>,
    stream: Change,
    /// In such pieces it arrives.
    pieces: Vec<u8>,
}

/// Has two nodes shake hands and one of them speak. A panic is a finding.
pub fn hold_stream(conversation: &Conversation) {
    let Some([alice, bob]) = shake_hands(conversation) else { return };
    let Conversation { frames, stream, pieces, .. } = conversation;
    let (said, sent) = speak(alice.sealer, frames);
    let arrived = stream.to(&said);
    let heard = hear(bob.opener, &arrived, pieces);
    assert!(sent.starts_with(&heard), "only what was said is heard, from its beginning");
    assert!(heard.len() == sent.len() || arrived != said, "and all of it");
    assert!(hear(alice.opener, &said, pieces).is_empty(), "nobody hears what they said themselves");
}

/// Both sides, if nothing was changed on the way.
fn shake_hands(conversation: &Conversation) -> Option<[Session; 2]> {
    let key = ClusterKey::for_loopback();
    let alice = PeerIdentity { incarnation: ALICE, name: conversation.name.clone() };
    let bob = PeerIdentity { incarnation: BOB, name: String::from("bob") };
    let client = start_handshake(&key, &alice, &[1; 32]);
    let greeting = conversation.greeting.to(client.hello());
    if let Some(head) = greeting.first_chunk::<HELLO_HEADER_BYTES>() {
        assert!(
            hello_length(head).is_ok_and(|length| length == greeting.len())
                || greeting != client.hello()
        );
    }
    let server = accept_handshake(&key, &bob, &[2; 32], &greeting).ok();
    assert_eq!(server.is_some(), greeting == client.hello());
    let server = server?;
    let answer = conversation.answer.to(server.response());
    let session = client.on_response(&answer).ok();
    assert_eq!(session.is_some(), answer == server.response());
    let (alice, confirmation) = session?;
    let confirmed = conversation.confirmation.to(&confirmation);
    let session =
        server.on_confirmation(&<[u8; CONFIRMATION_BYTES]>::try_from(&confirmed[..]).ok()?).ok();
    assert_eq!(session.is_some(), confirmed == confirmation);
    let bob = session?;
    assert!(conversation.name.starts_with(&bob.peer.name) && alice.peer.name == "bob");
    Some([alice, bob])
}

/// What is said, and the frames in it.
fn speak(mut sealer: FrameSealer, frames: &[Vec<u8>]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (mut said, mut sent) = (Vec::new(), Vec::new());
    for frame in frames {
        let sealed = sealer.seal(frame, &mut said);
        assert_eq!(sealed.is_ok(), frame.len() <= MAX_FRAME);
        sent.extend(sealed.ok().map(|()| frame.clone()));
    }
    (said, sent)
}

/// What is heard of what arrives piece by piece.
fn hear(mut opener: FrameOpener, mut arrives: &[u8], pieces: &[u8]) -> Vec<Vec<u8>> {
    let (mut arrived, mut heard) = (BytesMut::new(), Vec::new());
    let pieces =
        pieces.iter().map(|piece| usize::from(*piece)).chain(std::iter::repeat(usize::MAX));
    for piece in pieces {
        let (now, later) = arrives.split_at(piece.min(arrives.len()));
        arrived.extend_from_slice(now);
        arrives = later;
        loop {
            match opener.open(&mut arrived) {
                Ok(Some(frame)) => heard.push(frame.to_vec()),
                Ok(None) => break,
                Err(refusal) => {
                    assert_eq!(
                        opener.open(&mut arrived),
                        Err(refusal),
                        "from there on nothing is opened"
                    );
                    return heard;
                }
            }
        }
        if arrives.is_empty() {
            break;
        }
    }
    let _ = opener.check_end(&arrived);
    heard
}
