//! Fuzzes the parser of policies with arbitrary text.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| slidegate_fuzz::check_policy(text));
