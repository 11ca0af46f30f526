//! How a stream begins.
//!
//! ```text
//! who dials                                              who answers
//!     greeting: version, incarnation, nonce, name, MAC  ─►
//!  ◄─ greeting of its own; its MAC covers the first one, too
//!     confirmation: a MAC over both                     ─►
//!     frames                                            ◄►
//! ```
//!
//! A greeting that somebody repeats is answered with another nonce, which only who has the key can confirm. Each MAC
//! says which of the three it is, so none passes for another. Both greetings make the keys of the two directions.
//!
//! ```text
//! version  incarnation  nonce  name's length  name  MAC
//!    1          8         32         1          n    32      bytes; numbers are big-endian
//! ```

use ring::hmac;

use super::{ClusterKey, FrameOpener, FrameSealer, MAC, Refusal, VERSION, key};
use crate::counts::Incarnation;

/// A number that was never used before: random, of a generator fit for keys.
pub type Nonce = [u8; 32];

/// Bytes of a greeting before the name, which tell how long it is.
pub const GREETING_HEAD: usize = 1 + 8 + 32 + 1;

/// Bytes of the confirmation.
pub const CONFIRMATION: usize = MAC;

/// Bytes of the longest name. Of a longer one the end is left out.
pub const MAX_NAME: usize = u8::MAX as usize;

const DIALS: &[u8] = b"who dials greets";
const ANSWERS: &[u8] = b"who answers greets";
const CONFIRMS: &[u8] = b"who dials confirms";
const KEY_OF_DIALLER: &[u8] = b"key of who dials";
const KEY_OF_ANSWERER: &[u8] = b"key of who answers";

/// Who speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Which life of which node.
    pub incarnation: Incarnation,
    /// The node's name, for people.
    pub name: String,
}

impl Introduction {
    fn write(&self, nonce: &Nonce) -> Vec<u8> {
        let name = &self.name[..self.name.floor_char_boundary(MAX_NAME)];
        let mut greeting = Vec::with_capacity(GREETING_HEAD + name.len() + MAC);
        greeting.push(VERSION);
        greeting.extend_from_slice(&self.incarnation.0.to_be_bytes());
        greeting.extend_from_slice(nonce);
        greeting.extend(u8::try_from(name.len()));
        greeting.extend_from_slice(name.as_bytes());
        greeting
    }

    /// Reads a greeting whose MAC is right.
    fn read(greeting: &[u8]) -> Result<Self, Refusal> {
        let (head, rest) =
            greeting.split_first_chunk::<GREETING_HEAD>().ok_or(Refusal::Truncated)?;
        let name = rest.split_last_chunk::<MAC>().ok_or(Refusal::Truncated)?.0;
        let name = std::str::from_utf8(name).map_err(|_| Refusal::Malformed)?;
        Ok(Self { incarnation: Incarnation(key::number(&head[1..9])), name: name.to_owned() })
    }
}

/// How long the greeting is that begins so.
///
/// # Errors
/// [`Refusal::WrongVersion`] for one of another version.
pub fn greeting_length(head: &[u8; GREETING_HEAD]) -> Result<usize, Refusal> {
    let [version, .., name] = head;
    if *version != VERSION {
        return Err(Refusal::WrongVersion);
    }
    Ok(GREETING_HEAD + usize::from(*name) + MAC)
}

/// A stream whose both sides have shown that they have the key.
#[derive(Debug)]
pub struct Session {
    /// The other side.
    pub peer: Introduction,
    /// Seals what is sent.
    pub sealer: FrameSealer,
    /// Opens what arrives.
    pub opener: FrameOpener,
}

/// The side that dials, once it has greeted.
#[derive(Debug)]
pub struct Dialling<'k> {
    key: &'k ClusterKey,
    own: Incarnation,
    greeting: Vec<u8>,
}

/// Begins a handshake, as the side that dials.
pub fn dial<'k>(key: &'k ClusterKey, me: &Introduction, nonce: &Nonce) -> Dialling<'k> {
    let mut greeting = me.write(nonce);
    let mac = key::sign(key.handshakes(), &[DIALS, &greeting]);
    greeting.extend_from_slice(mac.as_ref());
    Dialling { key, own: me.incarnation, greeting }
}

impl Dialling<'_> {
    /// What is sent first.
    pub fn greeting(&self) -> &[u8] {
        &self.greeting
    }

    /// Takes the answer. The confirmation has to be sent before all frames.
    ///
    /// # Errors
    /// Why the answer is refused.
    pub fn answered(self, answer: &[u8]) -> Result<(Session, [u8; CONFIRMATION]), Refusal> {
        let keys = self.key.handshakes();
        verify(keys, &[ANSWERS, &self.greeting], answer)?;
        let peer = Introduction::read(answer)?;
        if peer.incarnation == self.own {
            return Err(Refusal::Reflected);
        }
        let mut confirmation = [0; CONFIRMATION];
        confirmation.copy_from_slice(key::sign(keys, &[CONFIRMS, &self.greeting, answer]).as_ref());
        let sealer = FrameSealer::new(key::derive(keys, &[KEY_OF_DIALLER, &self.greeting, answer]));
        let opener =
            FrameOpener::new(key::derive(keys, &[KEY_OF_ANSWERER, &self.greeting, answer]));
        Ok((Session { peer, sealer, opener }, confirmation))
    }
}

/// The side that answers, once it has done so.
#[derive(Debug)]
pub struct Answering<'k> {
    key: &'k ClusterKey,
    peer: Introduction,
    greeting: Vec<u8>,
    answer: Vec<u8>,
}

/// Answers a greeting. Whoever has sent it may have heard it from somebody else: nothing is known of them before they
/// have confirmed.
///
/// # Errors
/// Why the greeting is refused.
pub fn answer<'k>(
    key: &'k ClusterKey,
    me: &Introduction,
    nonce: &Nonce,
    greeting: &[u8],
) -> Result<Answering<'k>, Refusal> {
    verify(key.handshakes(), &[DIALS], greeting)?;
    let peer = Introduction::read(greeting)?;
    if peer.incarnation == me.incarnation {
        return Err(Refusal::Reflected);
    }
    let mut answer = me.write(nonce);
    let mac = key::sign(key.handshakes(), &[ANSWERS, greeting, &answer]);
    answer.extend_from_slice(mac.as_ref());
    Ok(Answering { key, peer, greeting: greeting.to_vec(), answer })
}

impl Answering<'_> {
    /// What is sent back.
    pub fn answer(&self) -> &[u8] {
        &self.answer
    }

    /// Takes the confirmation.
    ///
    /// # Errors
    /// [`Refusal::WrongMac`] if it comes from somebody without the key.
    pub fn confirmed(self, confirmation: &[u8; CONFIRMATION]) -> Result<Session, Refusal> {
        let keys = self.key.handshakes();
        let said = [CONFIRMS, &self.greeting, &self.answer].concat();
        key::verify(keys, &said, confirmation)?;
        let sealer =
            FrameSealer::new(key::derive(keys, &[KEY_OF_ANSWERER, &self.greeting, &self.answer]));
        let opener =
            FrameOpener::new(key::derive(keys, &[KEY_OF_DIALLER, &self.greeting, &self.answer]));
        Ok(Session { peer: self.peer, sealer, opener })
    }
}

/// Whether a greeting is as long as it says, and its MAC right over what was said before and itself.
fn verify(keys: &hmac::Key, before: &[&[u8]], greeting: &[u8]) -> Result<(), Refusal> {
    let (head, _) = greeting.split_first_chunk::<GREETING_HEAD>().ok_or(Refusal::Truncated)?;
    match greeting_length(head)? {
        length if greeting.len() < length => return Err(Refusal::Truncated),
        length if greeting.len() > length => return Err(Refusal::TooLong),
        _ => {}
    }
    let (said, mac) = greeting.split_last_chunk::<MAC>().ok_or(Refusal::Truncated)?;
    key::verify(keys, &[&before.concat(), said].concat(), mac)
}
