//! Tests of policy reloads of a running server, with real processes, files and signals.

mod file_changes;
mod folder;
mod invalid_files;
mod policy_diff;
mod ratelimit;
mod under_load;
