//! Tests of the TCP transport with clients and servers that are not nodes of the cluster, with an attacker between two
//! nodes, and with nodes whose credentials differ.

mod certificates;
mod credentials;
mod fixtures;
mod flood;
mod frames;
mod handshakes;
mod links;
mod log;
mod relay;
