//! Any datagrams that reach a node: from strangers, and from nodes, changed on the way or as they were sealed.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_fuzz::cluster::{Sent, hold_datagrams};

fuzz_target!(|sent: Vec<Sent>| hold_datagrams(&sent));
