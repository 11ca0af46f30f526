//! Fuzzes the datagrams that a cluster node receives: forged, modified, repeated or valid datagrams.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_fuzz::cluster::{DatagramInput, check_datagrams};

fuzz_target!(|datagrams: Vec<DatagramInput>| check_datagrams(&datagrams));
