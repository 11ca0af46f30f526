//! Handshake at the start of a stream, in which both sides prove that they have the cluster's key.
//!
//! ```text
//! client                                                server
//!     hello: version, incarnation, nonce, name, MAC      ─►
//!  ◄─ hello of the server; its MAC also covers the client's hello
//!     confirmation: a MAC of both hellos                 ─►
//!     frames                                             ◄►
//! ```
//!
//! The response to a replayed hello contains a new nonce, which only a client with the key can confirm. Each MAC also
//! covers the message type, so an attacker cannot use a message as a message of another type. The keys of both
//! directions are derived from both hellos.
//!
//! ```text
//! version  incarnation  nonce  name length  name  MAC
//!    1          8         32        1         n    32      bytes; numbers are big-endian
//! ```

use ring::hmac;

use super::{ClusterKey, FrameOpener, FrameSealer, MAC_BYTES, RejectReason, VERSION, key};
use crate::pn_counter::Incarnation;

/// A number that is used once, from a cryptographically secure random generator.
pub type Nonce = [u8; 32];

/// Size of the part of a hello before the node name, in bytes.
pub const HELLO_HEADER_BYTES: usize = 1 + 8 + 32 + 1;

/// Size of the confirmation, the last message of the handshake, in bytes.
pub const CONFIRMATION_BYTES: usize = MAC_BYTES;

/// Maximum size of a node name, in bytes. Longer names are truncated.
pub const MAX_NAME_BYTES: usize = u8::MAX as usize;

/// Input of the MAC of a client's hello, so that the MAC is invalid for a message of another type. The labels are a part
/// of the protocol: nodes with other labels cannot connect to each other.
const CLIENT_HELLO_MAC_LABEL: &[u8] = b"who dials greets";
const SERVER_HELLO_MAC_LABEL: &[u8] = b"who answers greets";
const CONFIRMATION_MAC_LABEL: &[u8] = b"who dials confirms";
/// Input of the key derivation for frames that the client sends.
const CLIENT_FRAME_KEY_LABEL: &[u8] = b"key of who dials";
/// Input of the key derivation for frames that the server sends.
const SERVER_FRAME_KEY_LABEL: &[u8] = b"key of who answers";

/// Identity of one side of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// The incarnation of the node.
    pub incarnation: Incarnation,
    /// The name of the node, for display.
    pub name: String,
}

impl PeerIdentity {
    fn encode_hello(&self, nonce: &Nonce) -> Vec<u8> {
        let name = &self.name[..self.name.floor_char_boundary(MAX_NAME_BYTES)];
        let mut hello = Vec::with_capacity(HELLO_HEADER_BYTES + name.len() + MAC_BYTES);
        hello.push(VERSION);
        hello.extend_from_slice(&self.incarnation.0.to_be_bytes());
        hello.extend_from_slice(nonce);
        hello.extend(u8::try_from(name.len()));
        hello.extend_from_slice(name.as_bytes());
        hello
    }

    /// Decodes the identity in a hello. The caller has verified the MAC of the hello.
    fn decode_hello(hello: &[u8]) -> Result<Self, RejectReason> {
        let (header, rest) =
            hello.split_first_chunk::<HELLO_HEADER_BYTES>().ok_or(RejectReason::Truncated)?;
        let name = rest.split_last_chunk::<MAC_BYTES>().ok_or(RejectReason::Truncated)?.0;
        let name = std::str::from_utf8(name).map_err(|_| RejectReason::Malformed)?;
        Ok(Self {
            incarnation: Incarnation(key::read_big_endian_u64(&header[1..9])),
            name: name.to_owned(),
        })
    }
}

/// Reads the total length of a hello, in bytes, from its header.
///
/// # Errors
/// Returns [`RejectReason::WrongVersion`] if the hello does not have this version.
pub fn hello_length(header: &[u8; HELLO_HEADER_BYTES]) -> Result<usize, RejectReason> {
    let [version, .., name] = header;
    if *version != VERSION {
        return Err(RejectReason::WrongVersion);
    }
    Ok(HELLO_HEADER_BYTES + usize::from(*name) + MAC_BYTES)
}

/// A stream on which both sides have proved that they have the key.
#[derive(Debug)]
pub struct Session {
    /// Identity of the other side.
    pub peer: PeerIdentity,
    /// Sealer for outgoing frames.
    pub sealer: FrameSealer,
    /// Opener for incoming frames.
    pub opener: FrameOpener,
}

/// A handshake on the client side, after the client's hello was created.
#[derive(Debug)]
pub struct ClientHandshake<'k> {
    key: &'k ClusterKey,
    local: Incarnation,
    hello: Vec<u8>,
}

/// Starts a handshake on the client side: creates the client's hello.
pub fn start_handshake<'k>(
    key: &'k ClusterKey,
    local: &PeerIdentity,
    nonce: &Nonce,
) -> ClientHandshake<'k> {
    let mut hello = local.encode_hello(nonce);
    let mac = key::compute_mac(key.handshake_key(), &[CLIENT_HELLO_MAC_LABEL, &hello]);
    hello.extend_from_slice(mac.as_ref());
    ClientHandshake { key, local: local.incarnation, hello }
}

impl ClientHandshake<'_> {
    /// Returns the hello, which the client sends first.
    pub fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// Processes the server's response. The returned confirmation must be sent before any frame.
    ///
    /// # Errors
    /// Returns the reason for the rejection of the response.
    pub fn on_response(
        self,
        response: &[u8],
    ) -> Result<(Session, [u8; CONFIRMATION_BYTES]), RejectReason> {
        let keys = self.key.handshake_key();
        verify_hello_length_and_mac(keys, &[SERVER_HELLO_MAC_LABEL, &self.hello], response)?;
        let peer = PeerIdentity::decode_hello(response)?;
        if peer.incarnation == self.local {
            return Err(RejectReason::Reflected);
        }
        let mut confirmation = [0; CONFIRMATION_BYTES];
        confirmation.copy_from_slice(
            key::compute_mac(keys, &[CONFIRMATION_MAC_LABEL, &self.hello, response]).as_ref(),
        );
        let sealer = FrameSealer::new(key::derive_key(
            keys,
            &[CLIENT_FRAME_KEY_LABEL, &self.hello, response],
        ));
        let opener = FrameOpener::new(key::derive_key(
            keys,
            &[SERVER_FRAME_KEY_LABEL, &self.hello, response],
        ));
        Ok((Session { peer, sealer, opener }, confirmation))
    }
}

/// A handshake on the server side, after the server's response was created.
#[derive(Debug)]
pub struct ServerHandshake<'k> {
    key: &'k ClusterKey,
    peer: PeerIdentity,
    hello: Vec<u8>,
    response: Vec<u8>,
}

/// Responds to a client's hello. The hello may be a replay, so the client is not authenticated before its confirmation.
///
/// # Errors
/// Returns the reason for the rejection of the hello.
pub fn accept_handshake<'k>(
    key: &'k ClusterKey,
    local: &PeerIdentity,
    nonce: &Nonce,
    hello: &[u8],
) -> Result<ServerHandshake<'k>, RejectReason> {
    verify_hello_length_and_mac(key.handshake_key(), &[CLIENT_HELLO_MAC_LABEL], hello)?;
    let peer = PeerIdentity::decode_hello(hello)?;
    if peer.incarnation == local.incarnation {
        return Err(RejectReason::Reflected);
    }
    let mut response = local.encode_hello(nonce);
    let mac = key::compute_mac(key.handshake_key(), &[SERVER_HELLO_MAC_LABEL, hello, &response]);
    response.extend_from_slice(mac.as_ref());
    Ok(ServerHandshake { key, peer, hello: hello.to_vec(), response })
}

impl ServerHandshake<'_> {
    /// Returns the response that the server sends to the client.
    pub fn response(&self) -> &[u8] {
        &self.response
    }

    /// Processes the client's confirmation.
    ///
    /// # Errors
    /// Returns [`RejectReason::WrongMac`] if the client does not have the key.
    pub fn on_confirmation(
        self,
        confirmation: &[u8; CONFIRMATION_BYTES],
    ) -> Result<Session, RejectReason> {
        let keys = self.key.handshake_key();
        let sealed = [CONFIRMATION_MAC_LABEL, &self.hello, &self.response].concat();
        key::verify_mac(keys, &sealed, confirmation)?;
        let sealer = FrameSealer::new(key::derive_key(
            keys,
            &[SERVER_FRAME_KEY_LABEL, &self.hello, &self.response],
        ));
        let opener = FrameOpener::new(key::derive_key(
            keys,
            &[CLIENT_FRAME_KEY_LABEL, &self.hello, &self.response],
        ));
        Ok(Session { peer: self.peer, sealer, opener })
    }
}

/// Verifies the length of a hello, and verifies its MAC, which covers `prefix` and the hello itself.
fn verify_hello_length_and_mac(
    keys: &hmac::Key,
    prefix: &[&[u8]],
    hello: &[u8],
) -> Result<(), RejectReason> {
    let (header, _) =
        hello.split_first_chunk::<HELLO_HEADER_BYTES>().ok_or(RejectReason::Truncated)?;
    match hello_length(header)? {
        length if hello.len() < length => return Err(RejectReason::Truncated),
        length if hello.len() > length => return Err(RejectReason::TooLong),
        _ => {}
    }
    let (sealed, mac) = hello.split_last_chunk::<MAC_BYTES>().ok_or(RejectReason::Truncated)?;
    key::verify_mac(keys, &[&prefix.concat(), sealed].concat(), mac)
}
