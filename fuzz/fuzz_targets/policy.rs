//! Any text as a policy, with a seed of good ones and a dictionary of their words.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| slidegate_fuzz::hold(text));
