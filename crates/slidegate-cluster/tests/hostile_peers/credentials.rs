//! Nodes whose credentials differ and that trust each other, as while a key or a certificate is changed.

use slidegate_cluster::credentials::NodeTls;
use slidegate_cluster::transport::{RejectReason, Transport, TransportEvent};
use slidegate_cluster::{Certificates, Credentials};

use crate::hostile_peers::certificates::TestAuthority;
use crate::hostile_peers::fixtures::{TransportNode, short_test_timeouts};

const OLD_KEY: &str = "the old key of the cluster";
const NEW_KEY: &str = "the new key of the cluster";

fn start(credentials: &Credentials, incarnation: u64) -> TransportNode {
    TransportNode::start_at("127.0.0.1:0", credentials, incarnation, short_test_timeouts())
}

/// Checks that each node can connect to the other.
async fn check_nodes_connect(credentials1: &Credentials, credentials2: &Credentials) {
    let (mut node1, mut node2) = (start(credentials1, 1), start(credentials2, 2));
    let (info1, info2) = (node1.info.clone(), node2.info.clone());
    node1.connect_and_send_test_frame(&mut node2, &info2).await;
    node2.connect_and_send_test_frame(&mut node1, &info1).await;
}

#[tokio::test]
async fn nodes_with_common_key_connect() {
    let credentials =
        |keys: &[&str]| Credentials::Keys(keys.iter().copied().map(str::to_owned).collect());
    let both = [credentials(&[OLD_KEY, NEW_KEY]), credentials(&[NEW_KEY, OLD_KEY])];
    check_nodes_connect(&both[0], &both[1]).await;
    for one in [credentials(&[OLD_KEY]), credentials(&[NEW_KEY])] {
        check_nodes_connect(&one, &both[0]).await;
        check_nodes_connect(&one, &both[1]).await;
        check_nodes_connect(&one, &one).await;
    }
}

#[tokio::test]
async fn nodes_with_intermediate_authority_connect() {
    let root = TestAuthority::new();
    let intermediate = root.intermediate();
    let certificates = [root.sign_node(), intermediate.sign_node(), intermediate.sign_node()];
    for certificates in certificates.iter().chain([&root.intermediate().sign_node()]) {
        assert_eq!(certificates.check(), Ok(()));
    }
    let [by_root, by_intermediate1, by_intermediate2] = certificates.map(Credentials::Certificates);
    check_nodes_connect(&by_root, &by_intermediate1).await;
    check_nodes_connect(&by_intermediate1, &by_intermediate2).await;
}

/// One node changes its certificate from the old authority to the new one. The third node trusts only the new one.
#[tokio::test]
async fn replaced_certificate_applies_to_new_connections() {
    let (old, new) = (TestAuthority::new(), TestAuthority::new());
    let trusts_both = |certificates| Certificates {
        ca_pem: [old.root_pem(), new.root_pem()].concat().into(),
        ..certificates
    };
    let before = Credentials::Certificates(trusts_both(old.sign_node()));
    let after = Credentials::Certificates(trusts_both(new.sign_node()));
    let (mut node1, mut node2) = (start(&before, 1), start(&before, 2));
    let mut node3 = start(&Credentials::Certificates(new.sign_node()), 3);
    let (info2, info3) = (node2.info.clone(), node3.info.clone());
    node1.connect_and_send_test_frame(&mut node2, &info2).await;
    node2.transport.set_peers(std::slice::from_ref(&info3));
    node3.transport.set_peers(std::slice::from_ref(&info2));
    node3.wait_until_rejected(RejectReason::ForeignCertificate, 4).await;
    node2.transport.tls_handle().replace(NodeTls::new(&after).unwrap());
    assert_eq!(node2.next().await, TransportEvent::LinkUp(info3.incarnation));
    assert_eq!(node3.next().await, TransportEvent::LinkUp(info2.incarnation));
    node2.send_test_frame(&mut node3).await;
    node3.send_test_frame(&mut node2).await;
    // The first link did not go down.
    node1.send_test_frame(&mut node2).await;
    assert!(node1.is_quiet().await);
}
