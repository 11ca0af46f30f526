//! Tests of cluster nodes that authenticate each other by certificates.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use slidegate::Timestamp;
use slidegate::clock::{Clock, WallClock};

use crate::cluster::authentication::REJECTED;
use crate::cluster::node::{
    NodeConfig, node_configs, policy_with_max, start_nodes, unused_address, wait_for_remaining,
    wait_until, wait_until_connected,
};
use crate::common::TempFile;
use crate::common::certificates::{CertAndKey, CertAuthority, connect_with_tls_to, path_str};

/// The name in the certificates of nodes: the default of `--cluster-tls-name`.
const NODE_NAME: &str = "slidegate-cluster";

/// The protocol of nodes in the ALPN extension.
const NODE_PROTOCOL: &[u8] = b"slidegate-cluster/2";

/// The files of a node with a certificate.
struct NodeFiles {
    cert: TempFile,
    key: TempFile,
    ca: TempFile,
    secret: TempFile,
}

impl NodeFiles {
    fn new(authority: &CertAuthority) -> Self {
        Self::with_certificate(authority, authority.issue_node_certificate(NODE_NAME))
    }

    fn with_certificate(authority: &CertAuthority, node: CertAndKey) -> Self {
        Self {
            cert: TempFile::new(".pem", node.cert),
            key: TempFile::new(".pem", node.key),
            ca: TempFile::new(".pem", authority.certificate_pem()),
            secret: TempFile::new(".secret", "a secret that only the nodes of tests know"),
        }
    }

    fn flags(&self) -> Vec<String> {
        let files = [
            ("--cluster-tls-cert", &self.cert),
            ("--cluster-tls-key", &self.key),
            ("--cluster-tls-ca", &self.ca),
            ("--cluster-secret-file", &self.secret),
        ];
        let flags = files.map(|(flag, file)| [flag.to_owned(), path_str(file.path()).to_owned()]);
        flags.concat()
    }

    /// Replaces the certificate and its key with others of this authority.
    fn replace_certificate(&self, authority: &CertAuthority) {
        let node = authority.issue_node_certificate(NODE_NAME);
        fs::write(self.key.path(), node.key).unwrap();
        fs::write(self.cert.path(), node.cert).unwrap();
    }
}

/// A folder that is removed when the value is dropped.
struct TempFolder(PathBuf);

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the code blocks in this language of the section about certificates in the how-to guide.
fn documented_blocks(language: &str) -> Vec<String> {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/how-to/run-three-nodes.md");
    let guide = fs::read_to_string(guide).unwrap();
    let (_, section) = guide.split_once("\n## Use certificates\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let opening = format!("```{language}\n");
    section
        .split(&opening)
        .skip(1)
        .map(|block| block.split("```").next().unwrap().to_owned())
        .collect()
}

fn run_script(folder: &Path, script: &str) {
    let output = Command::new("sh").args(["-ec", script]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{script}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the flags for the documented variables, with the files in `folder`.
fn flags_for_variables(variables: &str, folder: &Path) -> Vec<String> {
    let flags = variables.lines().map(|line| {
        let (name, path) = line.split_once('=').unwrap();
        let flag = name.strip_prefix("SLIDEGATE_").unwrap().to_lowercase().replace('_', "-");
        let file = path.strip_prefix("/etc/slidegate/").unwrap();
        [format!("--{flag}"), path_str(&folder.join(file)).to_owned()]
    });
    flags.collect::<Vec<_>>().concat()
}

#[test]
fn documented_certificates_form_cluster() {
    let folder = format!("documented-certificates-{}", std::process::id());
    let folder = TempFolder(Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder));
    let [authority, certificate] = &documented_blocks("bash")[..] else { panic!("two blocks") };
    let [variables] = &documented_blocks("ini")[..] else { panic!("one block") };
    fs::create_dir_all(&folder.0).unwrap();
    run_script(&folder.0, authority);
    let mut configs = node_configs::<3>(&policy_with_max(50, 5));
    for config in &mut configs {
        let node = folder.0.join(&config.name);
        run_script(&folder.0, certificate);
        fs::create_dir(&node).unwrap();
        for file in ["ca.crt", "secret", "tls.crt", "tls.key"] {
            fs::copy(folder.0.join(file), node.join(file)).unwrap();
        }
        config.credentials = flags_for_variables(variables, &node);
    }
    let nodes = start_nodes(&configs);
    assert_eq!(nodes[0].count_allowed("default", 20), 20);
    wait_for_remaining(&nodes.each_ref(), "default", 30);
    let rejected = nodes.each_ref().map(|node| node.metric_sum(REJECTED, "_certificate"));
    assert_eq!(rejected, [0.0; 3]);
}

#[test]
fn node_of_other_authority_is_rejected_and_logged() {
    let files = NodeFiles::new(&CertAuthority::new());
    let configs = node_configs::<2>(&policy_with_max(50, 5))
        .map(|config| NodeConfig { credentials: files.flags(), ..config });
    let nodes = start_nodes(&configs);
    let foreign = NodeFiles::new(&CertAuthority::new());
    let (name, listen) = ("other".to_owned(), unused_address());
    let outsider =
        NodeConfig { name, listen, credentials: foreign.flags(), ..configs[0].clone() }.start();
    let line = outsider.wait_for_log("no trusted authority has signed the certificate");
    assert!(line.contains("WARN") && line.contains("peer=127."), "{line}");
    nodes[0].wait_for_log("another node rejects the certificate of this node");
    assert_eq!(outsider.members_in_state("alive"), [""; 0]);
    wait_until_connected(&nodes.each_ref());
}

#[tokio::test]
async fn unusable_client_certificates_are_rejected_by_reason() {
    let authority = CertAuthority::new();
    let files = NodeFiles::new(&authority);
    let [config] = node_configs::<1>(&policy_with_max(50, 5));
    let config = NodeConfig { credentials: files.flags(), ..config };
    let node = config.start();
    let long_ago = Timestamp::from_secs(1_000_000_000);
    let expired = authority.issue_expiring_node_certificate(NODE_NAME, long_ago);
    for (client, reason) in [
        (Some(authority.issue_node_certificate("other-service")), "wrong_name"),
        (Some(CertAuthority::new().issue_node_certificate(NODE_NAME)), "foreign_certificate"),
        (Some(expired), "expired_certificate"),
        (None, "no_certificate"),
    ] {
        let rejected = || node.metric_sum(REJECTED, reason);
        assert_eq!(rejected(), 0.0, "{reason}");
        // A client completes its part of the handshake before the server verifies the certificate of the client.
        let connection = connect_with_tls_to(
            NODE_NAME,
            config.listen,
            &authority,
            client.as_ref(),
            NODE_PROTOCOL,
        );
        let _connection = connection.await.unwrap();
        wait_until("the connection is rejected", rejected, |count| *count == 1.0);
    }
}

#[test]
fn authority_is_replaced_without_restart() {
    let [old, new] = [CertAuthority::new(), CertAuthority::new()];
    let files = [NodeFiles::new(&old), NodeFiles::new(&old)];
    let [mut a, mut b, mut c] = node_configs::<3>(&policy_with_max(50, 5));
    (a.credentials, b.credentials) = (files[0].flags(), files[1].flags());
    let nodes = start_nodes(&[a, b]);

    fs::write(files[0].ca.path(), "-----BEGIN CERTIFICATE-----\nno\n").unwrap();
    let error = nodes[0].wait_for_log("--cluster-tls-ca (SLIDEGATE_CLUSTER_TLS_CA)");
    assert!(error.contains(path_str(files[0].ca.path())), "{error}");
    nodes[0].wait_for_log("TLS certificate reload failed; keeping the current certificates");

    for (files, node) in files.iter().zip(&nodes) {
        fs::write(files.ca.path(), old.certificate_pem() + &new.certificate_pem()).unwrap();
        node.wait_for_log("TLS certificates reloaded");
    }
    for (files, node) in files.iter().zip(&nodes) {
        files.replace_certificate(&new);
        let line = node.wait_for_log("TLS certificates reloaded");
        assert!(line.contains(path_str(files.cert.path())), "{line}");
    }
    // This node trusts only the new authority, so it accepts only the new certificates.
    let newcomer_files = NodeFiles::new(&new);
    c.credentials = newcomer_files.flags();
    let newcomer = c.start();
    wait_until_connected(&[&nodes[0], &nodes[1], &newcomer]);
}

#[test]
fn expired_certificate_keeps_connections_but_rejects_newcomers() {
    let authority = CertAuthority::new();
    let expiry = WallClock.now().after(Duration::from_secs(15));
    let files = [(); 2].map(|()| {
        let node = authority.issue_expiring_node_certificate(NODE_NAME, expiry);
        NodeFiles::with_certificate(&authority, node)
    });
    let [mut a, mut b, mut c] = node_configs::<3>(&policy_with_max(90, 5));
    (a.credentials, b.credentials) = (files[0].flags(), files[1].flags());
    let nodes = start_nodes(&[a, b]);
    assert_eq!(nodes[0].count_allowed("default", 10), 10);
    // Certificates have times in whole seconds.
    let expired_at = expiry.after(Duration::from_secs(1));
    wait_until("the certificates have expired", || WallClock.now(), |now| *now > expired_at);
    assert_eq!(nodes[1].count_allowed("default", 20), 20);
    wait_for_remaining(&nodes.each_ref(), "default", 60);

    let newcomer_files = NodeFiles::new(&authority);
    c.credentials = newcomer_files.flags();
    let newcomer = c.start();
    newcomer.wait_for_log("has expired or is not valid yet");
    assert_eq!(newcomer.members_in_state("alive"), [""; 0]);
    for files in &files {
        files.replace_certificate(&authority);
    }
    let nodes = [&nodes[0], &nodes[1], &newcomer];
    wait_until_connected(&nodes);
    wait_for_remaining(&nodes, "default", 60);
}
