//! Wire format of rosters. A roster is the member list that nodes send to each other.

use super::MessageError;
use super::varint::{ByteReader, write_varint};
use crate::pn_counter::Incarnation;

/// Maximum number of entries in a roster.
pub const MAX_ROSTER_ENTRIES: usize = 200;

/// Maximum size of a member's name in bytes. A full roster with names of this size fits into one frame.
const MAX_ROSTER_NAME_BYTES: usize = 255;
/// Minimum size of a roster entry in bytes: one byte each for the incarnation, the flag and the length of the name.
const MIN_ROSTER_ENTRY_BYTES: usize = 3;

const ROSTER_ENTRY_FLAG_HAS_LEFT: u8 = 1;

/// The members of a cluster, as known to one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// Whether the sender is settled: all other members, or voters that are more than half of all members, have
    /// acknowledged its frames.
    pub is_settled: bool,
    /// The members known to the sender, including itself and silent members, and members that left recently.
    pub entries: Vec<RosterEntry>,
}

/// One member of a roster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RosterEntry {
    /// The incarnation of the member.
    pub incarnation: Incarnation,
    /// The name of the member.
    pub name: Box<str>,
    /// Whether the member has left and charges nothing more.
    pub has_left: bool,
}

impl Roster {
    /// Encodes the roster. Entries after the first [`MAX_ROSTER_ENTRIES`] are dropped, and long names are truncated.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        let entries = &self.entries[..self.entries.len().min(MAX_ROSTER_ENTRIES)];
        bytes.push(u8::from(self.is_settled));
        write_varint(bytes, entries.len() as u64);
        for RosterEntry { incarnation, name, has_left } in entries {
            let name = &name[..name.floor_char_boundary(MAX_ROSTER_NAME_BYTES)];
            write_varint(bytes, incarnation.0);
            bytes.extend_from_slice(&[
                if *has_left { ROSTER_ENTRY_FLAG_HAS_LEFT } else { 0 },
                name.len() as u8,
            ]);
            bytes.extend_from_slice(name.as_bytes());
        }
    }

    pub(super) fn decode(reader: &mut ByteReader<'_>) -> Result<Self, MessageError> {
        let is_settled = decode_bool(reader)?;
        let count = reader.read_list_length(MIN_ROSTER_ENTRY_BYTES)?;
        if count > MAX_ROSTER_ENTRIES {
            return Err(MessageError::InvalidRoster);
        }
        let entries = (0..count).map(|_| RosterEntry::decode(reader)).collect::<Result<_, _>>()?;
        Ok(Self { is_settled, entries })
    }
}

impl RosterEntry {
    fn decode(reader: &mut ByteReader<'_>) -> Result<Self, MessageError> {
        let incarnation = Incarnation(reader.read_varint()?);
        let has_left = decode_bool(reader)?;
        let length = usize::from(reader.read_byte()?);
        let name = std::str::from_utf8(reader.read_bytes(length)?)
            .map_err(|_| MessageError::InvalidRoster)?;
        Ok(Self { incarnation, name: name.into(), has_left })
    }
}

fn decode_bool(reader: &mut ByteReader<'_>) -> Result<bool, MessageError> {
    match reader.read_byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(MessageError::InvalidRoster),
    }
}
