//! What every transport promises, checked on each.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test may panic")]

mod carriers;
mod suite;
mod weather;

use std::time::Duration;

use carriers::{Tcp, Within};

/// Runs each promise over a transport of each kind: within the process on paused time, over TCP on loopback.
macro_rules! promises {
    ($($promise:ident),* $(,)?) => {
        mod within {
            use super::*;
            $(#[tokio::test(start_paused = true)]
            async fn $promise() {
                suite::$promise(&mut Within::new()).await;
            })*
        }
        mod over_tcp {
            use super::*;
            $(#[tokio::test]
            async fn $promise() {
                let limit = Duration::from_secs(60);
                let mut carrier = Tcp::default();
                tokio::time::timeout(limit, suite::$promise(&mut carrier)).await.expect("it takes too long");
            })*
        }
    };
}

promises! {
    frames_arrive_whole_and_say_who_sent_them,
    frames_keep_their_order_while_a_link_lasts,
    a_link_comes_up_once_the_peer_is_there,
    a_link_goes_down_and_comes_up_with_the_peer,
    a_restarted_peer_is_another_one,
    peers_that_are_left_out_are_not_spoken_of,
    who_is_no_peer_is_heard_but_not_told,
    a_node_is_no_peer_of_itself,
    a_frame_too_long_is_dropped_and_nothing_else,
    a_peer_that_does_not_read_makes_frames_be_dropped_and_nobody_wait,
    what_comes_is_not_lost_with_a_dropped_future,
    traffic_is_counted_for_each_node,
}
