//! Fuzzes handshakes and streams between two nodes: forged, modified or valid.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_fuzz::cluster::{StreamInput, check_stream};

fuzz_target!(|input: StreamInput| check_stream(&input));
