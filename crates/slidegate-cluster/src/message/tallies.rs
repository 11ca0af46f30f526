//! Tallies in a frame: a table of what many of them share, and a line for each.
//!
//! ```text
//! slots:   count, then of each: length of a bucket, buckets, incarnation, first bucket
//! tallies: count, then of each: head, [fingerprint: 8 bytes], bucket, charged, [given back]
//! ```
//!
//! A *slot* is a shape, an incarnation and the bucket of the first tally that has both; the bucket of each is told as
//! the difference from that. The head is the slot's number, shifted by two, and two bits: that the key is the one
//! before, and that something was given back. So a key that has changed takes 8 bytes and three small numbers.

use std::collections::HashMap;

use slidegate::algorithm::sliding_buckets::MAX_BUCKETS;

use super::MessageError;
use super::varint::{LONGEST, Reader, folded, put, unfolded};
use crate::counts::{BucketLayout, Incarnation, Tally, Told};

const SAME_KEY: u64 = 1;
const GIVES_BACK: u64 = 2;
const SLOT_SHIFT: u32 = 2;

/// Bytes of the longest line and of its slot, if that is new.
const LONGEST_TALLY: usize = 8 + 8 * LONGEST;
/// Bytes of the shortest slot.
const SHORTEST_SLOT: usize = 4;
/// Bytes of the shortest line.
const SHORTEST_LINE: usize = 3;

/// Makes the bytes of tallies, as many as there is room for.
#[derive(Debug, Default)]
pub(super) struct Lines {
    slots: HashMap<(BucketLayout, Incarnation), Slot>,
    slot_bytes: Vec<u8>,
    last: Option<((BucketLayout, Incarnation), Slot)>,
    last_key: Option<u64>,
    lines: u64,
    line_bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    number: u64,
    first_bucket: u64,
}

impl Lines {
    /// Whether another is sure to fit into so many bytes.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        let counts = 2 * LONGEST;
        self.slot_bytes.len() + self.line_bytes.len() + counts + LONGEST_TALLY <= bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines == 0
    }

    pub(super) fn push(&mut self, told: &Told) {
        let slot = self.slot(told);
        let same_key = if self.last_key == Some(told.key) { SAME_KEY } else { 0 };
        let is_refund = if told.tally.given_back > 0 { GIVES_BACK } else { 0 };
        let bytes = &mut self.line_bytes;
        put(bytes, slot.number << SLOT_SHIFT | same_key | is_refund);
        if same_key == 0 {
            bytes.extend_from_slice(&told.key.to_le_bytes());
        }
        put(bytes, folded(slot.first_bucket, told.bucket));
        put(bytes, told.tally.charged);
        if is_refund != 0 {
            put(bytes, told.tally.given_back);
        }
        self.last_key = Some(told.key);
        self.lines += 1;
    }

    fn slot(&mut self, told: &Told) -> Slot {
        let shared = (told.shape, told.incarnation);
        if let Some((_, slot)) = self.last.filter(|(last, _)| *last == shared) {
            return slot;
        }
        let number = self.slots.len() as u64;
        let slot = *self.slots.entry(shared).or_insert_with(|| {
            put(&mut self.slot_bytes, told.shape.bucket_us);
            put(&mut self.slot_bytes, u64::from(told.shape.buckets));
            put(&mut self.slot_bytes, told.incarnation.0);
            put(&mut self.slot_bytes, told.bucket);
            Slot { number, first_bucket: told.bucket }
        });
        self.last = Some((shared, slot));
        slot
    }

    /// The bytes; what comes next begins anew.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let Self { slots, slot_bytes, line_bytes, lines, .. } = std::mem::take(self);
        let mut bytes = Vec::with_capacity(slot_bytes.len() + line_bytes.len() + 4);
        put(&mut bytes, slots.len() as u64);
        bytes.extend_from_slice(&slot_bytes);
        put(&mut bytes, lines);
        bytes.extend_from_slice(&line_bytes);
        bytes
    }
}

/// Reads tallies up to the end.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<Vec<Told>, MessageError> {
    let mut slots = Vec::new();
    for _ in 0..reader.count(SHORTEST_SLOT)? {
        slots.push(read_slot(reader)?);
    }
    let lines = reader.count(SHORTEST_LINE)?;
    // What it allocates is a few times the bytes that are there, whatever they claim.
    let mut tallies: Vec<Told> = Vec::with_capacity(lines);
    for _ in 0..lines {
        let last_key = tallies.last().map(|told| told.key);
        tallies.push(read_line(reader, &slots, last_key)?);
    }
    Ok(tallies)
}

fn read_slot(reader: &mut Reader<'_>) -> Result<(BucketLayout, Incarnation, u64), MessageError> {
    let bucket_us = reader.number()?;
    // The running bucket counts, too.
    let buckets = u32::try_from(reader.number()?).map_err(|_| MessageError::BucketLayout)?;
    if bucket_us == 0 || buckets == 0 || u64::from(buckets) > MAX_BUCKETS + 1 {
        return Err(MessageError::BucketLayout);
    }
    Ok((BucketLayout { bucket_us, buckets }, Incarnation(reader.number()?), reader.number()?))
}

fn read_line(
    reader: &mut Reader<'_>,
    slots: &[(BucketLayout, Incarnation, u64)],
    last_key: Option<u64>,
) -> Result<Told, MessageError> {
    let head = reader.number()?;
    let slot = usize::try_from(head >> SLOT_SHIFT).ok().and_then(|number| slots.get(number));
    let &(shape, incarnation, first_bucket) = slot.ok_or(MessageError::Slot)?;
    let key = match head & SAME_KEY {
        0 => reader.fixed()?,
        _ => last_key.ok_or(MessageError::Key)?,
    };
    let bucket = unfolded(first_bucket, reader.number()?);
    let charged = reader.number()?;
    let given_back = if head & GIVES_BACK == 0 { 0 } else { reader.number()? };
    Ok(Told { key, shape, incarnation, bucket, tally: Tally { charged, given_back } })
}
