//! Fuzzes the policy compiler with well-formed YAML generated from fields and values of the policy language.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slidegate_fuzz::policy_generator::GeneratedPolicy;

fuzz_target!(|policy: GeneratedPolicy| slidegate_fuzz::check_policy(&policy.0));
