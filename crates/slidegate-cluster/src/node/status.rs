//! How a node and its cluster stand, for people and metrics.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use serde::Serialize;
use slidegate::Timestamp;

use crate::membership::GossipTraffic;
use crate::pn_counter::Incarnation;
use crate::replication::{self, Liveness};
use crate::seal::RejectCounters;
use crate::transport::LinkTraffic;

/// How a node and its cluster stand.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClusterStatus {
    /// This node's name.
    pub name: String,
    /// Where others reach it.
    pub address: Option<String>,
    /// This life of it, in 16 hexadecimal digits.
    pub incarnation: String,
    /// Whether it still waits for somebody who knows the cluster.
    pub joining: bool,
    /// Whether it hears a majority of the nodes.
    pub majority: bool,
    /// The others, in the order of their names.
    pub members: Vec<MemberStatus>,
    /// Bytes that went out to all nodes that ever were, gossip among them.
    pub sent_bytes: u64,
    /// Bytes that came from them.
    pub received_bytes: u64,
    /// What was refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    #[serde(skip)]
    made_at: Timestamp,
    /// Bytes of counts that went to nodes and came from them, those that have left among them.
    #[serde(skip)]
    counts: (u64, u64),
}

/// How it stands with one of the others.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MemberStatus {
    /// Its name.
    pub name: String,
    /// Where it is reached.
    pub address: Option<String>,
    /// This life of it.
    pub incarnation: String,
    /// `alive` or `silent`.
    pub state: &'static str,
    /// For how long it has been silent.
    pub silent_for_ms: Option<u64>,
    /// Time since the oldest news were told that it has not acknowledged.
    pub lag_ms: u64,
    /// Bytes of counts that went to it.
    pub sent_bytes: u64,
    /// Bytes of counts that came from it.
    pub received_bytes: u64,
    /// Of late.
    pub sent_bytes_per_second: u64,
    /// Of late.
    pub received_bytes_per_second: u64,
}

impl ClusterStatus {
    fn member(&self, incarnation: &str) -> Option<&MemberStatus> {
        self.members.iter().find(|member| member.incarnation == incarnation)
    }
}

impl MemberStatus {
    /// Bytes that went to it and came from it since that status.
    fn traffic_since(&self, previous: &ClusterStatus) -> (u64, u64) {
        let previous_member = previous.member(&self.incarnation);
        let (sent, received) = previous_member.map_or((0, 0), |previous_member| {
            (previous_member.sent_bytes, previous_member.received_bytes)
        });
        (self.sent_bytes.saturating_sub(sent), self.received_bytes.saturating_sub(received))
    }
}

/// What a status is made of.
pub(super) struct StatusSources<'s> {
    pub(super) engine: &'s replication::EngineStatus,
    pub(super) links: Vec<(Incarnation, LinkTraffic)>,
    pub(super) gossip: &'s GossipTraffic,
    pub(super) reject_counters: &'s RejectCounters,
    pub(super) now: Timestamp,
}

/// The last status that was made.
#[derive(Debug, Default)]
pub(super) struct LatestStatus(ArcSwap<ClusterStatus>);

impl LatestStatus {
    pub(super) fn load(&self) -> Arc<ClusterStatus> {
        self.0.load_full()
    }

    /// Makes another one. What goes over links in a second is told by the difference.
    pub(super) fn update(&self, sources: &StatusSources<'_>) {
        let previous = self.load();
        let engine = sources.engine;
        let mut members: Vec<MemberStatus> =
            engine.members.iter().map(|member| member_status(member, sources, &previous)).collect();
        members.sort_by(|one, other| one.name.cmp(&other.name));
        let mut refused: BTreeMap<&'static str, u64> = sources
            .reject_counters
            .iter()
            .map(|(refusal, count)| (refusal.name(), count))
            .collect();
        let peers = engine.members.iter();
        let malformed =
            peers.map(|member| member.rejected_frames + member.rejected_updates).sum::<u64>();
        *refused.entry("malformed").or_default() += malformed + engine.rejected_frames;
        let traffic = members.iter().map(|member| member.traffic_since(&previous));
        let counts =
            traffic.fold(previous.counts, |sum, traffic| (sum.0 + traffic.0, sum.1 + traffic.1));
        self.0.store(Arc::new(ClusterStatus {
            name: engine.local_node.name.to_string(),
            address: engine.local_node.address.map(|address| address.to_string()),
            incarnation: format_incarnation(engine.local_node.incarnation),
            joining: engine.is_joining,
            majority: engine.is_majority,
            members,
            sent_bytes: counts.0 + sources.gossip.sent_bytes(),
            received_bytes: counts.1 + sources.gossip.received_bytes(),
            refused,
            made_at: sources.now,
            counts,
        }));
    }
}

fn member_status(
    member: &replication::PeerStatus,
    sources: &StatusSources<'_>,
    previous: &ClusterStatus,
) -> MemberStatus {
    let incarnation = format_incarnation(member.node.incarnation);
    let links = sources.links.iter().find(|(of, _)| *of == member.node.incarnation);
    let traffic = links.map(|(_, traffic)| *traffic).unwrap_or_default();
    let previous_member = previous.member(&incarnation).cloned().unwrap_or_default();
    let elapsed_us = sources.now.as_micros().saturating_sub(previous.made_at.as_micros()).max(1);
    let rate =
        |now: u64, then: u64| now.saturating_sub(then).saturating_mul(1_000_000) / elapsed_us;
    let silent_for_ms = match member.liveness {
        Liveness::Alive => None,
        Liveness::Silent(span) => Some(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
    };
    MemberStatus {
        name: member.node.name.to_string(),
        address: member.node.address.map(|address| address.to_string()),
        state: if silent_for_ms.is_some() { "silent" } else { "alive" },
        silent_for_ms,
        lag_ms: u64::try_from(member.lag.as_millis()).unwrap_or(u64::MAX),
        sent_bytes: traffic.sent_bytes,
        received_bytes: traffic.received_bytes,
        sent_bytes_per_second: rate(traffic.sent_bytes, previous_member.sent_bytes),
        received_bytes_per_second: rate(traffic.received_bytes, previous_member.received_bytes),
        incarnation,
    }
}

fn format_incarnation(incarnation: Incarnation) -> String {
    format!("{:016x}", incarnation.0)
}
