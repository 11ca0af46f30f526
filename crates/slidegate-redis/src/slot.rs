//! Hash slots of a Redis Cluster, and hash tags: the part of a key that determines its slot.

use std::fmt;
use std::sync::OnceLock;

use slidegate::internal::{name_value_pairs, write_name_value_pairs};
use slidegate::{Key, RedisOptions};

/// Number of hash slots of a Redis Cluster.
pub const CLUSTER_SLOT_COUNT: usize = 16_384;

/// Returns the hash slot of a key. If the key has a hash tag, which is a non-empty text in its first braces, the slot
/// depends only on the tag (Redis Cluster specification, "Hash tags").
pub fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16::State::<crc16::XMODEM>::calculate(hashed.as_bytes()) % CLUSTER_SLOT_COUNT as u16
}

/// Returns a hash tag whose keys are in this slot: the smallest number whose text has this slot.
pub fn tag_in_slot(slot: u16) -> u32 {
    static TAGS: OnceLock<Box<[u32]>> = OnceLock::new();
    let tags = TAGS.get_or_init(|| {
        let mut tags = vec![None; CLUSTER_SLOT_COUNT];
        let mut missing = CLUSTER_SLOT_COUNT;
        for number in 0.. {
            let tag = &mut tags[usize::from(slot_of(&number.to_string()))];
            if tag.is_none() {
                *tag = Some(number);
                missing -= 1;
            }
            if missing == 0 {
                break;
            }
        }
        tags.into_iter().map(Option::unwrap_or_default).collect()
    });
    tags[usize::from(slot) % CLUSTER_SLOT_COUNT]
}

/// Returns the names and values of a key as text with a hash tag for Redis Cluster: only the part in braces determines
/// the hash slot. `{tenant=acme},route=r` has the same slot as `{tenant=acme}`, and `{tenant=acme#3}` is a sub-key.
/// Without options for Redis and without a sub-key, the text equals [`Key::identity`].
pub fn hash_tagged_identity(key: &Key<'_>) -> impl fmt::Display {
    let key = *key;
    fmt::from_fn(move |f| {
        let Some(pairs) = name_value_pairs(&key) else {
            return write!(f, "{}", key.identity());
        };
        let slot_by = key.redis().map_or(&[][..], RedisOptions::slot_by);
        f.write_str("{")?;
        match slot_by {
            [] => write_name_value_pairs(f, pairs.clone(), true)?,
            _ => {
                let tagged = slot_by.iter().filter_map(|&index| pairs.clone().nth(index));
                write_name_value_pairs(f, tagged, true)?;
            }
        }
        if let Some(part) = key.part() {
            // Texts are escaped, so they do not contain `#`.
            write!(f, "#{part}")?;
        }
        f.write_str("}")?;
        if slot_by.is_empty() || slot_by.len() == pairs.clone().count() {
            return Ok(());
        }
        f.write_str(",")?;
        let rest = pairs.enumerate().filter(|(index, _)| !slot_by.contains(index));
        write_name_value_pairs(f, rest.map(|(_, pair)| pair), false)
    })
}

#[cfg(test)]
mod tests;
