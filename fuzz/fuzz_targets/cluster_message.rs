//! Any messages that a node may hear once their seals are off: from nodes that have gone mad, too.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_fuzz::message::{Heard, hold_messages};

fuzz_target!(|heard: Vec<Heard>| hold_messages(&heard));
