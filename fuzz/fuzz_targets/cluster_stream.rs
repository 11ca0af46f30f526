//! Fuzzes the handshake and the stream of frames between two cluster nodes: forged, modified or valid bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_fuzz::cluster::{StreamInput, check_stream};

fuzz_target!(|input: StreamInput| check_stream(&input));
