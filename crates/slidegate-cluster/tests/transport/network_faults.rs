//! Tests that the simulated network of the channel transport applies the configured faults.

use std::net::Ipv4Addr;
use std::time::Duration;

use bytes::Bytes;
use slidegate_cluster::node_info::NodeInfo;
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::transport::{Transport, TransportEvent};
use tokio::time::{Instant, timeout};

use crate::transport::simulated_network::{
    ChannelNetwork, ChannelTransport, MAX_IN_TRANSIT, NetworkFaults,
};

const NODE1: Incarnation = Incarnation(1);
const NODE2: Incarnation = Incarnation(2);
const NODE3: Incarnation = Incarnation(3);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Returns network faults of all kinds: loss, duplication and delay.
fn faults_of_all_kinds() -> NetworkFaults {
    NetworkFaults { loss: 0.3, duplication: 0.2, min_delay: millis(5), max_delay: millis(50) }
}

/// Adds a node with the given peers to the network.
fn join_with_peers(
    network: &ChannelNetwork,
    local: Incarnation,
    peers: &[Incarnation],
) -> ChannelTransport {
    let mut transport = network.join(node_info(local));
    transport.set_peers(&peers.iter().copied().map(node_info).collect::<Vec<_>>());
    transport
}

/// Returns a node whose address has the number of its incarnation as its port.
fn node_info(incarnation: Incarnation) -> NodeInfo {
    let address = (Ipv4Addr::LOCALHOST, u16::try_from(incarnation.0).unwrap()).into();
    NodeInfo { incarnation, name: incarnation.0.to_string().into(), address: Some(address) }
}

/// Collects events until none occurs for one second, without introductions. Returns each event with its time since the
/// start.
async fn collect_events(transport: &mut ChannelTransport) -> Vec<(TransportEvent, Duration)> {
    let (started_at, mut events) = (Instant::now(), Vec::new());
    while let Ok(event) = timeout(Duration::from_secs(1), transport.next()).await {
        if !matches!(event, TransportEvent::NodeIntroduced(_)) {
            events.push((event, started_at.elapsed()));
        }
    }
    events
}

/// Returns the number in the payload of a frame of node 1. Panics if the event is not such a frame.
fn number_in_frame_from_node1(event: &TransportEvent) -> u32 {
    let TransportEvent::Frame { from: NODE1, frame } = event else { panic!("{event:?}") };
    u32::from_be_bytes(frame[..].try_into().unwrap())
}

/// Sends numbered frames at the same time. Returns the numbers of the frames that arrive, with their delays.
async fn send_numbered_frames(
    seed: u64,
    faults: NetworkFaults,
    count: u32,
) -> Vec<(u32, Duration)> {
    let network = ChannelNetwork::new(seed, faults);
    let mut node2 = network.join(node_info(NODE2));
    let mut node1 = join_with_peers(&network, NODE1, &[NODE2]);
    (0..count).for_each(|nth| node1.send(NODE2, Bytes::copy_from_slice(&nth.to_be_bytes())));
    collect_events(&mut node2)
        .await
        .iter()
        .map(|(event, delay)| (number_in_frame_from_node1(event), *delay))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn faultless_network_delivers_immediately_in_order() {
    let arrived_frames = send_numbered_frames(1, NetworkFaults::default(), 500).await;
    assert!(arrived_frames.iter().map(|(number, _)| *number).eq(0..500));
    assert!(arrived_frames.iter().all(|(_, delay)| delay.is_zero()));
}

#[tokio::test(start_paused = true)]
async fn same_seed_causes_same_faults() {
    let first_run = send_numbered_frames(1, faults_of_all_kinds(), 500).await;
    assert_eq!(send_numbered_frames(1, faults_of_all_kinds(), 500).await, first_run);
    assert_ne!(send_numbered_frames(2, faults_of_all_kinds(), 500).await, first_run);
}

#[tokio::test(start_paused = true)]
async fn loss_and_duplication_match_configured_rates() {
    let arrived_frames = send_numbered_frames(1, faults_of_all_kinds(), 800).await;
    let distinct_numbers: std::collections::HashSet<_> =
        arrived_frames.iter().map(|(number, _)| number).collect();
    let lost = 1.0 - distinct_numbers.len() as f64 / 800.0;
    let repeated = arrived_frames.len() as f64 / distinct_numbers.len() as f64 - 1.0;
    assert!((0.25..0.35).contains(&lost), "{lost}");
    assert!((0.15..0.25).contains(&repeated), "{repeated}");
}

#[tokio::test(start_paused = true)]
async fn delays_match_configured_range_and_reorder_frames() {
    let arrived_frames = send_numbered_frames(1, faults_of_all_kinds(), 500).await;
    let delays = || arrived_frames.iter().map(|(_, delay)| *delay);
    let (min_delay, max_delay) = (delays().min().unwrap(), delays().max().unwrap());
    assert!(millis(5) <= min_delay && min_delay < millis(10), "{min_delay:?}");
    assert!(millis(45) < max_delay && max_delay <= millis(51), "{max_delay:?}");
    assert!(!arrived_frames.is_sorted());
}

#[tokio::test(start_paused = true)]
async fn frames_in_transit_are_bounded() {
    let arrived_frames =
        send_numbered_frames(1, NetworkFaults::default(), 2 * MAX_IN_TRANSIT as u32).await;
    assert_eq!(arrived_frames.len(), MAX_IN_TRANSIT);
}

#[tokio::test(start_paused = true)]
async fn partition_closes_links_and_drops_frames() {
    let network = ChannelNetwork::new(
        1,
        NetworkFaults { min_delay: millis(10), max_delay: millis(10), ..NetworkFaults::default() },
    );
    let mut node1 = join_with_peers(&network, NODE1, &[NODE2, NODE3]);
    let mut node2 = join_with_peers(&network, NODE2, &[NODE1, NODE3]);
    let mut node3 = join_with_peers(&network, NODE3, &[NODE1, NODE2]);
    for node in [&mut node1, &mut node2, &mut node3] {
        assert_eq!(collect_events(node).await.len(), 2, "both links are up");
    }
    node1.send(NODE2, Bytes::from_static(b"dropped"));
    node2.send(NODE3, Bytes::from_static(b"delivered"));
    network.partition(&[&[NODE1]]);
    let without_times = |timed_events: Vec<(TransportEvent, Duration)>| {
        timed_events.into_iter().map(|(event, _)| event).collect::<Vec<_>>()
    };
    assert_eq!(
        without_times(collect_events(&mut node1).await),
        [TransportEvent::LinkDown(NODE2), TransportEvent::LinkDown(NODE3)]
    );
    assert_eq!(without_times(collect_events(&mut node2).await), [TransportEvent::LinkDown(NODE1)]);
    let delivered = TransportEvent::Frame { from: NODE2, frame: Bytes::from_static(b"delivered") };
    assert_eq!(
        without_times(collect_events(&mut node3).await),
        [TransportEvent::LinkDown(NODE1), delivered]
    );
    network.heal();
    assert_eq!(
        without_times(collect_events(&mut node1).await),
        [TransportEvent::LinkUp(NODE2), TransportEvent::LinkUp(NODE3)]
    );
    assert_eq!(without_times(collect_events(&mut node2).await), [TransportEvent::LinkUp(NODE1)]);
}

#[tokio::test(start_paused = true)]
async fn changed_faults_apply_to_later_frames() {
    let network = ChannelNetwork::new(1, NetworkFaults { loss: 1.0, ..NetworkFaults::default() });
    let (mut node1, mut node2) =
        (join_with_peers(&network, NODE1, &[]), join_with_peers(&network, NODE2, &[NODE1]));
    node2.send(NODE1, Bytes::from_static(b"lost"));
    network.set_faults(NetworkFaults::default());
    node2.send(NODE1, Bytes::from_static(b"found"));
    let found = TransportEvent::Frame { from: NODE2, frame: Bytes::from_static(b"found") };
    assert_eq!(collect_events(&mut node1).await, [(found, Duration::ZERO)]);
}
