//! Tests that a cluster node rejects and counts frames of unauthenticated peers.

use std::io::Write;
use std::net::{TcpStream, UdpSocket};

use crate::node::{
    NodeConfig, node_configs, policy_with_max, start_nodes, unused_address, wait_for_remaining,
    wait_until, wait_until_connected,
};

#[test]
fn frames_with_wrong_cluster_key_are_rejected() {
    let configs = node_configs::<3>(&policy_with_max(50, 5));
    let nodes = start_nodes(&configs);
    let rejected =
        || nodes[0].metric_sum("slidegate_cluster_rejected_frames_total", r#"reason="wrong_mac""#);
    for (name, key) in [("other", "a key that only strangers know"), ("none", "")] {
        let (name, listen, before) = (name.to_owned(), unused_address(), rejected());
        let outsider = NodeConfig { name, listen, key, ..configs[0].clone() }.start();
        wait_until("its frames are rejected", rejected, |now| *now > before);
        assert_eq!(outsider.members_in_state("alive"), [""; 0]);
        assert!(outsider.count_allowed("default", 60) <= 50, "it counts alone");
    }
    wait_until_connected(&nodes.each_ref());
    wait_for_remaining(&nodes.each_ref(), "default", 50);
}

#[test]
fn random_bytes_are_counted_as_rejected_frames() {
    let configs = node_configs::<2>(&policy_with_max(50, 5));
    let nodes = start_nodes(&configs);
    let target = configs[0].listen;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let rejected = || nodes[0].metric_sum("slidegate_cluster_rejected_frames_total", "");
    let before = rejected();
    for length in [0, 1, 50, 200, 1_400, 60_000] {
        socket.send_to(&vec![0xA5; length], target).unwrap();
        let mut stream = TcpStream::connect(target).unwrap();
        // The node may close the connection before all bytes are written.
        let _ = stream.write_all(&vec![0x5A; length]);
    }
    wait_until("the frames are counted", rejected, |now| *now >= before + 6.0);
    wait_until_connected(&nodes.each_ref());
    assert_eq!(nodes[0].count_allowed("default", 20), 20);
    wait_for_remaining(&nodes.each_ref(), "default", 30);
}
