//! Tests of the guarantees of the [`Transport`](slidegate_cluster::transport::Transport) trait. The same test suite
//! runs with each transport.

mod fixtures;
mod network_faults;
mod simulated_network;
mod suite;

use std::time::Duration;

use fixtures::{ChannelFixture, TcpFixture};

/// Defines two tests for each test case of the suite: one with the channel transport and paused time, and one with the
/// TCP transport on loopback.
macro_rules! transport_tests {
    ($($test_case:ident),* $(,)?) => {
        mod channel {
            use super::*;
            $(#[tokio::test(start_paused = true)]
            async fn $test_case() {
                suite::$test_case(&mut ChannelFixture::new()).await;
            })*
        }
        mod tcp_loopback {
            use super::*;
            $(#[tokio::test]
            async fn $test_case() {
                let limit = Duration::from_secs(60);
                let mut fixture = TcpFixture::default();
                tokio::time::timeout(limit, suite::$test_case(&mut fixture)).await.expect("test timed out after 60 s");
            })*
        }
    };
}

transport_tests! {
    frames_arrive_unchanged_with_their_sender,
    frames_of_one_link_stay_in_order,
    link_comes_up_when_peer_starts,
    link_follows_stop_and_restart_of_peer,
    restarted_peer_is_new_incarnation,
    removed_peer_causes_no_events,
    introduced_nodes_meet_without_link,
    introduction_keeps_open_link,
    introduction_without_other_node_causes_no_event,
    non_peer_can_send_but_not_receive,
    node_is_not_its_own_peer,
    oversized_frame_alone_is_dropped,
    slow_peer_drops_frames_without_blocking_sender,
    dropped_next_future_loses_no_frame,
    traffic_is_counted_per_node,
}
