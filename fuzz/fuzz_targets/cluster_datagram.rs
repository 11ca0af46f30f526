//! Fuzzes datagrams received by a node: forged, modified, repeated or valid.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_fuzz::cluster::{DatagramInput, check_datagrams};

fuzz_target!(|datagrams: Vec<DatagramInput>| check_datagrams(&datagrams));
