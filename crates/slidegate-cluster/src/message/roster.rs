//! Who is there, as a node tells it.

use super::MessageError;
use super::varint::{Reader, write_varint};
use crate::pn_counter::Incarnation;

/// No roster lists more.
pub const MAX_ROSTER_ENTRIES: usize = 200;

/// No name has more bytes: so a full roster fits into a frame.
const MAX_ENTRY_NAME_BYTES: usize = 255;
/// Bytes of the shortest entry: a number, what it is, and the length of its name.
const MIN_ENTRY_BYTES: usize = 3;

const FLAG_LEFT: u8 = 1;

/// Who is there, as one node knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// Whether everybody whom the sender counts knows of the sender.
    pub is_settled: bool,
    /// The members that the sender counts, itself and the silent among them, and those that have left of late.
    pub entries: Vec<RosterEntry>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RosterEntry {
    /// Which life of the node.
    pub incarnation: Incarnation,
    /// The node's name.
    pub name: Box<str>,
    /// Whether it is known to count no more.
    pub has_left: bool,
}

impl Roster {
    /// Writes it; of too many members the first, and of a name that is too long its beginning.
    pub(super) fn write_varint(&self, bytes: &mut Vec<u8>) {
        let entries = &self.entries[..self.entries.len().min(MAX_ROSTER_ENTRIES)];
        bytes.push(u8::from(self.is_settled));
        write_varint(bytes, entries.len() as u64);
        for RosterEntry { incarnation, name, has_left } in entries {
            let name = &name[..name.floor_char_boundary(MAX_ENTRY_NAME_BYTES)];
            write_varint(bytes, incarnation.0);
            bytes.extend_from_slice(&[if *has_left { FLAG_LEFT } else { 0 }, name.len() as u8]);
            bytes.extend_from_slice(name.as_bytes());
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, MessageError> {
        let is_settled = decode_flag(reader)?;
        let count = reader.count(MIN_ENTRY_BYTES)?;
        if count > MAX_ROSTER_ENTRIES {
            return Err(MessageError::InvalidRoster);
        }
        let entries = (0..count).map(|_| RosterEntry::read(reader)).collect::<Result<_, _>>()?;
        Ok(Self { is_settled, entries })
    }
}

impl RosterEntry {
    fn read(reader: &mut Reader<'_>) -> Result<Self, MessageError> {
        let incarnation = Incarnation(reader.varint()?);
        let has_left = decode_flag(reader)?;
        let length = usize::from(reader.byte()?);
        let name =
            std::str::from_utf8(reader.bytes(length)?).map_err(|_| MessageError::InvalidRoster)?;
        Ok(Self { incarnation, name: name.into(), has_left })
    }
}

fn decode_flag(reader: &mut Reader<'_>) -> Result<bool, MessageError> {
    match reader.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(MessageError::InvalidRoster),
    }
}
