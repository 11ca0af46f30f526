//! How a node and its cluster stand, for people and metrics.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use serde::Serialize;
use slidegate::Timestamp;

use crate::counts::Incarnation;
use crate::membership::GossipTraffic;
use crate::seal::Refusals;
use crate::sync::{self, Standing};
use crate::transport::Traffic;

/// How a node and its cluster stand.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Status {
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

impl Status {
    fn member(&self, incarnation: &str) -> Option<&MemberStatus> {
        self.members.iter().find(|member| member.incarnation == incarnation)
    }
}

impl MemberStatus {
    /// Bytes that went to it and came from it since that status.
    fn more_than(&self, before: &Status) -> (u64, u64) {
        let known = before.member(&self.incarnation);
        let (sent, received) =
            known.map_or((0, 0), |known| (known.sent_bytes, known.received_bytes));
        (self.sent_bytes.saturating_sub(sent), self.received_bytes.saturating_sub(received))
    }
}

/// What a status is made of.
pub(super) struct Sources<'s> {
    pub(super) engine: &'s sync::Status,
    pub(super) links: Vec<(Incarnation, Traffic)>,
    pub(super) gossip: &'s GossipTraffic,
    pub(super) refusals: &'s Refusals,
    pub(super) now: Timestamp,
}

/// The last status that was made.
#[derive(Debug, Default)]
pub(super) struct Latest(ArcSwap<Status>);

impl Latest {
    pub(super) fn read(&self) -> Arc<Status> {
        self.0.load_full()
    }

    /// Makes another one. What goes over links in a second is told by the difference.
    pub(super) fn make(&self, sources: &Sources<'_>) {
        let before = self.read();
        let engine = sources.engine;
        let mut members: Vec<MemberStatus> =
            engine.members.iter().map(|member| of_member(member, sources, &before)).collect();
        members.sort_by(|one, other| one.name.cmp(&other.name));
        let mut refused: BTreeMap<&'static str, u64> =
            sources.refusals.iter().map(|(refusal, count)| (refusal.name(), count)).collect();
        let of_members = engine.members.iter();
        let malformed =
            of_members.map(|member| member.refused_frames + member.refused_tallies).sum::<u64>();
        *refused.entry("malformed").or_default() += malformed + engine.refused_frames;
        let more = members.iter().map(|member| member.more_than(&before));
        let counts = more.fold(before.counts, |sum, more| (sum.0 + more.0, sum.1 + more.1));
        self.0.store(Arc::new(Status {
            name: engine.me.name.to_string(),
            address: engine.me.address.map(|address| address.to_string()),
            incarnation: hex(engine.me.incarnation),
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

fn of_member(member: &sync::MemberStatus, sources: &Sources<'_>, before: &Status) -> MemberStatus {
    let incarnation = hex(member.node.incarnation);
    let links = sources.links.iter().find(|(of, _)| *of == member.node.incarnation);
    let traffic = links.map(|(_, traffic)| *traffic).unwrap_or_default();
    let known = before.member(&incarnation).cloned().unwrap_or_default();
    let spent_us = sources.now.as_micros().saturating_sub(before.made_at.as_micros()).max(1);
    let rate = |now: u64, then: u64| now.saturating_sub(then).saturating_mul(1_000_000) / spent_us;
    let silent_for_ms = match member.standing {
        Standing::Alive => None,
        Standing::Silent(span) => Some(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
    };
    MemberStatus {
        name: member.node.name.to_string(),
        address: member.node.address.map(|address| address.to_string()),
        state: if silent_for_ms.is_some() { "silent" } else { "alive" },
        silent_for_ms,
        lag_ms: u64::try_from(member.lag.as_millis()).unwrap_or(u64::MAX),
        sent_bytes: traffic.sent_bytes,
        received_bytes: traffic.received_bytes,
        sent_bytes_per_second: rate(traffic.sent_bytes, known.sent_bytes),
        received_bytes_per_second: rate(traffic.received_bytes, known.received_bytes),
        incarnation,
    }
}

fn hex(incarnation: Incarnation) -> String {
    format!("{:016x}", incarnation.0)
}
