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

use super::{LEAVING, incarnation};
use crate::counts::Incarnation;

/// How long a node that has found nobody waits before it resolves its seeds again.
const SEEK: Duration = Duration::from_secs(2);

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
pub struct Roll {
    /// Those that are heard of: of each name one.
    pub live: Vec<Member>,
    /// Those that have said that they leave, and those that were replaced by another life of the same name: they
    /// charge nothing any more. Each is named for some minutes.
    pub left: Vec<Member>,
}

/// Keeps the roll for as long as the gossip goes on.
pub(super) async fn call(gossip: &ChitchatHandle) -> (JoinHandle<()>, watch::Receiver<Roll>) {
    let chitchat = gossip.chitchat();
    let end = gossip.termination_watcher();
    // A word of somebody who is not heard of any more, told by others, changes nothing that chitchat watches.
    let heard = Arc::new(Notify::new());
    let notify = Arc::clone(&heard);
    let (mut live, listening) = {
        let chitchat = chitchat.lock().await;
        let listening = chitchat.subscribe_event(LEAVING, move |_| notify.notify_one());
        (chitchat.live_nodes_watcher(), listening)
    };
    let (tell, roll) = watch::channel(Roll::default());
    let keep = async move {
        let _listening = listening;
        let mut namesake = 0;
        loop {
            let now = read(&*chitchat.lock().await, &mut namesake);
            tell.send_if_modified(|before| std::mem::replace(before, now.clone()) != now);
            tokio::select! {
                changed = live.changed() => if changed.is_err() { return },
                () = heard.notified() => {}
            }
        }
    };
    let calling = tokio::spawn(async move {
        tokio::select! {
            () = keep => {}
            ended = end => error!(?ended, "the gossip of the cluster has ended: this node hears of no other any more"),
        }
    });
    (calling, roll)
}

fn read(chitchat: &Chitchat, namesake: &mut u64) -> Roll {
    let own = chitchat.self_chitchat_id();
    let live: Vec<&ChitchatId> = chitchat.live_nodes().filter(|node| *node != own).collect();
    live.iter().filter(|node| is_namesake(node, own)).for_each(|node| warn_once(node, namesake));
    let known = chitchat.node_states().iter().filter(|(node, _)| *node != own);
    sort(
        known.map(|(node, state)| Heard {
            node,
            live: live.contains(&node),
            leaving: is_leaving(state),
        }),
        own,
    )
}

/// Whether that is a later life of the name that this node has: since this one lives, it is another node.
fn is_namesake(node: &ChitchatId, own: &ChitchatId) -> bool {
    node.node_id == own.node_id && node.generation_id > own.generation_id
}

fn warn_once(node: &ChitchatId, namesake: &mut u64) {
    if node.generation_id > *namesake {
        *namesake = node.generation_id;
        let (name, address) = (&node.node_id, node.gossip_advertise_addr);
        warn!(%name, %address, "another node has this node's name: give each a name of its own");
    }
}

fn is_leaving(state: &NodeState) -> bool {
    state.get(LEAVING).is_some()
}

/// What is known of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard<'c> {
    pub(super) node: &'c ChitchatId,
    pub(super) live: bool,
    pub(super) leaving: bool,
}

impl Heard<'_> {
    /// Whether it lives, and means to.
    const fn stays(&self) -> bool {
        self.live && !self.leaving
    }
}

/// Of several lives of one name the one that is heard of is the present one, and of two such the newer: the others are
/// replaced. (A node whose clock was put back begins with an older generation, and is heard of nevertheless.)
pub(super) fn sort<'c>(all: impl Iterator<Item = Heard<'c>>, own: &ChitchatId) -> Roll {
    let mut named: BTreeMap<&str, Vec<Heard<'c>>> = BTreeMap::new();
    all.for_each(|heard| named.entry(&heard.node.node_id).or_default().push(heard));
    let mut roll = Roll::default();
    for mut lives in named.into_values() {
        lives.sort_by_key(|heard| (heard.stays(), heard.node.generation_id));
        let present = lives.pop_if(|newest| {
            newest.node.node_id != own.node_id || is_present_namesake(newest, own)
        });
        match present {
            Some(present) if present.leaving => roll.left.push(member(present.node)),
            Some(present) if present.live => roll.live.push(member(present.node)),
            _ => {}
        }
        roll.left.extend(lives.into_iter().map(|replaced| member(replaced.node)));
    }
    roll
}

/// Lives of this node's own name are replaced by this one, unless it is another node that has it: that one allows.
fn is_present_namesake(heard: &Heard<'_>, own: &ChitchatId) -> bool {
    heard.stays() && is_namesake(heard.node, own)
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
pub(super) fn seek(
    gossip: Arc<ChitchatHandle>,
    mut seeds: Vec<String>,
    own: SocketAddr,
    mut roll: watch::Receiver<Roll>,
) -> JoinHandle<()> {
    // Of addresses it needs not be told again.
    seeds.retain(|seed| seed.parse::<SocketAddr>().is_err());
    tokio::spawn(async move {
        while !seeds.is_empty() && roll.wait_for(|roll| roll.live.is_empty()).await.is_ok() {
            sleep(SEEK).await;
            for seed in &seeds {
                let found =
                    lookup_host(seed).await.into_iter().flatten().filter(|found| *found != own);
                // It only fails if the gossip has ended.
                found.for_each(|found| _ = gossip.gossip(found));
            }
        }
    })
}
