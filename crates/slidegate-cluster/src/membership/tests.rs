use std::net::{Ipv4Addr, SocketAddr};

use super::*;
use crate::node_info::incarnation;

const CLOCK_LIMIT: Duration = Duration::from_secs(2);

/// A time of the clock of all nodes.
const WALL_TIME: Timestamp = Timestamp::from_secs(1_700_000_000);

#[test]
fn incarnation_depends_on_name_and_generation() {
    let of = |name, generation| incarnation(name, generation).0;
    // Nodes of other builds must compute the same value. This one was computed independently.
    assert_eq!(of("node-1", 1), 0x1359);
    assert!(of("node-1", 2) > of("node-1", 1), "a later generation");
    assert_ne!(of("node-1", 1), of("node-2", 1));
}

/// Returns a node. Its incarnation is the number.
fn node(name: &str, number: u64) -> NodeInfo {
    let address = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 7946)));
    NodeInfo { incarnation: Incarnation(number), name: name.into(), address }
}

/// Returns the membership of the node `own` with incarnation 5, which knows no other node.
fn new_membership() -> Membership {
    Membership::new(
        node("own", 5),
        Settings {
            clock_limit: ClockSkewLimit::new(CLOCK_LIMIT),
            silence_timeout: SILENCE_TIMEOUT,
        },
    )
}

fn entry(node: NodeInfo, heartbeat: u64) -> MemberEntry {
    let silent_for = Duration::ZERO;
    MemberEntry { node, heartbeat, has_left: false, is_direct: true, silent_for }
}

/// The state of a node, as announced by itself; silent if nothing has arrived from it.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Live,
    Silent,
    Left,
}

/// Returns the names and numbers of the live nodes and the numbers of the departed nodes, as seen by the node `own`
/// with number 5. All nodes were met long ago.
fn view_of(nodes: &[(&str, u64, State)]) -> (Vec<String>, Vec<u64>) {
    view_after(NEWER_INCARNATION_GRACE_TIME, nodes)
}

/// Returns the lists of [`view_of`] if all nodes were met before the given time.
fn view_after(time: Duration, nodes: &[(&str, u64, State)]) -> (Vec<String>, Vec<u64>) {
    let (mut membership, start) = (new_membership(), Instant::now());
    let now = start + time;
    for (name, number, state) in nodes {
        membership.on_node_introduced(node(name, *number), start);
        let heartbeat = u64::from(*state != State::Silent);
        let entry = MemberEntry {
            has_left: *state == State::Left,
            ..entry(node(name, *number), heartbeat)
        };
        membership.on_member_list(Incarnation(*number), &[entry], WALL_TIME, WALL_TIME, now);
    }
    let view = membership.view(now);
    let live = view.live.iter().map(|node| format!("{}{}", node.name, node.incarnation.0));
    (live.collect(), view.left.iter().map(|left| left.0).collect())
}

#[test]
fn node_without_heartbeats_or_departure_announcement_is_silent() {
    let (live, left) =
        view_of(&[("a", 1, State::Live), ("b", 2, State::Silent), ("c", 3, State::Left)]);
    assert_eq!((live, left), (vec!["a1".to_owned()], vec![3]));
}

#[test]
fn newer_incarnation_replaces_older_ones() {
    let (live, left) =
        view_of(&[("a", 1, State::Live), ("a", 3, State::Live), ("a", 2, State::Silent)]);
    assert_eq!((live, left), (vec!["a3".to_owned()], vec![2, 1]));
    let (live, left) = view_of(&[("a", 1, State::Silent), ("a", 2, State::Silent)]);
    assert_eq!((live, left), (vec![], vec![1]), "the newer one is silent");
}

#[test]
fn live_incarnation_replaces_newer_one() {
    for newer in [State::Silent, State::Left] {
        let (live, left) = view_of(&[("a", 1, State::Live), ("a", 2, newer)]);
        assert_eq!((live, left), (vec!["a1".to_owned()], vec![2]));
    }
}

#[test]
fn late_heartbeat_of_replaced_node_does_not_remove_its_successor() {
    let nodes = [("a", 1, State::Live), ("a", 2, State::Silent)];
    let (live, left) = view_after(NEWER_INCARNATION_GRACE_TIME - Duration::from_millis(1), &nodes);
    assert!(live.is_empty() && left.is_empty());
}

#[test]
fn newer_live_node_with_own_name_is_member() {
    let (live, left) = view_of(&[("own", 4, State::Live), ("own", 3, State::Silent)]);
    assert_eq!((live, left), (vec![], vec![3, 4]));
    let (live, left) = view_of(&[("own", 4, State::Silent), ("own", 6, State::Live)]);
    assert_eq!((live, left), (vec!["own6".to_owned()], vec![4]));
    let (live, left) = view_of(&[("own", 6, State::Silent)]);
    assert_eq!((live, left), (vec![], vec![6]), "the clock of this node was set back");
}

/// Returns the membership of the node `own`, which has just met the node `a` with number 1.
fn membership_with_node_a(now: Instant) -> Membership {
    let mut membership = new_membership();
    membership.on_node_introduced(node("a", 1), now);
    membership
}

fn live(membership: &mut Membership, now: Instant) -> Vec<String> {
    membership.view(now).live.iter().map(|node| node.name.to_string()).collect()
}

#[test]
fn member_is_alive_while_other_members_see_it() {
    let start = Instant::now();
    let mut membership = membership_with_node_a(start);
    for second in 0..10 {
        let now = start + Duration::from_secs(second);
        // The list of node `a` repeats the last heartbeat of `c`, but has new ones of `b`.
        let entries =
            [entry(node("a", 1), second), entry(node("b", 2), second), entry(node("c", 3), 1)];
        membership.on_member_list(Incarnation(1), &entries, WALL_TIME, WALL_TIME, now);
        let expected: &[&str] = if second < 3 { &["a", "b", "c"] } else { &["a", "b"] };
        assert_eq!(live(&mut membership, now), expected, "{second} s");
    }
    let silent = start + Duration::from_secs(9) + SILENCE_TIMEOUT;
    assert!(live(&mut membership, silent).is_empty());
    assert_eq!(membership.peers().len(), 3, "connections to silent nodes are kept");
}

#[test]
fn old_heartbeat_of_unknown_node_does_not_make_it_alive() {
    let now = Instant::now();
    let mut membership = membership_with_node_a(now);
    let silent = MemberEntry { silent_for: SILENCE_TIMEOUT, ..entry(node("b", 2), 7) };
    let now = now + SILENCE_TIMEOUT;
    membership.on_member_list(
        Incarnation(1),
        &[entry(node("a", 1), 1), silent],
        WALL_TIME,
        WALL_TIME,
        now,
    );
    assert_eq!(live(&mut membership, now), ["a"]);
}

#[test]
fn silent_and_departed_nodes_are_forgotten_by_all() {
    let start = Instant::now();
    let mut one = membership_with_node_a(start);
    let departed = MemberEntry { has_left: true, ..entry(node("b", 2), 1) };
    one.on_member_list(Incarnation(1), &[departed], WALL_TIME, WALL_TIME, start);
    // Another node learns of both shortly before they are forgotten.
    let late = start + SILENT_NODE_RETENTION_TIME - Duration::from_secs(1);
    let mut two = Membership::new(node("other", 9), one.settings);
    two.on_member_list(Incarnation(5), &one.next_member_list(late), WALL_TIME, WALL_TIME, late);
    assert_eq!(two.list(late).len(), 4);
    let end = start + SILENT_NODE_RETENTION_TIME;
    assert_eq!((one.next_member_list(end).len(), two.next_member_list(end).len()), (1, 2));
}

#[test]
fn member_that_another_member_does_not_hear_is_reported() {
    let start = Instant::now();
    let mut membership = membership_with_node_a(start);
    membership.on_node_introduced(node("b", 2), start);
    let relayed = MemberEntry { is_direct: false, ..entry(node("b", 2), 1) };
    let entries = [entry(node("a", 1), 1), relayed];
    membership.on_member_list(Incarnation(1), &entries, WALL_TIME, WALL_TIME, start);
    assert_eq!(membership.view(start).relayed, [Incarnation(2)].into());
    let mut list = membership.list(start + SILENCE_TIMEOUT - Duration::from_millis(1));
    assert!(
        list.iter().all(|entry| entry.is_direct),
        "the first messages of new nodes may still arrive"
    );
    list = membership.list(start + SILENCE_TIMEOUT);
    let direct: Vec<bool> = list.iter().map(|entry| entry.is_direct).collect();
    assert_eq!(direct, [true, false, false]);
}

#[test]
fn clock_is_measured_from_message_with_shortest_delay() {
    let start = Instant::now();
    let mut membership = membership_with_node_a(start);
    let mut send = |ahead_ms: i64, second: u64| {
        let now = start + Duration::from_secs(second);
        let sent_at = WALL_TIME.as_micros().saturating_add_signed(ahead_ms * 1_000);
        let sent_at = Timestamp::from_micros(sent_at);
        let entries = [entry(node("a", 1), second + 1)];
        membership.on_member_list(Incarnation(1), &entries, sent_at, WALL_TIME, now);
        let view = membership.view(now);
        let offset_us = membership.clock_offset_us(Incarnation(1), now);
        (offset_us.map(|offset_us| offset_us / 1_000), view.skewed.len())
    };
    assert_eq!(send(-5, 1), (Some(-5), 0));
    assert_eq!(send(-4_000, 2), (Some(-5), 0), "a late message");
    assert_eq!(send(2_001, 3), (Some(2_001), 1), "no delay makes a clock seem ahead");
    for second in 4..7 {
        assert_eq!(send(0, second), (Some(2_001), 1));
    }
    assert_eq!(send(0, 7), (Some(0), 0), "the clock was set");
    for second in 8..11 {
        assert_eq!(send(-3_001, second), (Some(0), 0));
    }
    assert_eq!(
        send(-3_001, 11),
        (Some(-3_001), 1),
        "four messages are late, or the clock is behind"
    );
}

#[test]
fn number_of_known_nodes_is_bounded() {
    let now = Instant::now();
    let mut membership = new_membership();
    (10..2_000)
        .for_each(|number| membership.on_node_introduced(node(&number.to_string(), number), now));
    assert_eq!(membership.peers().len(), MAX_KNOWN_NODES);
    assert_eq!(membership.next_member_list(now).len(), MAX_MEMBERS);
}
