//! Status of a node and its cluster, for `GET /v1/cluster` and metrics.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use serde::Serialize;
use slidegate::Timestamp;
use tokio::time::Instant;

use crate::membership::Membership;
use crate::node_info::NodeInfo;
use crate::pn_counter::Incarnation;
use crate::replication::{self, Liveness};
use crate::transport::{LinkTraffic, RejectCounters};

/// Status of a node and of its cluster, as known to this node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClusterStatus {
    /// The name of this node.
    pub name: String,
    /// The address at which other nodes reach this node.
    pub address: Option<String>,
    /// The incarnation of this node, as 16 hexadecimal digits.
    pub incarnation: String,
    /// Whether this node is waiting for a member that knows the cluster.
    pub joining: bool,
    /// Whether this node and the members that it can reach are a majority of the cluster.
    pub majority: bool,
    /// The other members, ordered by name.
    pub members: Vec<MemberStatus>,
    /// Bytes sent to all nodes since the start, without the overhead of TLS.
    pub sent_bytes: u64,
    /// Bytes received from all nodes since the start, without the overhead of TLS.
    pub received_bytes: u64,
    /// Number of rejected connections and frames, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    #[serde(skip)]
    updated_at: Timestamp,
}

/// Status of one other member.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MemberStatus {
    /// The name of the member.
    pub name: String,
    /// The address of the member.
    pub address: Option<String>,
    /// The incarnation of the member, as 16 hexadecimal digits.
    pub incarnation: String,
    /// State of the member: `alive`, `silent`, or `skewed` if its clock differs by more than the limit. A skewed member
    /// is treated like a silent one.
    pub state: &'static str,
    /// Milliseconds by which the clock of the member is ahead of the clock of this node. The delay of messages makes
    /// the clock seem to be behind. `None` if this node receives no messages from the member.
    pub clock_offset_ms: Option<i64>,
    /// Milliseconds since the member became silent or skewed; `None` if it is alive.
    pub silent_for_ms: Option<u64>,
    /// Age of the oldest flush that the member has not acknowledged, in milliseconds.
    pub lag_ms: u64,
    /// Bytes of replication traffic sent to the member.
    pub sent_bytes: u64,
    /// Bytes of replication traffic received from the member.
    pub received_bytes: u64,
    /// Bytes of replication traffic per second sent to the member, averaged since the previous status.
    pub sent_bytes_per_second: u64,
    /// Bytes of replication traffic per second received from the member, averaged since the previous status.
    pub received_bytes_per_second: u64,
}

impl ClusterStatus {
    fn find_member(&self, incarnation: &str) -> Option<&MemberStatus> {
        self.members.iter().find(|member| member.incarnation == incarnation)
    }
}

impl MemberStatus {
    /// Returns the bytes sent to and received from the member since the previous status.
    fn sent_and_received_bytes_since(&self, previous: &ClusterStatus) -> (u64, u64) {
        let previous_member = previous.find_member(&self.incarnation);
        let (sent, received) = previous_member.map_or((0, 0), |previous_member| {
            (previous_member.sent_bytes, previous_member.received_bytes)
        });
        (self.sent_bytes.saturating_sub(sent), self.received_bytes.saturating_sub(received))
    }
}

/// The inputs from which a status is computed.
pub(super) struct ClusterStatusInputs<'s> {
    pub(super) engine: &'s replication::EngineStatus,
    pub(super) links: Vec<(Incarnation, LinkTraffic)>,
    pub(super) membership: &'s Membership,
    pub(super) skewed: &'s [NodeInfo],
    pub(super) reject_counters: &'s RejectCounters,
    pub(super) now: Timestamp,
    pub(super) instant: Instant,
}

/// The most recent status, which any task can read.
#[derive(Debug, Default)]
pub(super) struct LatestClusterStatus(ArcSwap<ClusterStatus>);

impl LatestClusterStatus {
    pub(super) fn load(&self) -> Arc<ClusterStatus> {
        self.0.load_full()
    }

    /// Computes and publishes a new status. Rates are computed from the difference to the previous status.
    pub(super) fn update(&self, sources: &ClusterStatusInputs<'_>) {
        let previous = self.load();
        let engine = sources.engine;
        let mut members: Vec<MemberStatus> = engine
            .members
            .iter()
            .map(|member| build_member_status(member, sources, &previous))
            .collect();
        members.sort_by(|one, other| one.name.cmp(&other.name));
        let mut refused: BTreeMap<&'static str, u64> =
            sources.reject_counters.iter().map(|(reason, count)| (reason.name(), count)).collect();
        let peers = engine.members.iter();
        let malformed =
            peers.map(|member| member.rejected_frames + member.rejected_updates).sum::<u64>();
        *refused.entry("malformed").or_default() += malformed + engine.rejected_frames;
        let traffic = members.iter().map(|member| member.sent_and_received_bytes_since(&previous));
        let before = (previous.sent_bytes, previous.received_bytes);
        let (sent_bytes, received_bytes) =
            traffic.fold(before, |sum, traffic| (sum.0 + traffic.0, sum.1 + traffic.1));
        self.0.store(Arc::new(ClusterStatus {
            name: engine.local_node.name.to_string(),
            address: engine.local_node.address.map(|address| address.to_string()),
            incarnation: format_incarnation(engine.local_node.incarnation),
            joining: engine.is_joining,
            majority: engine.is_majority,
            members,
            sent_bytes,
            received_bytes,
            refused,
            updated_at: sources.now,
        }));
    }
}

fn build_member_status(
    member: &replication::PeerStatus,
    sources: &ClusterStatusInputs<'_>,
    previous: &ClusterStatus,
) -> MemberStatus {
    let incarnation = format_incarnation(member.node.incarnation);
    let links = sources.links.iter().find(|(of, _)| *of == member.node.incarnation);
    let traffic = links.map(|(_, traffic)| *traffic).unwrap_or_default();
    let previous_member = previous.find_member(&incarnation).cloned().unwrap_or_default();
    let elapsed_us = sources.now.as_micros().saturating_sub(previous.updated_at.as_micros()).max(1);
    let rate =
        |now: u64, then: u64| now.saturating_sub(then).saturating_mul(1_000_000) / elapsed_us;
    let silent_for_ms = match member.liveness {
        Liveness::Alive => None,
        Liveness::Silent(span) => Some(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
    };
    let of = member.node.incarnation;
    let is_skewed = sources.skewed.iter().any(|node| node.incarnation == of);
    let clock_offset_us = sources.membership.clock_offset_us(of, sources.instant);
    MemberStatus {
        name: member.node.name.to_string(),
        address: member.node.address.map(|address| address.to_string()),
        state: match silent_for_ms {
            None => "alive",
            Some(_) if is_skewed => "skewed",
            Some(_) => "silent",
        },
        clock_offset_ms: clock_offset_us.map(|offset_us| offset_us / 1_000),
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
