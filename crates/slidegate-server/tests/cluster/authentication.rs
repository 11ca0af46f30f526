//! Tests that a cluster node rejects, counts and logs connections of other programs and of nodes with another key.

use std::io::Write;
use std::net::TcpStream;

use crate::cluster::node::{
    CLUSTER_KEY, NodeConfig, key_flags, node_configs, policy_with_max, start_nodes, unused_address,
    wait_for_remaining, wait_until, wait_until_connected,
};
use crate::cluster::rolling_restart::{LOAD_MAX, LOAD_MAX_UNSYNCED, RollingRestartLoad};
use crate::common::TempFile;
use crate::common::certificates::path_str;

/// The metric of rejected connections and messages.
pub const REJECTED: &str = "slidegate_cluster_rejected_frames_total";

#[test]
fn node_with_other_key_counts_alone() {
    let configs = node_configs::<3>(&policy_with_max(50, 5));
    let nodes = start_nodes(&configs);
    for (name, credentials) in
        [("other", key_flags("a key that only strangers know")), ("none", Vec::new())]
    {
        let rejected = || nodes[0].metric_sum(REJECTED, r#"reason="rejected_by_peer""#);
        let (name, listen, before) = (name.to_owned(), unused_address(), rejected());
        let outsider = NodeConfig { name, listen, credentials, ..configs[0].clone() }.start();
        wait_until("its connections are rejected", rejected, |now| *now > before);
        let line = outsider.wait_for_log("no trusted authority has signed the certificate");
        assert!(line.contains("the same cluster key or CA"), "{line}");
        let foreign = || outsider.metric_sum(REJECTED, r#"reason="foreign_certificate""#);
        wait_until("the rejections are counted", foreign, |count| *count > 0.0);
        assert_eq!(outsider.members_in_state("alive"), [""; 0]);
        assert!(outsider.count_allowed("default", 60) <= 50, "it counts alone");
    }
    nodes[0].wait_for_log("another node rejects the certificate of this node");
    wait_until_connected(&nodes.each_ref());
    wait_for_remaining(&nodes.each_ref(), "default", 50);
}

#[test]
fn connections_without_tls_are_counted() {
    let configs = node_configs::<2>(&policy_with_max(50, 5));
    let nodes = start_nodes(&configs);
    let rejected = || nodes[0].metric_sum(REJECTED, r#"reason="not_tls""#);
    let before = rejected();
    for length in [50, 200, 1_400, 60_000] {
        let mut stream = TcpStream::connect(configs[0].listen).unwrap();
        // The node may close the connection before all bytes are written.
        let _ = stream.write_all(&vec![0x5A; length]);
    }
    wait_until("the connections are counted", rejected, |now| *now >= before + 4.0);
    let line = nodes[0].wait_for_log("a cluster connection does not use TLS");
    assert!(line.contains("peer=127."), "{line}");
    wait_until_connected(&nodes.each_ref());
    assert_eq!(nodes[0].count_allowed("default", 20), 20);
    wait_for_remaining(&nodes.each_ref(), "default", 30);
}

#[test]
fn key_changes_node_by_node_under_load() {
    let new_key = "another key that only the nodes of tests know";
    let secret = TempFile::new(".secret", CLUSTER_KEY);
    let mut configs = node_configs::<3>(&policy_with_max(LOAD_MAX, LOAD_MAX_UNSYNCED));
    let load = RollingRestartLoad::start(&configs);
    load.run_during(|| {
        for keys in [&[CLUSTER_KEY, new_key][..], &[new_key]] {
            let keys = TempFile::new(".key", keys.join("\n") + "\n");
            for config in &mut configs {
                config.credentials = key_file_flags(&keys, &secret);
            }
            load.restart_nodes(&configs);
        }
    });
    load.assert_no_charge_is_lost();
}

/// Returns the flags of a node with this file of cluster keys and this secret.
pub fn key_file_flags(keys: &TempFile, secret: &TempFile) -> Vec<String> {
    let file = |file: &TempFile| path_str(file.path()).to_owned();
    let flags = ["--cluster-key-file".to_owned(), file(keys)];
    [&flags[..], &["--cluster-secret-file".to_owned(), file(secret)]].concat()
}
