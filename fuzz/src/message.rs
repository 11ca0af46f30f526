//! Checks of cluster messages from arbitrary senders. A decoded message must not change if it is encoded and decoded
//! again. A replication engine that receives the message must continue to work and send only valid messages.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use slidegate::Timestamp;
use slidegate_cluster::counters::{CounterSettings, Counters};
use slidegate_cluster::membership::MembershipView;
use slidegate_cluster::message::{
    Ack, FrameBody, Message, Position, Roster, RosterEntry, UpdateFrame, ack_frame, decode,
    full_state_request_frame, members_frame,
};
use slidegate_cluster::node_info::NodeInfo;
use slidegate_cluster::pn_counter::{BucketLayout, CounterUpdate, Incarnation, PnCounter};
use slidegate_cluster::replication::{OutboundFrame, ReplicationEngine, Settings};
use slidegate_cluster::transport::MAX_FRAME_BYTES;

const LOCAL_NODE: Incarnation = Incarnation(1);

/// The highest incarnation number of a node that can be a member of the tested cluster.
const MAX_MEMBER_INCARNATION: u64 = 5;

/// An input of the replication engine, with its delay and its sender.
#[derive(Arbitrary, Debug)]
pub struct TimedInput {
    /// The time since the previous input, in milliseconds.
    delay_ms: u16,
    /// The incarnation number of the sender, modulo [`MAX_MEMBER_INCARNATION`] plus 2.
    from: u8,
    input: EngineInput,
}

/// An input of the replication engine: a received frame, a tick of the clock, or a membership change.
#[derive(Arbitrary, Debug)]
enum EngineInput {
    /// A tick: the replication interval has passed.
    Tick,
    /// A membership change. Bit `n` of the mask is set if the node with incarnation `n` is live.
    Members(u8),
    /// A request of the full state after an epoch.
    FullStateRequest(u8),
    /// A frame of arbitrary bytes.
    Bytes(Vec<u8>),
    /// An acknowledgement frame: epoch and sequence number received, then epoch and sequence number sent.
    Ack([u8; 4]),
    /// A frame with counter updates. The first value is its position (epoch and sequence number); see
    /// [`new_counter_update`] for the updates.
    Updates((u8, u8), Vec<(u8, u32, u8, i8, u64, u64)>),
    /// A frame with a member list: its position, whether the state is complete, whether the sender is settled, and the
    /// entries (incarnation, name, whether the member has left).
    Roster((u8, u8), bool, bool, Vec<(u64, String, bool)>),
}

impl EngineInput {
    /// Returns the encoded frame of the input. The result is empty if the input is not a frame.
    fn frame(&self, now: Timestamp) -> Bytes {
        match self {
            Self::Tick | Self::Members(_) => Bytes::new(),
            Self::FullStateRequest(epoch) => full_state_request_frame((*epoch).into(), now),
            Self::Bytes(bytes) => bytes.clone().into(),
            Self::Ack([epoch, seq, sent_epoch, sent_seq]) => {
                let (received, sent) = (
                    new_stream_position(*epoch, *seq),
                    new_stream_position(*sent_epoch, *sent_seq),
                );
                ack_frame(&Ack { received, sent }, now)
            }
            Self::Updates((epoch, seq), updates) => {
                let updates: Vec<CounterUpdate> =
                    updates.iter().map(|update| new_counter_update(update, now)).collect();
                let body = FrameBody::from_updates(&updates).into_iter().next();
                body.map_or_else(Bytes::new, |body| {
                    body.to_frame(new_stream_position(*epoch, *seq), now)
                })
            }
            Self::Roster((epoch, seq), is_complete, is_settled, entries) => {
                let entries = entries.iter().map(|(incarnation, name, has_left)| RosterEntry {
                    incarnation: Incarnation(*incarnation),
                    name: name.as_str().into(),
                    has_left: *has_left,
                });
                let roster = Roster { is_settled: *is_settled, entries: entries.collect() };
                let body = match is_complete {
                    true => FrameBody::end_of_initial_state(&roster, *is_settled),
                    false => FrameBody::from_roster(&roster),
                };
                body.to_frame(new_stream_position(*epoch, *seq), now)
            }
        }
    }
}

/// Returns the position of a frame in the sender's stream. Its epoch and sequence number are at least 1, as in every
/// valid position.
fn new_stream_position(epoch: u8, seq: u8) -> Position {
    Position { epoch: u64::from(epoch).max(1), seq: u64::from(seq).max(1) }
}

/// Returns a counter update. The values in `update` are a key, the bucket length in milliseconds, an incarnation, the
/// distance of the bucket from the current bucket, and the units charged and removed.
fn new_counter_update(update: &(u8, u32, u8, i8, u64, u64), now: Timestamp) -> CounterUpdate {
    let (key, millis, incarnation, bucket, charged, removed) = *update;
    let layout =
        BucketLayout { bucket_us: (u64::from(millis) * 1_000).max(1), buckets: 2, drift_us: 0 };
    CounterUpdate {
        key: u64::from(key) << 57 | u64::from(key),
        layout,
        incarnation: Incarnation(incarnation.into()),
        bucket: layout.bucket(now).saturating_add_signed(bucket.into()),
        units: PnCounter { charged, removed },
    }
}

/// Decodes a frame. If it is valid, checks that encoding and decoding the message again gives the same message.
fn check_round_trip(frame: &Bytes) {
    let received = match decode(frame.clone()) {
        Err(error) => return assert!(!error.to_string().is_empty()),
        Ok(received) => received,
    };
    let now = received.sent_at;
    let again = match &received.message {
        None => return,
        Some(Message::Ack(ack)) => ack_frame(ack, now),
        Some(Message::Members(entries)) => members_frame(entries, now),
        Some(Message::FullStateRequest { after_epoch }) => {
            full_state_request_frame(*after_epoch, now)
        }
        Some(Message::Updates(frame)) => return check_updates(frame, now),
    };
    assert_eq!(decode(again), Ok(received));
}

fn check_updates(frame: &UpdateFrame, now: Timestamp) {
    let decoded_updates: usize = FrameBody::from_updates(&frame.updates)
        .iter()
        .map(|body| {
            match decode(body.to_frame(frame.position, now)).map(|decoded| decoded.message) {
                Ok(Some(Message::Updates(frame))) => frame.updates.len(),
                other => panic!("{other:?}"),
            }
        })
        .sum();
    assert_eq!(decoded_updates, frame.updates.len());
}

/// Checks that frames that the engine sends are valid messages, and that their receivers are other nodes.
fn check_outbound(frames: &[OutboundFrame]) {
    for (to, frame) in frames {
        assert!(*to != LOCAL_NODE && frame.len() <= MAX_FRAME_BYTES);
        assert!(decode(frame.clone()).is_ok(), "an invalid frame was sent");
    }
}

/// Passes all inputs to one replication engine and checks the engine after each of them.
///
/// # Panics
///
/// Panics if the engine sends an invalid frame, or exceeds its bounds for members or keys.
pub fn check_messages(inputs: &[TimedInput]) {
    let mut now = Timestamp::from_secs(1_700_000_000);
    let settings = CounterSettings {
        incarnation: LOCAL_NODE,
        secret: [7; 16].into(),
        max_clock_skew_us: 2_000_000,
        sync_interval: Duration::from_millis(250),
        max_keys: 100,
        max_memory: 1 << 30,
    };
    let counters = Counters::new(settings, now);
    let progress = Arc::clone(counters.progress());
    let mut engine =
        ReplicationEngine::new(new_node_info(1), Settings::default(), true, progress, now);
    for TimedInput { delay_ms, from, input } in inputs {
        now = now.after(Duration::from_millis((*delay_ms).into()));
        let frame = input.frame(now);
        check_round_trip(&frame);
        let from = Incarnation(u64::from(*from) % (MAX_MEMBER_INCARNATION + 2));
        check_outbound(&match input {
            EngineInput::Tick => engine.tick(&counters, now),
            EngineInput::Members(members) => {
                let is_live = |number: &u64| members >> number & 1 == 1;
                let live =
                    (2..=MAX_MEMBER_INCARNATION).filter(is_live).map(new_node_info).collect();
                let view = MembershipView { live, ..MembershipView::default() };
                engine.on_membership_changed(&counters, &view, now)
            }
            _ => match decode(frame.clone()) {
                Ok(received) => engine.on_message(&counters, from, received, frame.len(), now),
                Err(_) => {
                    engine.on_invalid_frame(from);
                    Vec::new()
                }
            },
        });
        assert!(engine.status(now).members.len() <= 300, "too many members");
    }
    let keys = counters.keys();
    assert!(keys <= 10_000, "{keys} keys");
}

/// Returns the info of a node with this incarnation number. Its name is derived from the number.
fn new_node_info(number: u64) -> NodeInfo {
    NodeInfo {
        incarnation: Incarnation(number),
        name: format!("node-{number}").into(),
        address: None,
    }
}
