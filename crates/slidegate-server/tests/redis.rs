//! Tests of the server with Redis as its store, with real processes and sockets.

mod cached_denials;
mod flags;
mod hot_keys;
mod keys;
mod limit_overrides;
mod long_keys;
mod lost_connections;
mod outage;
mod passwords;
mod permits;
mod reservations;
mod shared_counters;
mod topologies;
