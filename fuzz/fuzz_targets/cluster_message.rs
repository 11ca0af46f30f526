//! Fuzzes opened messages received by a node, including messages of faulty nodes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_fuzz::message::{TimedInput, check_messages};

fuzz_target!(|inputs: Vec<TimedInput>| check_messages(&inputs));
