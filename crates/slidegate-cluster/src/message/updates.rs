//! Wire format of counter updates: a table of groups, then the updates.
//!
//! ```text
//! groups:  count, then for each: bucket length, buckets, drift, incarnation, first bucket
//! updates: count, then for each: head, [fingerprint: 8 bytes], bucket, charged, [removed]
//! ```
//!
//! A *group* consists of a bucket layout, an incarnation, and a first bucket. Updates with the same layout and the same
//! incarnation belong to the same group. The first bucket is the bucket of the first update in the group, and each
//! update encodes its bucket as the difference from it. The head of an update is the index of its group, shifted left
//! by two bits, plus two flags. One flag means that the update has the same key as the previous update. The other flag
//! means that a number of removed units follows. A changed key thus takes 8 bytes and three small integers.

use std::collections::HashMap;

use slidegate::internal::MAX_BUCKETS;

use super::MessageError;
use super::varint::{ByteReader, MAX_VARINT_BYTES, decode_delta, encode_delta, write_varint};
use crate::pn_counter::{BucketLayout, CounterUpdate, Incarnation, PnCounter};

const UPDATE_FLAG_SAME_KEY: u64 = 1;
const UPDATE_FLAG_HAS_REMOVED_UNITS: u64 = 2;
/// Number of flag bits at the low end of an update's first integer. The other bits are the index of its group.
const UPDATE_FLAG_BIT_COUNT: u32 = 2;

/// Maximum size of an encoded update plus the group that the update may add to the frame, in bytes.
const MAX_UPDATE_BYTES_WITH_GROUP: usize = 8 + 9 * MAX_VARINT_BYTES;
/// Minimum size of an encoded group (bucket layout, incarnation and first bucket), in bytes.
const MIN_UPDATE_GROUP_BYTES: usize = 5;
/// Minimum size of an encoded update, in bytes.
const MIN_UPDATE_BYTES: usize = 3;

/// An encoder for the counter updates of one frame.
#[derive(Debug, Default)]
pub(super) struct UpdateEncoder {
    groups: HashMap<(BucketLayout, Incarnation), UpdateGroup>,
    group_bytes: Vec<u8>,
    last: Option<((BucketLayout, Incarnation), UpdateGroup)>,
    last_key: Option<u64>,
    count: u64,
    update_bytes: Vec<u8>,
}

/// The index of a group in its frame, and the bucket from which the buckets of the group's updates are counted.
#[derive(Clone, Copy, Debug)]
struct UpdateGroup {
    index: u64,
    first_bucket: u64,
}

impl UpdateEncoder {
    /// Returns `true` if one more update of maximum size fits into an encoding of at most `bytes` bytes.
    pub(super) fn has_capacity_for_update(&self, bytes: usize) -> bool {
        let counts = 2 * MAX_VARINT_BYTES;
        self.group_bytes.len() + self.update_bytes.len() + counts + MAX_UPDATE_BYTES_WITH_GROUP
            <= bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn push(&mut self, update: &CounterUpdate) {
        let group = self.find_or_add_group(update);
        let same_key_flag =
            if self.last_key == Some(update.key) { UPDATE_FLAG_SAME_KEY } else { 0 };
        let removed_flag = if update.units.removed > 0 { UPDATE_FLAG_HAS_REMOVED_UNITS } else { 0 };
        let bytes = &mut self.update_bytes;
        write_varint(bytes, group.index << UPDATE_FLAG_BIT_COUNT | same_key_flag | removed_flag);
        if same_key_flag == 0 {
            bytes.extend_from_slice(&update.key.to_le_bytes());
        }
        write_varint(bytes, encode_delta(group.first_bucket, update.bucket));
        write_varint(bytes, update.units.charged);
        if removed_flag != 0 {
            write_varint(bytes, update.units.removed);
        }
        self.last_key = Some(update.key);
        self.count += 1;
    }

    fn find_or_add_group(&mut self, update: &CounterUpdate) -> UpdateGroup {
        let shared = (update.layout, update.incarnation);
        if let Some((_, group)) = self.last.filter(|(last, _)| *last == shared) {
            return group;
        }
        let index = self.groups.len() as u64;
        let group = *self.groups.entry(shared).or_insert_with(|| {
            write_varint(&mut self.group_bytes, update.layout.bucket_us);
            write_varint(&mut self.group_bytes, u64::from(update.layout.buckets));
            write_varint(&mut self.group_bytes, update.layout.drift_us);
            write_varint(&mut self.group_bytes, update.incarnation.0);
            write_varint(&mut self.group_bytes, update.bucket);
            UpdateGroup { index, first_bucket: update.bucket }
        });
        self.last = Some((shared, group));
        group
    }

    /// Returns the encoded bytes and resets the encoder.
    pub(super) fn take_bytes(&mut self) -> Vec<u8> {
        let Self { groups, group_bytes, update_bytes, count, .. } = std::mem::take(self);
        let mut bytes = Vec::with_capacity(group_bytes.len() + update_bytes.len() + 4);
        write_varint(&mut bytes, groups.len() as u64);
        bytes.extend_from_slice(&group_bytes);
        write_varint(&mut bytes, count);
        bytes.extend_from_slice(&update_bytes);
        bytes
    }
}

/// Decodes the updates at the end of a frame.
pub(super) fn decode(reader: &mut ByteReader<'_>) -> Result<Vec<CounterUpdate>, MessageError> {
    let mut groups = Vec::new();
    for _ in 0..reader.read_list_length(MIN_UPDATE_GROUP_BYTES)? {
        groups.push(decode_group(reader)?);
    }
    let count = reader.read_list_length(MIN_UPDATE_BYTES)?;
    // The count is at most the number of remaining bytes, so the allocation is at most a small multiple of the frame
    // size.
    let mut updates: Vec<CounterUpdate> = Vec::with_capacity(count);
    for _ in 0..count {
        let last_key = updates.last().map(|update| update.key);
        updates.push(decode_update(reader, &groups, last_key)?);
    }
    Ok(updates)
}

fn decode_group(
    reader: &mut ByteReader<'_>,
) -> Result<(BucketLayout, Incarnation, u64), MessageError> {
    let bucket_us = reader.read_varint()?;
    // The current bucket is included in the number of buckets.
    let buckets = u32::try_from(reader.read_varint()?).map_err(|_| MessageError::InvalidShape)?;
    let drift_us = reader.read_varint()?;
    let is_valid = drift_us < bucket_us && (1..=MAX_BUCKETS + 1).contains(&u64::from(buckets));
    if !is_valid {
        return Err(MessageError::InvalidShape);
    }
    Ok((
        BucketLayout { bucket_us, buckets, drift_us },
        Incarnation(reader.read_varint()?),
        reader.read_varint()?,
    ))
}

fn decode_update(
    reader: &mut ByteReader<'_>,
    groups: &[(BucketLayout, Incarnation, u64)],
    last_key: Option<u64>,
) -> Result<CounterUpdate, MessageError> {
    let head = reader.read_varint()?;
    let group =
        usize::try_from(head >> UPDATE_FLAG_BIT_COUNT).ok().and_then(|index| groups.get(index));
    let &(layout, incarnation, first_bucket) = group.ok_or(MessageError::UnknownGroup)?;
    let key = match head & UPDATE_FLAG_SAME_KEY {
        0 => reader.read_little_endian_u64()?,
        _ => last_key.ok_or(MessageError::MissingKey)?,
    };
    let bucket = decode_delta(first_bucket, reader.read_varint()?);
    let charged = reader.read_varint()?;
    let removed =
        if head & UPDATE_FLAG_HAS_REMOVED_UNITS == 0 { 0 } else { reader.read_varint()? };
    Ok(CounterUpdate { key, layout, incarnation, bucket, units: PnCounter { charged, removed } })
}
