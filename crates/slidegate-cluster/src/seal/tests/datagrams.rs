use std::time::Duration;

use proptest::prelude::*;
use slidegate::Timestamp;

use super::*;

const MAX_CLOCK_SKEW: Duration = Duration::from_secs(2);

fn start_time() -> Timestamp {
    Timestamp::from_secs(1_000_000)
}

fn secs_after_start(seconds: u64) -> Timestamp {
    start_time().after(Duration::from_secs(seconds))
}

fn new_datagram_opener_of_bob() -> DatagramOpener {
    DatagramOpener::new(&test_key(), BOB, MAX_CLOCK_SKEW)
}

fn seal_datagram_at(sealer: &mut DatagramSealer, now: Timestamp, payload: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    sealer.seal(now, payload, &mut sealed).unwrap();
    sealed
}

fn seal_datagram_at_start(payload: &[u8]) -> Vec<u8> {
    seal_datagram_at(&mut DatagramSealer::new(&test_key(), ALICE), start_time(), payload)
}

fn reject_reason_of_datagram(
    opener: &mut DatagramOpener,
    now: Timestamp,
    datagram: &[u8],
) -> Option<RejectReason> {
    opener.open(now, datagram).err()
}

#[test]
fn opened_datagram_has_sender_and_payload() {
    let datagram = seal_datagram_at_start(b"hello");
    let opened = OpenedDatagram { from: ALICE, payload: b"hello" };
    assert_eq!(new_datagram_opener_of_bob().open(start_time(), &datagram), Ok(opened));
    assert_eq!(datagram.len(), 5 + DATAGRAM_OVERHEAD);
}

#[test]
fn sealing_replaces_previous_buffer_content() {
    let (mut sealer, mut sealed) = (DatagramSealer::new(&test_key(), ALICE), b"rest".to_vec());
    sealer.seal(start_time(), b"hello", &mut sealed).unwrap();
    assert_eq!(new_datagram_opener_of_bob().open(start_time(), &sealed).unwrap().payload, b"hello");
}

#[test]
fn payload_above_datagram_size_is_rejected() {
    let (mut sealer, mut sealed) = (DatagramSealer::new(&test_key(), ALICE), Vec::new());
    let longest = vec![7; MAX_DATAGRAM - DATAGRAM_OVERHEAD];
    assert_eq!(sealer.seal(start_time(), &longest, &mut sealed), Ok(()));
    assert_eq!(sealed.len(), MAX_DATAGRAM);
    assert_eq!(new_datagram_opener_of_bob().open(start_time(), &sealed).unwrap().payload, longest);
    let longer = [&longest[..], &[7]].concat();
    assert_eq!(sealer.seal(start_time(), &longer, &mut sealed), Err(RejectReason::TooLong));
    assert_eq!(
        reject_reason_of_datagram(
            &mut new_datagram_opener_of_bob(),
            start_time(),
            &vec![VERSION; MAX_DATAGRAM + 1]
        ),
        Some(RejectReason::TooLong)
    );
}

#[test]
fn datagram_with_other_key_is_rejected() {
    let datagram = seal_datagram_at(
        &mut DatagramSealer::new(&key_of_other_cluster(), ALICE),
        start_time(),
        b"hello",
    );
    let mut opener = new_datagram_opener_of_bob();
    assert_eq!(
        reject_reason_of_datagram(&mut opener, start_time(), &datagram),
        Some(RejectReason::WrongMac)
    );
    assert_eq!(opener.senders(), 0, "unauthenticated senders are not remembered");
}

#[test]
fn datagram_of_other_version_is_rejected() {
    let mut datagram = seal_datagram_at_start(b"hello");
    datagram[0] += 1;
    assert_eq!(
        reject_reason_of_datagram(&mut new_datagram_opener_of_bob(), start_time(), &datagram),
        Some(RejectReason::WrongVersion)
    );
}

#[test]
fn reflected_datagram_is_rejected() {
    let datagram =
        seal_datagram_at(&mut DatagramSealer::new(&test_key(), BOB), start_time(), b"hello");
    assert_eq!(
        reject_reason_of_datagram(&mut new_datagram_opener_of_bob(), start_time(), &datagram),
        Some(RejectReason::Reflected)
    );
}

#[test]
fn datagram_cannot_be_opened_twice() {
    let (datagram, mut opener) = (seal_datagram_at_start(b"hello"), new_datagram_opener_of_bob());
    assert_eq!(reject_reason_of_datagram(&mut opener, start_time(), &datagram), None);
    assert_eq!(
        reject_reason_of_datagram(&mut opener, start_time(), &datagram),
        Some(RejectReason::Replayed)
    );
    assert_eq!(
        reject_reason_of_datagram(&mut opener, secs_after_start(61), &datagram),
        Some(RejectReason::Replayed)
    );
}

#[test]
fn late_datagrams_within_replay_window_are_opened() {
    let mut sealer = DatagramSealer::new(&test_key(), ALICE);
    let all: Vec<_> =
        (0..100).map(|_| seal_datagram_at(&mut sealer, start_time(), b"hello")).collect();
    let mut opener = new_datagram_opener_of_bob();
    for (late, datagram) in all[30..].iter().rev().enumerate() {
        assert_eq!(
            reject_reason_of_datagram(&mut opener, start_time(), datagram).is_some(),
            late > 64
        );
    }
    assert!(all.iter().all(|datagram| reject_reason_of_datagram(
        &mut opener,
        start_time(),
        datagram
    ) == Some(RejectReason::Replayed)));
}

#[test]
fn opener_without_history_rejects_stale_datagram() {
    let datagram = seal_datagram_at_start(b"hello");
    assert_eq!(
        reject_reason_of_datagram(
            &mut new_datagram_opener_of_bob(),
            secs_after_start(62),
            &datagram
        ),
        None
    );
    assert_eq!(
        reject_reason_of_datagram(
            &mut new_datagram_opener_of_bob(),
            Timestamp::from_micros(secs_after_start(62).as_micros() + 1),
            &datagram
        ),
        Some(RejectReason::Stale)
    );
    let early = Timestamp::from_micros(start_time().as_micros() - 62_000_000);
    assert_eq!(
        reject_reason_of_datagram(&mut new_datagram_opener_of_bob(), early, &datagram),
        None
    );
    assert_eq!(
        reject_reason_of_datagram(
            &mut new_datagram_opener_of_bob(),
            Timestamp::from_micros(early.as_micros() - 1),
            &datagram
        ),
        Some(RejectReason::Early)
    );
}

#[test]
fn datagram_of_removed_sender_cannot_be_replayed() {
    let mut opener = new_datagram_opener_of_bob();
    let old = seal_datagram_at(
        &mut DatagramSealer::new(&test_key(), Incarnation(1)),
        start_time(),
        b"old",
    );
    opener.open(start_time(), &old).unwrap();
    let seal = |sender, now| {
        seal_datagram_at(&mut DatagramSealer::new(&test_key(), Incarnation(sender)), now, b"new")
    };
    let then = secs_after_start(30);
    for sender in 2..=MAX_SENDERS as u64 {
        opener.open(then, &seal(sender, then)).unwrap();
    }
    assert_eq!(
        reject_reason_of_datagram(&mut opener, then, &seal(5_000, then)),
        Some(RejectReason::Crowded),
        "no sender is stale yet"
    );
    let later = Timestamp::from_micros(secs_after_start(62).as_micros() + 1);
    assert_eq!(reject_reason_of_datagram(&mut opener, later, &seal(5_000, later)), None);
    assert_eq!(opener.senders(), MAX_SENDERS, "the stale sender is removed");
    assert_eq!(reject_reason_of_datagram(&mut opener, later, &old), Some(RejectReason::Stale));
}

#[test]
fn clock_set_back_keeps_datagram_counters_unique() {
    let (mut sealer, mut opener) =
        (DatagramSealer::new(&test_key(), ALICE), new_datagram_opener_of_bob());
    let first = seal_datagram_at(&mut sealer, secs_after_start(10), b"hello");
    let second = seal_datagram_at(&mut sealer, start_time(), b"hello");
    assert_eq!(reject_reason_of_datagram(&mut opener, secs_after_start(10), &first), None);
    assert_eq!(reject_reason_of_datagram(&mut opener, secs_after_start(10), &second), None);
    assert_eq!(
        reject_reason_of_datagram(&mut opener, secs_after_start(10), &second),
        Some(RejectReason::Replayed)
    );
}

#[test]
fn nodes_communicate_again_after_clock_correction() {
    let (mut sealer, mut opener) =
        (DatagramSealer::new(&test_key(), ALICE), new_datagram_opener_of_bob());
    for _ in 0..100 {
        let datagram = seal_datagram_at(&mut sealer, secs_after_start(3_600), b"ahead");
        assert_eq!(
            reject_reason_of_datagram(&mut opener, secs_after_start(3_600), &datagram),
            None
        );
    }
    let datagram = seal_datagram_at(&mut sealer, start_time(), b"right");
    assert_eq!(reject_reason_of_datagram(&mut opener, start_time(), &datagram), None);
    assert_eq!(
        reject_reason_of_datagram(&mut opener, start_time(), &datagram),
        Some(RejectReason::Replayed)
    );
}

proptest! {
    #[test]
    fn datagram_with_flipped_bit_is_rejected(payload: Vec<u8>, bit: prop::sample::Index) {
        let mut datagram = seal_datagram_at_start(&payload);
        let bit = bit.index(datagram.len() * 8);
        datagram[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(new_datagram_opener_of_bob().open(start_time(), &datagram).is_err());
    }

    #[test]
    fn datagram_of_changed_length_is_rejected(payload: Vec<u8>, cut: prop::sample::Index, more in prop::collection::vec(any::<u8>(), 1..50)) {
        let datagram = seal_datagram_at_start(&payload);
        prop_assert!(new_datagram_opener_of_bob().open(start_time(), &datagram[..cut.index(datagram.len())]).is_err());
        prop_assert!(new_datagram_opener_of_bob().open(start_time(), &datagram[1..]).is_err());
        prop_assert!(new_datagram_opener_of_bob().open(start_time(), &[&datagram[..], &more].concat()).is_err());
    }

    #[test]
    fn arbitrary_datagram_is_rejected(bytes: Vec<u8>) {
        let mut opener = new_datagram_opener_of_bob();
        prop_assert!(opener.open(start_time(), &bytes).is_err());
        prop_assert!(opener.open(start_time(), &[&[VERSION], &bytes[..]].concat()).is_err());
        prop_assert_eq!(opener.senders(), 0);
    }

    #[test]
    fn reordered_and_repeated_datagrams_open_once(
        comes in prop::collection::vec(0..200_usize, 1..600),
        steps in prop::collection::vec(0..3_000_u64, 200),
    ) {
        let (mut sealer, mut now) = (DatagramSealer::new(&test_key(), ALICE), start_time());
        let all: Vec<_> = steps.into_iter().map(|step| {
            now = now.after(Duration::from_micros(step));
            seal_datagram_at(&mut sealer, now, b"hello")
        }).collect();
        let (mut opener, mut opened) = (new_datagram_opener_of_bob(), vec![0; all.len()]);
        for nth in comes {
            opened[nth] += usize::from(opener.open(now, &all[nth]).is_ok());
        }
        prop_assert!(opened.into_iter().all(|times| times <= 1));
    }
}
