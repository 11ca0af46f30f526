//! Any bytes on a connection between two nodes: from strangers, and from nodes, changed on the way or as they were sent.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_fuzz::cluster::{Conversation, hold_stream};

fuzz_target!(|conversation: Conversation| hold_stream(&conversation));
