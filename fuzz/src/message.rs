//! What has to be true of any message, whoever has sent it: it is read in one way or not at all, and whatever it says,
//! an engine and its counts go on and send nothing but messages.

use std::sync::Arc;
use std::time::Duration;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use slidegate::Timestamp;
use slidegate_cluster::counters::{CounterSettings, Counters};
use slidegate_cluster::counts::{BucketLayout, Incarnation, Tally, Told};
use slidegate_cluster::message::{
    Ack, Body, Counts, Listed, MAX_BYTES, Message, Position, Roster, VERSION, ack_frame, decode,
    leaving_frame,
};
use slidegate_cluster::sync::{Addressed, Engine, Node, Settings};

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
                ack_frame(&Ack { heard, sent })
            }
            Self::Tallies((epoch, seq), tallies) => {
                let told: Vec<Told> = tallies.iter().map(|tally| told(tally, now)).collect();
                let body = Body::of(&told).into_iter().next();
                body.map_or_else(Vec::new, |body| body.frame(place(*epoch, *seq)))
            }
            Self::Roster((epoch, seq), is_complete, is_settled, listed) => {
                let listed = listed.iter().map(|(incarnation, name, has_left)| Listed {
                    incarnation: Incarnation(*incarnation),
                    name: name.as_str().into(),
                    has_left: *has_left,
                });
                let roster = Roster { is_settled: *is_settled, listed: listed.collect() };
                Body::of_roster(&roster, *is_complete).frame(place(*epoch, *seq))
            }
        }
    }
}

fn place(epoch: u8, seq: u8) -> Position {
    Position { epoch: u64::from(epoch).max(1), seq: u64::from(seq).max(1) }
}

fn told(tally: &(u8, u32, u8, i8, u64, u64), now: Timestamp) -> Told {
    let (key, millis, incarnation, bucket, charged, given_back) = *tally;
    let shape = BucketLayout { bucket_us: (u64::from(millis) * 1_000).max(1), buckets: 2 };
    Told {
        key: u64::from(key) << 57 | u64::from(key),
        shape,
        incarnation: Incarnation(incarnation.into()),
        bucket: shape.bucket(now).saturating_add_signed(bucket.into()),
        tally: Tally { charged, given_back },
    }
}

/// Reads it, and if that goes, writes and reads it again.
fn hold_one_form(frame: &[u8]) {
    match decode(frame) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(Message::Leaving) => assert_eq!(frame, leaving_frame()),
        Ok(Message::Ack(ack)) => assert_eq!(frame, ack_frame(&ack)),
        Ok(Message::Counts(Counts { at, is_complete, roster, tallies })) => {
            assert!(tallies.len() <= frame.len(), "{} tallies", tallies.len());
            let bodies = Body::of(&tallies);
            let again = bodies.iter().flat_map(|body| match decode(&body.frame(at)) {
                Ok(Message::Counts(counts)) => counts.tallies,
                other => panic!("{other:?}"),
            });
            assert!(again.eq(tallies));
            if let Some(roster) = roster {
                let again = decode(&Body::of_roster(&roster, is_complete).frame(at));
                let tallies = Vec::new();
                let roster = Some(roster);
                assert_eq!(again, Ok(Message::Counts(Counts { at, is_complete, roster, tallies })));
            }
        }
    }
}

fn hold_sent(frames: &[Addressed]) {
    for (to, frame) in frames {
        assert!(*to != ME && frame.len() <= MAX_BYTES);
        assert!(decode(frame).is_ok(), "it sends messages");
    }
}

/// One engine hears it all.
pub fn hold_messages(heard: &[Heard]) {
    let mut now = Timestamp::from_secs(1_700_000_000);
    let settings = CounterSettings {
        me: ME,
        secret: [7; 16].into(),
        max_clock_skew_us: 2_000_000,
        sync_interval: Duration::from_millis(250),
        max_keys: 100,
        max_memory: 1 << 30,
    };
    let counters = Counters::new(settings, now);
    let progress = Arc::clone(counters.progress());
    let mut engine = Engine::new(node(1), Settings::default(), true, progress, now);
    for Heard { before, from, said } in heard {
        now = now.after(Duration::from_millis((*before).into()));
        let frame = said.frame(now);
        hold_one_form(&frame);
        let from = Incarnation(u64::from(*from) % (LAST + 2));
        hold_sent(&match said {
            Said::Nothing => engine.tick(&counters, now),
            Said::Members(which) => {
                let is_there = |nth: &u64| which >> nth & 1 == 1;
                let alive: Vec<Node> = (2..=LAST).filter(is_there).map(node).collect();
                engine.members(&counters, &alive, &[], now)
            }
            _ => engine.heard(&counters, from, &frame, now),
        });
        assert!(engine.status(now).members.len() <= 300, "strangers are bounded");
    }
    let refused = counters.keys();
    assert!(refused <= 10_000, "{refused} keys");
}

fn node(nth: u64) -> Node {
    Node { incarnation: Incarnation(nth), name: format!("node-{nth}").into(), address: None }
}
