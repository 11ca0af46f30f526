//! Tests of the log and the traces of the server, with real processes and sockets.

mod collector;
mod collector_failures;
mod logs;
mod traces;
mod unwritable_log;
