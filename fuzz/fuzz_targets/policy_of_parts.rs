//! Policies made of the language's own parts: well-formed YAML, so that all goes into what it means.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_fuzz::parts::Draft;

fuzz_target!(|draft: Draft| slidegate_fuzz::hold(&draft.0));
