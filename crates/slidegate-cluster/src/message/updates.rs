//! Counter updates in messages.

use std::collections::HashMap;

use slidegate::algorithm::MAX_BUCKETS;

use super::{FrameBody, MAX_UPDATE_HEADER_BYTES, MessageError, wire};
use crate::pn_counter::{BucketLayout, CounterUpdate, Incarnation, PnCounter};
use crate::transport::MAX_FRAME_BYTES;

/// Maximum size of an encoded update, in bytes: 8 for the key, and 10 for each of three integers.
const MAX_UPDATE_BYTES: usize = 38;

/// Maximum size of a group without its updates, in bytes: six integers, and the lengths of four columns.
const MAX_GROUP_BYTES: usize = 88;

/// A builder that packs counter updates into frame bodies.
#[derive(Debug, Default)]
pub struct FrameBodyBuilder {
    finished: Vec<FrameBody>,
    groups: Vec<wire::UpdateGroup>,
    group_indexes: HashMap<(BucketLayout, Incarnation), usize>,
    /// The group of the last update, and its index. Most updates belong to the same group as the one before.
    last: Option<((BucketLayout, Incarnation), usize)>,
    updates: usize,
}

impl FrameBodyBuilder {
    /// Adds an update to the current frame body. Begins a new body first if the current one is full.
    pub fn push(&mut self, update: &CounterUpdate) {
        let max_bytes = MAX_UPDATE_HEADER_BYTES
            + (self.groups.len() + 1) * MAX_GROUP_BYTES
            + (self.updates + 1) * MAX_UPDATE_BYTES;
        if max_bytes > MAX_FRAME_BYTES {
            self.finish_current_frame_body();
        }
        let index = self.find_or_add_group(update);
        let group = &mut self.groups[index];
        if update.units.removed > 0 {
            group.removed_units.resize(group.keys.len(), 0);
        }
        if update.units.removed > 0 || !group.removed_units.is_empty() {
            group.removed_units.push(update.units.removed);
        }
        group.keys.push(update.key);
        group.bucket_offsets.push(update.bucket.wrapping_sub(group.first_bucket) as i64);
        group.charged_units.push(update.units.charged);
        self.updates += 1;
    }

    fn find_or_add_group(&mut self, update: &CounterUpdate) -> usize {
        let shared = (update.layout, update.incarnation);
        if let Some((_, index)) = self.last.filter(|(last, _)| *last == shared) {
            return index;
        }
        let groups = &mut self.groups;
        let index =
            *self.group_indexes.entry(shared).or_insert_with(|| {
                let BucketLayout {
                    bucket_us,
                    buckets,
                    mean_excess_us,
                    epoch_offset_in_first_period_s,
                } = update.layout;
                groups.push(wire::UpdateGroup {
                    bucket_us,
                    buckets,
                    mean_excess_us,
                    epoch_offset_in_first_period_s,
                    incarnation: update.incarnation.0,
                    first_bucket: update.bucket,
                    ..wire::UpdateGroup::default()
                });
                groups.len() - 1
            });
        self.last = Some((shared, index));
        index
    }

    fn finish_current_frame_body(&mut self) {
        let groups = std::mem::take(&mut self.groups);
        let body = wire::UpdatesBody { groups, ..wire::UpdatesBody::default() };
        self.finished.push(FrameBody::from_wire(&body));
        self.group_indexes.clear();
        (self.last, self.updates) = (None, 0);
    }

    /// Returns all frame bodies. The list is empty if no update was added.
    pub fn finish(mut self) -> Vec<FrameBody> {
        if self.updates > 0 {
            self.finish_current_frame_body();
        }
        self.finished
    }
}

/// Returns the updates of all groups.
pub(super) fn decode_update_groups(
    groups: Vec<wire::UpdateGroup>,
) -> Result<Vec<CounterUpdate>, MessageError> {
    let mut updates = Vec::with_capacity(groups.iter().map(|group| group.keys.len()).sum());
    for group in groups {
        let layout = decode_bucket_layout(&group).ok_or(MessageError::InvalidUpdates)?;
        let wire::UpdateGroup {
            incarnation,
            first_bucket,
            keys,
            bucket_offsets,
            charged_units,
            removed_units,
            ..
        } = group;
        let is_valid = keys.len() == bucket_offsets.len()
            && keys.len() == charged_units.len()
            && (removed_units.is_empty() || keys.len() == removed_units.len());
        if !is_valid {
            return Err(MessageError::InvalidUpdates);
        }
        let removed_units = removed_units.into_iter().chain(std::iter::repeat(0));
        let columns = keys.into_iter().zip(bucket_offsets).zip(charged_units).zip(removed_units);
        updates.extend(columns.map(|(((key, offset), charged), removed)| CounterUpdate {
            key,
            layout,
            incarnation: Incarnation(incarnation),
            bucket: first_bucket.wrapping_add(offset as u64),
            units: PnCounter { charged, removed },
        }));
    }
    Ok(updates)
}

fn decode_bucket_layout(group: &wire::UpdateGroup) -> Option<BucketLayout> {
    let wire::UpdateGroup {
        bucket_us,
        buckets,
        mean_excess_us,
        epoch_offset_in_first_period_s,
        ..
    } = *group;
    // The number of buckets includes the current bucket, so it may be one more than the maximum of a limit.
    let is_valid =
        mean_excess_us < bucket_us && (1..=MAX_BUCKETS + 1).contains(&u64::from(buckets));
    is_valid.then_some(BucketLayout {
        bucket_us,
        buckets,
        mean_excess_us,
        epoch_offset_in_first_period_s,
    })
}
