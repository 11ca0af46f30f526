//! Who is there, as a node tells it.

use super::MessageError;
use super::varint::{Reader, put};
use crate::counts::Incarnation;

/// No roster lists more.
pub const MAX_LISTED: usize = 200;

/// No name has more bytes: so a full roster fits into a frame.
const LONGEST_NAME: usize = 255;
/// Bytes of the shortest entry: a number, what it is, and the length of its name.
const SHORTEST_ENTRY: usize = 3;

const LEFT: u8 = 1;

/// Who is there, as one node knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// Whether everybody whom the sender counts knows of the sender.
    pub is_settled: bool,
    /// The members that the sender counts, itself and the silent among them, and those that have left of late.
    pub listed: Vec<Listed>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Which life of the node.
    pub incarnation: Incarnation,
    /// The node's name.
    pub name: Box<str>,
    /// Whether it is known to count no more.
    pub has_left: bool,
}

impl Roster {
    /// Writes it; of too many members the first, and of a name that is too long its beginning.
    pub(super) fn put(&self, bytes: &mut Vec<u8>) {
        let listed = &self.listed[..self.listed.len().min(MAX_LISTED)];
        bytes.push(u8::from(self.is_settled));
        put(bytes, listed.len() as u64);
        for Listed { incarnation, name, has_left } in listed {
            let name = &name[..name.floor_char_boundary(LONGEST_NAME)];
            put(bytes, incarnation.0);
            bytes.extend_from_slice(&[if *has_left { LEFT } else { 0 }, name.len() as u8]);
            bytes.extend_from_slice(name.as_bytes());
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, MessageError> {
        let is_settled = read_flag(reader)?;
        let count = reader.count(SHORTEST_ENTRY)?;
        if count > MAX_LISTED {
            return Err(MessageError::Roster);
        }
        let listed = (0..count).map(|_| Listed::read(reader)).collect::<Result<_, _>>()?;
        Ok(Self { is_settled, listed })
    }
}

impl Listed {
    fn read(reader: &mut Reader<'_>) -> Result<Self, MessageError> {
        let incarnation = Incarnation(reader.number()?);
        let has_left = read_flag(reader)?;
        let length = usize::from(reader.byte()?);
        let name = std::str::from_utf8(reader.bytes(length)?).map_err(|_| MessageError::Roster)?;
        Ok(Self { incarnation, name: name.into(), has_left })
    }
}

fn read_flag(reader: &mut Reader<'_>) -> Result<bool, MessageError> {
    match reader.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(MessageError::Roster),
    }
}
