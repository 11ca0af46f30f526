//! Fuzzes the messages that a cluster node receives from authenticated nodes, including faulty nodes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_fuzz::message::{TimedInput, check_messages};

fuzz_target!(|inputs: Vec<TimedInput>| check_messages(&inputs));
