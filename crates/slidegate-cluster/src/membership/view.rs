//! The roll of nodes: who is there, and who has gone for good.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use chitchat::{Chitchat, ChitchatHandle, ChitchatId, NodeState};
use tokio::net::lookup_host;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::{error, warn};

use super::{LEAVING_KEY, incarnation};
use crate::pn_counter::Incarnation;

/// How long a node that has found nobody waits before it resolves its seeds again.
const SEED_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Another node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    /// Its name: the same in all its lives.
    pub name: Arc<str>,
    /// Larger in each life.
    pub generation: u64,
    /// This life of it.
    pub incarnation: Incarnation,
    /// Where it is reached, for gossip and for counts.
    pub address: SocketAddr,
}

/// The other nodes, in the order of their names. Who was here before and is in neither list is silent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipView {
    /// Those that are heard of: of each name one.
    pub live: Vec<Member>,
    /// Those that have said that they leave, and those that were replaced by another life of the same name: they
    /// charge nothing any more. Each is named for some minutes.
    pub left: Vec<Member>,
}

/// Keeps the roll for as long as the gossip goes on.
pub(super) async fn watch_members(
    gossip: &ChitchatHandle,
) -> (JoinHandle<()>, watch::Receiver<MembershipView>) {
    let chitchat = gossip.chitchat();
    let end = gossip.termination_watcher();
    // A word of somebody who is not heard of any more, told by others, changes nothing that chitchat watches.
    let leaving_changed = Arc::new(Notify::new());
    let notify = Arc::clone(&leaving_changed);
    let (mut live, listening) = {
        let chitchat = chitchat.lock().await;
        let listening = chitchat.subscribe_event(LEAVING_KEY, move |_| notify.notify_one());
        (chitchat.live_nodes_watcher(), listening)
    };
    let (sender, view) = watch::channel(MembershipView::default());
    let watch_view = async move {
        let _listening = listening;
        let mut newest_namesake = 0;
        loop {
            let now = read(&*chitchat.lock().await, &mut newest_namesake);
            sender.send_if_modified(|before| std::mem::replace(before, now.clone()) != now);
            tokio::select! {
                changed = live.changed() => if changed.is_err() { return },
                () = leaving_changed.notified() => {}
            }
        }
    };
    let watch_task = tokio::spawn(async move {
        tokio::select! {
            () = watch_view => {}
            ended = end => error!(?ended, "the gossip of the cluster has ended: this node hears of no other any more"),
        }
    });
    (watch_task, view)
}

fn read(chitchat: &Chitchat, newest_namesake: &mut u64) -> MembershipView {
    let own = chitchat.self_chitchat_id();
    let live: Vec<&ChitchatId> = chitchat.live_nodes().filter(|node| *node != own).collect();
    live.iter()
        .filter(|node| is_namesake(node, own))
        .for_each(|node| warn_once(node, newest_namesake));
    let known = chitchat.node_states().iter().filter(|(node, _)| *node != own);
    build_view(
        known.map(|(node, state)| KnownNode {
            node,
            is_live: live.contains(&node),
            is_leaving: is_leaving(state),
        }),
        own,
    )
}

/// Whether that is a later life of the name that this node has: since this one lives, it is another node.
fn is_namesake(node: &ChitchatId, own: &ChitchatId) -> bool {
    node.node_id == own.node_id && node.generation_id > own.generation_id
}

fn warn_once(node: &ChitchatId, newest_namesake: &mut u64) {
    if node.generation_id > *newest_namesake {
        *newest_namesake = node.generation_id;
        let (name, address) = (&node.node_id, node.gossip_advertise_addr);
        warn!(%name, %address, "another node has this node's name: give each a name of its own");
    }
}

fn is_leaving(state: &NodeState) -> bool {
    state.get(LEAVING_KEY).is_some()
}

/// What is known of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownNode<'c> {
    pub(super) node: &'c ChitchatId,
    pub(super) is_live: bool,
    pub(super) is_leaving: bool,
}

impl KnownNode<'_> {
    /// Whether it lives, and means to.
    const fn is_staying(&self) -> bool {
        self.is_live && !self.is_leaving
    }
}

/// Of several lives of one name the one that is heard of is the present one, and of two such the newer: the others are
/// replaced. (A node whose clock was put back begins with an older generation, and is heard of nevertheless.)
pub(super) fn build_view<'c>(
    all: impl Iterator<Item = KnownNode<'c>>,
    own: &ChitchatId,
) -> MembershipView {
    let mut named: BTreeMap<&str, Vec<KnownNode<'c>>> = BTreeMap::new();
    all.for_each(|known| named.entry(&known.node.node_id).or_default().push(known));
    let mut view = MembershipView::default();
    for mut incarnations in named.into_values() {
        incarnations.sort_by_key(|known| (known.is_staying(), known.node.generation_id));
        let current = incarnations.pop_if(|newest| {
            newest.node.node_id != own.node_id || is_current_namesake(newest, own)
        });
        match current {
            Some(current) if current.is_leaving => view.left.push(member(current.node)),
            Some(current) if current.is_live => view.live.push(member(current.node)),
            _ => {}
        }
        view.left.extend(incarnations.into_iter().map(|replaced| member(replaced.node)));
    }
    view
}

/// Lives of this node's own name are replaced by this one, unless it is another node that has it: that one allows.
fn is_current_namesake(known: &KnownNode<'_>, own: &ChitchatId) -> bool {
    known.is_staying() && is_namesake(known.node, own)
}

fn member(node: &ChitchatId) -> Member {
    Member {
        name: Arc::clone(&node.node_id),
        generation: node.generation_id,
        incarnation: incarnation(&node.node_id, node.generation_id),
        address: node.gossip_advertise_addr,
    }
}

/// Asks the seeds while nobody is found: the gossip itself asks for the addresses of names once a minute only, and in a
/// cluster that starts as one they often have none at first.
pub(super) fn resolve_seeds_while_alone(
    gossip: Arc<ChitchatHandle>,
    mut seeds: Vec<String>,
    own: SocketAddr,
    mut view: watch::Receiver<MembershipView>,
) -> JoinHandle<()> {
    // Of addresses it needs not be told again.
    seeds.retain(|seed| seed.parse::<SocketAddr>().is_err());
    tokio::spawn(async move {
        while !seeds.is_empty() && view.wait_for(|view| view.live.is_empty()).await.is_ok() {
            sleep(SEED_RETRY_INTERVAL).await;
            for seed in &seeds {
                let found =
                    lookup_host(seed).await.into_iter().flatten().filter(|found| *found != own);
                // It only fails if the gossip has ended.
                found.for_each(|found| _ = gossip.gossip(found));
            }
        }
    })
}
