//! Membership view: the lists of other nodes that are live, and of other nodes that have left.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use chitchat::{Chitchat, ChitchatHandle, ChitchatId, NodeState};
use slidegate::internal::restart_on_panic;
use tokio::net::lookup_host;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::{error, warn};

use super::{LEAVING_KEY_IN_GOSSIP_STATE, incarnation};
use crate::pn_counter::Incarnation;

/// Interval at which a node that has found no other node resolves its seeds again.
const SEED_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Another node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    /// The name of the node, which stays the same after a restart.
    pub name: Arc<str>,
    /// A number that is larger after each restart of the node.
    pub generation: u64,
    /// The incarnation of the node.
    pub incarnation: Incarnation,
    /// The address at which the node receives gossip and replication frames.
    pub address: SocketAddr,
}

/// The other nodes of a cluster, ordered by name. A node that was seen before and is in neither list is silent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipView {
    /// Nodes whose heartbeats arrive, at most one per name.
    pub live: Vec<Member>,
    /// Nodes that have announced that they leave, and nodes that were replaced by another incarnation of the same name.
    /// They charge nothing more. Each is listed for some minutes.
    pub left: Vec<Member>,
}

/// Starts a task that updates the membership view until the gossip task ends. Returns the task and a receiver of the
/// view.
pub(super) async fn watch_members(
    gossip: &ChitchatHandle,
) -> (JoinHandle<()>, watch::Receiver<MembershipView>) {
    let chitchat = gossip.chitchat();
    let gossip_ended = gossip.termination_watcher();
    // `chitchat` does not report an announcement of an unseen node that arrives through other nodes.
    let leaving_changed = Arc::new(Notify::new());
    let notify = Arc::clone(&leaving_changed);
    let (mut live, listening) = {
        let chitchat = chitchat.lock().await;
        let listening =
            chitchat.subscribe_event(LEAVING_KEY_IN_GOSSIP_STATE, move |_| notify.notify_one());
        (chitchat.live_nodes_watcher(), listening)
    };
    let (sender, view) = watch::channel(MembershipView::default());
    let watch_view = async move {
        let _listening = listening;
        let mut newest_namesake = 0;
        loop {
            let current_view = read_membership_view(&*chitchat.lock().await, &mut newest_namesake);
            sender.send_if_modified(|previous| {
                std::mem::replace(previous, current_view.clone()) != current_view
            });
            tokio::select! {
                changed = live.changed() => if changed.is_err() { return },
                () = leaving_changed.notified() => {}
            }
        }
    };
    let watch_task = tokio::spawn(async move {
        tokio::select! {
            () = watch_view => {}
            ended = gossip_ended => error!(?ended, "gossip task failed; this node no longer detects other nodes; restart it"),
        }
    });
    (watch_task, view)
}

fn read_membership_view(chitchat: &Chitchat, newest_namesake: &mut u64) -> MembershipView {
    let own = chitchat.self_chitchat_id();
    let live: Vec<&ChitchatId> = chitchat.live_nodes().filter(|node| *node != own).collect();
    live.iter()
        .filter(|node| is_newer_node_with_own_name(node, own))
        .for_each(|node| warn_once_about_newer_node_with_own_name(node, newest_namesake));
    let known = chitchat.node_states().iter().filter(|(node, _)| *node != own);
    build_membership_view(
        known.map(|(node, state)| KnownNode {
            node,
            is_live: live.contains(&node),
            is_leaving: is_leaving(state),
        }),
        own,
    )
}

/// Returns `true` if `node` has the name of this node and a later generation. Such a node was started after this node,
/// so it is another node and not a previous incarnation of this node.
fn is_newer_node_with_own_name(node: &ChitchatId, own: &ChitchatId) -> bool {
    node.node_id == own.node_id && node.generation_id > own.generation_id
}

fn warn_once_about_newer_node_with_own_name(node: &ChitchatId, newest_namesake: &mut u64) {
    if node.generation_id > *newest_namesake {
        *newest_namesake = node.generation_id;
        let (name, address) = (&node.node_id, node.gossip_advertise_addr);
        warn!(%name, %address, "another node has the name of this node; give each node a unique name");
    }
}

fn is_leaving(state: &NodeState) -> bool {
    state.get(LEAVING_KEY_IN_GOSSIP_STATE).is_some()
}

/// A node that `chitchat` knows, and its state.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownNode<'c> {
    pub(super) node: &'c ChitchatId,
    pub(super) is_live: bool,
    pub(super) is_leaving: bool,
}

impl KnownNode<'_> {
    /// Returns `true` if the node is live and has not announced that it leaves.
    const fn is_live_and_not_leaving(&self) -> bool {
        self.is_live && !self.is_leaving
    }
}

/// Builds the membership view from all known nodes. For each name, one incarnation is current: the newest live
/// incarnation that has not announced its departure, or the newest incarnation if there is no such one. All other
/// incarnations of the name count as replaced. A node whose clock was set back thus stays current if it is live,
/// although it has an older generation after its restart.
pub(super) fn build_membership_view<'c>(
    known_nodes: impl Iterator<Item = KnownNode<'c>>,
    own: &ChitchatId,
) -> MembershipView {
    let mut by_name: BTreeMap<&str, Vec<KnownNode<'c>>> = BTreeMap::new();
    known_nodes.for_each(|known| by_name.entry(&known.node.node_id).or_default().push(known));
    let mut view = MembershipView::default();
    for mut incarnations in by_name.into_values() {
        incarnations
            .sort_by_key(|known| (known.is_live_and_not_leaving(), known.node.generation_id));
        let current = incarnations.pop_if(|newest| {
            newest.node.node_id != own.node_id || is_running_node_with_own_name(newest, own)
        });
        match current {
            Some(current) if current.is_leaving => view.left.push(to_member(current.node)),
            Some(current) if current.is_live => view.live.push(to_member(current.node)),
            _ => {}
        }
        view.left.extend(incarnations.into_iter().map(|replaced| to_member(replaced.node)));
    }
    view
}

/// Returns `true` if `known` is another running node with the same name as this node. Such a node may admit requests.
/// All other incarnations with the name of this node count as replaced by this node.
fn is_running_node_with_own_name(known: &KnownNode<'_>, own: &ChitchatId) -> bool {
    known.is_live_and_not_leaving() && is_newer_node_with_own_name(known.node, own)
}

fn to_member(node: &ChitchatId) -> Member {
    Member {
        name: Arc::clone(&node.node_id),
        generation: node.generation_id,
        incarnation: incarnation(&node.node_id, node.generation_id),
        address: node.gossip_advertise_addr,
    }
}

/// Starts a task that resolves the names of the seeds and sends gossip to their addresses, while no other node is
/// found. `chitchat` itself resolves names only once a minute, and when a whole cluster starts, names often do not
/// resolve at first.
pub(super) fn resolve_seeds_while_alone(
    gossip: Arc<ChitchatHandle>,
    mut seeds: Vec<String>,
    own: SocketAddr,
    mut view: watch::Receiver<MembershipView>,
) -> JoinHandle<()> {
    // Addresses do not need to be resolved.
    seeds.retain(|seed| seed.parse::<SocketAddr>().is_err());
    let resolve = async move || {
        while !seeds.is_empty() && view.wait_for(|view| view.live.is_empty()).await.is_ok() {
            sleep(SEED_RETRY_INTERVAL).await;
            for seed in &seeds {
                let resolved = lookup_host(seed)
                    .await
                    .into_iter()
                    .flatten()
                    .filter(|resolved| *resolved != own);
                // Fails only if the gossip task has ended.
                resolved.for_each(|resolved| _ = gossip.gossip(resolved));
            }
        }
    };
    tokio::spawn(restart_on_panic(resolve, || {
        error!("the task that resolves the seeds of the cluster panicked; it runs again");
    }))
}
