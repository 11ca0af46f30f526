//! The weather within a process is what it is made.

use std::time::Duration;

use bytes::Bytes;
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::transport::channel::{
    ChannelTransport, MAX_IN_TRANSIT, Network, NetworkFaults,
};
use slidegate_cluster::transport::{PeerAddress, Transport, TransportEvent};
use tokio::time::{Instant, timeout};

const ONE: Incarnation = Incarnation(1);
const TWO: Incarnation = Incarnation(2);
const THREE: Incarnation = Incarnation(3);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn rough() -> NetworkFaults {
    NetworkFaults { loss: 0.3, duplication: 0.2, min_delay: millis(5), max_delay: millis(50) }
}

fn joined(network: &Network, own: Incarnation, peers: &[Incarnation]) -> ChannelTransport {
    let mut transport = network.join(own);
    let peer = |incarnation| PeerAddress { incarnation, address: "127.0.0.1:1".parse().unwrap() };
    transport.set_peers(&peers.iter().copied().map(peer).collect::<Vec<_>>());
    transport
}

/// What happens until nothing more does, and when.
async fn all(transport: &mut ChannelTransport) -> Vec<(TransportEvent, Duration)> {
    let (began, mut all) = (Instant::now(), Vec::new());
    while let Ok(event) = timeout(Duration::from_secs(1), transport.next()).await {
        all.push((event, began.elapsed()));
    }
    all
}

fn number(event: &TransportEvent) -> u32 {
    let TransportEvent::Frame { from: ONE, frame } = event else { panic!("{event:?}") };
    u32::from_be_bytes(frame[..].try_into().unwrap())
}

/// Numbers that arrive of those that are sent at once, and when each does.
async fn carried(seed: u64, weather: NetworkFaults, sent: u32) -> Vec<(u32, Duration)> {
    let network = Network::new(seed, weather);
    let mut two = network.join(TWO);
    let mut one = joined(&network, ONE, &[TWO]);
    (0..sent).for_each(|nth| one.send(TWO, Bytes::copy_from_slice(&nth.to_be_bytes())));
    all(&mut two).await.iter().map(|(event, after)| (number(event), *after)).collect()
}

#[tokio::test(start_paused = true)]
async fn in_fine_weather_all_arrive_at_once_and_in_order() {
    let arrived = carried(1, NetworkFaults::default(), 500).await;
    assert!(arrived.iter().map(|(number, _)| *number).eq(0..500));
    assert!(arrived.iter().all(|(_, after)| after.is_zero()));
}

#[tokio::test(start_paused = true)]
async fn by_the_same_seed_the_same_happens() {
    let one = carried(1, rough(), 500).await;
    assert_eq!(carried(1, rough(), 500).await, one);
    assert_ne!(carried(2, rough(), 500).await, one);
}

#[tokio::test(start_paused = true)]
async fn so_many_are_lost_and_come_twice_as_the_weather_says() {
    let arrived = carried(1, rough(), 800).await;
    let different: std::collections::HashSet<_> =
        arrived.iter().map(|(number, _)| number).collect();
    let lost = 1.0 - different.len() as f64 / 800.0;
    let repeated = arrived.len() as f64 / different.len() as f64 - 1.0;
    assert!((0.25..0.35).contains(&lost), "{lost}");
    assert!((0.15..0.25).contains(&repeated), "{repeated}");
}

#[tokio::test(start_paused = true)]
async fn frames_take_as_long_as_the_weather_says_and_overtake_each_other() {
    let arrived = carried(1, rough(), 500).await;
    let times = || arrived.iter().map(|(_, after)| *after);
    let (shortest, longest) = (times().min().unwrap(), times().max().unwrap());
    assert!(millis(5) <= shortest && shortest < millis(10), "{shortest:?}");
    assert!(millis(45) < longest && longest <= millis(51), "{longest:?}");
    assert!(!arrived.is_sorted());
}

#[tokio::test(start_paused = true)]
async fn frames_under_way_are_bounded() {
    let arrived = carried(1, NetworkFaults::default(), 2 * MAX_IN_TRANSIT as u32).await;
    assert_eq!(arrived.len(), MAX_IN_TRANSIT);
}

#[tokio::test(start_paused = true)]
async fn a_cut_parts_nodes_and_loses_what_is_under_way() {
    let network = Network::new(
        1,
        NetworkFaults { min_delay: millis(10), max_delay: millis(10), ..NetworkFaults::default() },
    );
    let mut one = joined(&network, ONE, &[TWO, THREE]);
    let mut two = joined(&network, TWO, &[ONE, THREE]);
    let mut three = joined(&network, THREE, &[ONE, TWO]);
    for node in [&mut one, &mut two, &mut three] {
        assert_eq!(all(node).await.len(), 2, "all links are up");
    }
    one.send(TWO, Bytes::from_static(b"under way"));
    two.send(THREE, Bytes::from_static(b"together"));
    network.partition(&[&[ONE]]);
    let events = |all: Vec<(TransportEvent, Duration)>| {
        all.into_iter().map(|(event, _)| event).collect::<Vec<_>>()
    };
    assert_eq!(
        events(all(&mut one).await),
        [TransportEvent::LinkDown(TWO), TransportEvent::LinkDown(THREE)]
    );
    assert_eq!(events(all(&mut two).await), [TransportEvent::LinkDown(ONE)]);
    let together = TransportEvent::Frame { from: TWO, frame: Bytes::from_static(b"together") };
    assert_eq!(events(all(&mut three).await), [TransportEvent::LinkDown(ONE), together]);
    network.heal();
    assert_eq!(
        events(all(&mut one).await),
        [TransportEvent::LinkUp(TWO), TransportEvent::LinkUp(THREE)]
    );
    assert_eq!(events(all(&mut two).await), [TransportEvent::LinkUp(ONE)]);
}

#[tokio::test(start_paused = true)]
async fn weather_changes() {
    let network = Network::new(1, NetworkFaults { loss: 1.0, ..NetworkFaults::default() });
    let (mut one, mut two) = (joined(&network, ONE, &[]), joined(&network, TWO, &[ONE]));
    two.send(ONE, Bytes::from_static(b"lost"));
    network.set_faults(NetworkFaults::default());
    two.send(ONE, Bytes::from_static(b"found"));
    let found = TransportEvent::Frame { from: TWO, frame: Bytes::from_static(b"found") };
    assert_eq!(all(&mut one).await, [(found, Duration::ZERO)]);
}
