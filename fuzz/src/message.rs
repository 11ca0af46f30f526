//! What has to be true of any message, whoever has sent it: it is read in one way or not at all, and whatever it says,
//! an engine and its counts go on and send nothing but messages.

use std::sync::Arc;
use std::time::Duration;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use slidegate::Timestamp;
use slidegate_cluster::counters::{CounterSettings, Counters};
use slidegate_cluster::message::{
    Ack, FrameBody, MAX_MESSAGE_BYTES, Message, Position, Roster, RosterEntry, UpdateFrame,
    VERSION, ack_frame, decode, leaving_frame,
};
use slidegate_cluster::pn_counter::{CounterUpdate, Incarnation, PnCounter, BucketLayout};
use slidegate_cluster::replication::{NodeInfo, OutboundFrame, ReplicationEngine, Settings};

const ME: Incarnation = Incarnation(1);

/// The last of those that may be members.
const LAST: u64 = 5;

/// One frame, and when it comes.
#[derive(Arbitrary, Debug)]
pub struct Heard {
    /// Time passes before it comes: in milliseconds.
    before: u16,
    from: u8,
    said: Said,
}

#[derive(Arbitrary, Debug)]
enum Said {
    /// No frame: an interval has passed.
    Nothing,
    /// Others are there from now on.
    Members(u8),
    Leaving,
    Bytes(Vec<u8>),
    /// Bytes after the version.
    Known(Vec<u8>),
    Ack([u8; 4]),
    Tallies((u8, u8), Vec<(u8, u32, u8, i8, u64, u64)>),
    Roster((u8, u8), bool, bool, Vec<(u64, String, bool)>),
}

impl Said {
    fn frame(&self, now: Timestamp) -> Vec<u8> {
        match self {
            Self::Nothing | Self::Members(_) => Vec::new(),
            Self::Leaving => leaving_frame(),
            Self::Bytes(bytes) => bytes.clone(),
            Self::Known(bytes) => [&[VERSION], &bytes[..]].concat(),
            Self::Ack([epoch, seq, sent_epoch, sent_seq]) => {
                let (heard, sent) = (place(*epoch, *seq), place(*sent_epoch, *sent_seq));
                ack_frame(&Ack { received: heard, sent })
            }
            Self::Tallies((epoch, seq), tallies) => {
                let told: Vec<CounterUpdate> =
                    tallies.iter().map(|tally| told(tally, now)).collect();
                let body = FrameBody::from_updates(&told).into_iter().next();
                body.map_or_else(Vec::new, |body| body.to_frame(place(*epoch, *seq)))
            }
            Self::Roster((epoch, seq), is_complete, is_settled, listed) => {
                let listed = listed.iter().map(|(incarnation, name, has_left)| RosterEntry {
                    incarnation: Incarnation(*incarnation),
                    name: name.as_str().into(),
                    has_left: *has_left,
                });
                let roster = Roster { is_settled: *is_settled, entries: listed.collect() };
                FrameBody::from_roster(&roster, *is_complete).to_frame(place(*epoch, *seq))
            }
        }
    }
}

fn place(epoch: u8, seq: u8) -> Position {
    Position { epoch: u64::from(epoch).max(1), seq: u64::from(seq).max(1) }
}

fn told(tally: &(u8, u32, u8, i8, u64, u64), now: Timestamp) -> CounterUpdate {
    let (key, millis, incarnation, bucket, charged, removed) = *tally;
    let layout = BucketLayout { bucket_us: (u64::from(millis) * 1_000).max(1), buckets: 2 };
    CounterUpdate {
        key: u64::from(key) << 57 | u64::from(key),
        layout,
        incarnation: Incarnation(incarnation.into()),
        bucket: layout.bucket(now).saturating_add_signed(bucket.into()),
        units: PnCounter { charged, removed },
    }
}

/// Reads it, and if that goes, writes and reads it again.
fn hold_one_form(frame: &[u8]) {
    match decode(frame) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(Message::Leaving) => assert_eq!(frame, leaving_frame()),
        Ok(Message::Ack(ack)) => assert_eq!(frame, ack_frame(&ack)),
        Ok(Message::Updates(UpdateFrame { position, is_complete, roster, updates })) => {
            assert!(updates.len() <= frame.len(), "{} updates", updates.len());
            let bodies = FrameBody::from_updates(&updates);
            let again = bodies.iter().flat_map(|body| match decode(&body.to_frame(position)) {
                Ok(Message::Updates(frame)) => frame.updates,
                other => panic!("{other:?}"),
            });
            assert!(again.eq(updates));
            if let Some(roster) = roster {
                let again =
                    decode(&FrameBody::from_roster(&roster, is_complete).to_frame(position));
                let updates = Vec::new();
                let roster = Some(roster);
                assert_eq!(
                    again,
                    Ok(Message::Updates(UpdateFrame { position, is_complete, roster, updates }))
                );
            }
        }
    }
}

fn hold_sent(frames: &[OutboundFrame]) {
    for (to, frame) in frames {
        assert!(*to != ME && frame.len() <= MAX_MESSAGE_BYTES);
        assert!(decode(frame).is_ok(), "it sends messages");
    }
}

/// One engine hears it all.
pub fn hold_messages(heard: &[Heard]) {
    let mut now = Timestamp::from_secs(1_700_000_000);
    let settings = CounterSettings {
        incarnation: ME,
        secret: [7; 16].into(),
        max_clock_skew_us: 2_000_000,
        sync_interval: Duration::from_millis(250),
        max_keys: 100,
        max_memory: 1 << 30,
    };
    let counters = Counters::new(settings, now);
    let progress = Arc::clone(counters.progress());
    let mut engine = ReplicationEngine::new(node(1), Settings::default(), true, progress, now);
    for Heard { before, from, said } in heard {
        now = now.after(Duration::from_millis((*before).into()));
        let frame = said.frame(now);
        hold_one_form(&frame);
        let from = Incarnation(u64::from(*from) % (LAST + 2));
        hold_sent(&match said {
            Said::Nothing => engine.tick(&counters, now),
            Said::Members(which) => {
                let is_there = |nth: &u64| which >> nth & 1 == 1;
                let alive: Vec<NodeInfo> = (2..=LAST).filter(is_there).map(node).collect();
                engine.on_membership_changed(&counters, &alive, &[], now)
            }
            _ => engine.on_frame_received(&counters, from, &frame, now),
        });
        assert!(engine.status(now).members.len() <= 300, "strangers are bounded");
    }
    let refused = counters.keys();
    assert!(refused <= 10_000, "{refused} keys");
}

fn node(nth: u64) -> NodeInfo {
    NodeInfo { incarnation: Incarnation(nth), name: format!("node-{nth}").into(), address: None }
}
