//! Tests that messages cannot be forged without the key, and cannot be replayed.

mod datagrams;
mod streams;

use super::*;
use crate::pn_counter::Incarnation;

const ALICE: Incarnation = Incarnation(0xA11CE);
const BOB: Incarnation = Incarnation(0xB0B);

fn test_key() -> ClusterKey {
    ClusterKey::new("a key for all of these tests").unwrap()
}

fn key_of_other_cluster() -> ClusterKey {
    ClusterKey::new("a key of some other cluster").unwrap()
}
