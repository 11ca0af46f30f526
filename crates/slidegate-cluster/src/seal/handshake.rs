//! How a stream begins.
//!
//! ```text
//! who dials                                              who answers
//!     hello: version, incarnation, nonce, name, MAC_BYTES  ─►
//!  ◄─ hello of its own; its MAC_BYTES covers the first one, too
//!     confirmation: a MAC_BYTES over both                     ─►
//!     frames                                            ◄►
//! ```
//!
//! A greeting that somebody repeats is answered with another nonce, which only who has the key can confirm. Each MAC
//! says which of the three it is, so none passes for another. Both greetings make the keys of the two directions.
//!
//! ```text
//! version  incarnation  nonce  name's length  name  MAC_BYTES
//!    1          8         32         1          n    32      bytes; numbers are big-endian
//! ```

use ring::hmac;

use super::{ClusterKey, FrameOpener, FrameSealer, MAC_BYTES, RejectReason, VERSION, key};
use crate::pn_counter::Incarnation;

/// A number that was never used before: random, of a generator fit for keys.
pub type Nonce = [u8; 32];

/// Bytes of a greeting before the name, which tell how long it is.
pub const HELLO_HEADER_BYTES: usize = 1 + 8 + 32 + 1;

/// Bytes of the confirmation.
pub const CONFIRMATION_BYTES: usize = MAC_BYTES;

/// Bytes of the longest name. Of a longer one the end is left out.
pub const MAX_NAME_BYTES: usize = u8::MAX as usize;

const CLIENT_HELLO_LABEL: &[u8] = b"who dials greets";
const SERVER_HELLO_LABEL: &[u8] = b"who answers greets";
const CONFIRMATION_LABEL: &[u8] = b"who dials confirms";
const CLIENT_KEY_LABEL: &[u8] = b"key of who dials";
const SERVER_KEY_LABEL: &[u8] = b"key of who answers";

/// Who speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Which life of which node.
    pub incarnation: Incarnation,
    /// The node's name, for people.
    pub name: String,
}

impl PeerIdentity {
    fn write(&self, nonce: &Nonce) -> Vec<u8> {
        let name = &self.name[..self.name.floor_char_boundary(MAX_NAME_BYTES)];
        let mut hello = Vec::with_capacity(HELLO_HEADER_BYTES + name.len() + MAC_BYTES);
        hello.push(VERSION);
        hello.extend_from_slice(&self.incarnation.0.to_be_bytes());
        hello.extend_from_slice(nonce);
        hello.extend(u8::try_from(name.len()));
        hello.extend_from_slice(name.as_bytes());
        hello
    }

    /// Reads a greeting whose MAC is right.
    fn read(hello: &[u8]) -> Result<Self, RejectReason> {
        let (head, rest) =
            hello.split_first_chunk::<HELLO_HEADER_BYTES>().ok_or(RejectReason::Truncated)?;
        let name = rest.split_last_chunk::<MAC_BYTES>().ok_or(RejectReason::Truncated)?.0;
        let name = std::str::from_utf8(name).map_err(|_| RejectReason::Malformed)?;
        Ok(Self { incarnation: Incarnation(key::read_be(&head[1..9])), name: name.to_owned() })
    }
}

/// How long the greeting is that begins so.
///
/// # Errors
/// [`RejectReason::WrongVersion`] for one of another version.
pub fn hello_length(head: &[u8; HELLO_HEADER_BYTES]) -> Result<usize, RejectReason> {
    let [version, .., name] = head;
    if *version != VERSION {
        return Err(RejectReason::WrongVersion);
    }
    Ok(HELLO_HEADER_BYTES + usize::from(*name) + MAC_BYTES)
}

/// A stream whose both sides have shown that they have the key.
#[derive(Debug)]
pub struct Session {
    /// The other side.
    pub peer: PeerIdentity,
    /// Seals what is sent.
    pub sealer: FrameSealer,
    /// Opens what arrives.
    pub opener: FrameOpener,
}

/// The side that dials, once it has greeted.
#[derive(Debug)]
pub struct ClientHandshake<'k> {
    key: &'k ClusterKey,
    local: Incarnation,
    hello: Vec<u8>,
}

/// Begins a handshake, as the side that dials.
pub fn start_handshake<'k>(
    key: &'k ClusterKey,
    local: &PeerIdentity,
    nonce: &Nonce,
) -> ClientHandshake<'k> {
    let mut hello = local.write(nonce);
    let mac = key::sign(key.handshakes(), &[CLIENT_HELLO_LABEL, &hello]);
    hello.extend_from_slice(mac.as_ref());
    ClientHandshake { key, local: local.incarnation, hello }
}

impl ClientHandshake<'_> {
    /// What is sent first.
    pub fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// Takes the answer. The confirmation has to be sent before all frames.
    ///
    /// # Errors
    /// Why the answer is refused.
    pub fn on_response(
        self,
        response: &[u8],
    ) -> Result<(Session, [u8; CONFIRMATION_BYTES]), RejectReason> {
        let keys = self.key.handshakes();
        verify(keys, &[SERVER_HELLO_LABEL, &self.hello], response)?;
        let peer = PeerIdentity::read(response)?;
        if peer.incarnation == self.local {
            return Err(RejectReason::Reflected);
        }
        let mut confirmation = [0; CONFIRMATION_BYTES];
        confirmation.copy_from_slice(
            key::sign(keys, &[CONFIRMATION_LABEL, &self.hello, response]).as_ref(),
        );
        let sealer =
            FrameSealer::new(key::derive(keys, &[CLIENT_KEY_LABEL, &self.hello, response]));
        let opener =
            FrameOpener::new(key::derive(keys, &[SERVER_KEY_LABEL, &self.hello, response]));
        Ok((Session { peer, sealer, opener }, confirmation))
    }
}

/// The side that answers, once it has done so.
#[derive(Debug)]
pub struct ServerHandshake<'k> {
    key: &'k ClusterKey,
    peer: PeerIdentity,
    hello: Vec<u8>,
    response: Vec<u8>,
}

/// Answers a greeting. Whoever has sent it may have heard it from somebody else: nothing is known of them before they
/// have confirmed.
///
/// # Errors
/// Why the greeting is refused.
pub fn accept_handshake<'k>(
    key: &'k ClusterKey,
    local: &PeerIdentity,
    nonce: &Nonce,
    hello: &[u8],
) -> Result<ServerHandshake<'k>, RejectReason> {
    verify(key.handshakes(), &[CLIENT_HELLO_LABEL], hello)?;
    let peer = PeerIdentity::read(hello)?;
    if peer.incarnation == local.incarnation {
        return Err(RejectReason::Reflected);
    }
    let mut response = local.write(nonce);
    let mac = key::sign(key.handshakes(), &[SERVER_HELLO_LABEL, hello, &response]);
    response.extend_from_slice(mac.as_ref());
    Ok(ServerHandshake { key, peer, hello: hello.to_vec(), response })
}

impl ServerHandshake<'_> {
    /// What is sent back.
    pub fn response(&self) -> &[u8] {
        &self.response
    }

    /// Takes the confirmation.
    ///
    /// # Errors
    /// [`RejectReason::WrongMac`] if it comes from somebody without the key.
    pub fn on_confirmation(
        self,
        confirmation: &[u8; CONFIRMATION_BYTES],
    ) -> Result<Session, RejectReason> {
        let keys = self.key.handshakes();
        let sealed = [CONFIRMATION_LABEL, &self.hello, &self.response].concat();
        key::verify(keys, &sealed, confirmation)?;
        let sealer =
            FrameSealer::new(key::derive(keys, &[SERVER_KEY_LABEL, &self.hello, &self.response]));
        let opener =
            FrameOpener::new(key::derive(keys, &[CLIENT_KEY_LABEL, &self.hello, &self.response]));
        Ok(Session { peer: self.peer, sealer, opener })
    }
}

/// Whether a greeting is as long as it says, and its MAC right over what was said before and itself.
fn verify(keys: &hmac::Key, prefix: &[&[u8]], hello: &[u8]) -> Result<(), RejectReason> {
    let (head, _) =
        hello.split_first_chunk::<HELLO_HEADER_BYTES>().ok_or(RejectReason::Truncated)?;
    match hello_length(head)? {
        length if hello.len() < length => return Err(RejectReason::Truncated),
        length if hello.len() > length => return Err(RejectReason::TooLong),
        _ => {}
    }
    let (sealed, mac) = hello.split_last_chunk::<MAC_BYTES>().ok_or(RejectReason::Truncated)?;
    key::verify(keys, &[&prefix.concat(), sealed].concat(), mac)
}
