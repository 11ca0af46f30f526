//! Any text as a policy.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| slidegate_fuzz::hold(text));
