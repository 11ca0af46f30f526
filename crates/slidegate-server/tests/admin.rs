//! Tests of the admin listener, with real server processes and real sockets.

mod explain;
mod health;
mod metrics;
mod observe;
mod origin;
mod probes;
mod prometheus_scrape;
mod samples;
mod store_failures;
mod top;
