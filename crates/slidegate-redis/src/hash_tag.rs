//! Hash tags: the part of a Redis key that determines its hash slot in a Redis Cluster.

use std::fmt;

use slidegate::internal::{name_value_pairs, write_name_value_pairs};
use slidegate::{Key, RedisOptions};

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
