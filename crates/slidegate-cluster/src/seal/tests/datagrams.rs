use std::time::Duration;

use proptest::prelude::*;
use slidegate::Timestamp;

use super::*;

const SKEW: Duration = Duration::from_secs(2);

fn start() -> Timestamp {
    Timestamp::from_secs(1_000_000)
}

fn seconds_on(seconds: u64) -> Timestamp {
    start().after(Duration::from_secs(seconds))
}

fn opener() -> DatagramOpener {
    DatagramOpener::new(&key(), BOB, SKEW)
}

fn seal_at(sealer: &mut DatagramSealer, now: Timestamp, payload: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    sealer.seal(now, payload, &mut sealed).unwrap();
    sealed
}

fn sealed(payload: &[u8]) -> Vec<u8> {
    seal_at(&mut DatagramSealer::new(&key(), ALICE), start(), payload)
}

fn refusal(opener: &mut DatagramOpener, now: Timestamp, datagram: &[u8]) -> Option<RejectReason> {
    opener.open(now, datagram).err()
}

#[test]
fn a_datagram_is_opened_and_says_who_sealed_it() {
    let datagram = sealed(b"hello");
    let opened = OpenedDatagram { from: ALICE, payload: b"hello" };
    assert_eq!(opener().open(start(), &datagram), Ok(opened));
    assert_eq!(datagram.len(), 5 + DATAGRAM_OVERHEAD);
}

#[test]
fn a_seal_does_not_hold_what_was_sealed_before() {
    let (mut sealer, mut sealed) = (DatagramSealer::new(&key(), ALICE), b"rest".to_vec());
    sealer.seal(start(), b"hello", &mut sealed).unwrap();
    assert_eq!(opener().open(start(), &sealed).unwrap().payload, b"hello");
}

#[test]
fn a_payload_that_fits_no_datagram_is_not_sealed() {
    let (mut sealer, mut sealed) = (DatagramSealer::new(&key(), ALICE), Vec::new());
    let longest = vec![7; MAX_DATAGRAM - DATAGRAM_OVERHEAD];
    assert_eq!(sealer.seal(start(), &longest, &mut sealed), Ok(()));
    assert_eq!(sealed.len(), MAX_DATAGRAM);
    assert_eq!(opener().open(start(), &sealed).unwrap().payload, longest);
    let longer = [&longest[..], &[7]].concat();
    assert_eq!(sealer.seal(start(), &longer, &mut sealed), Err(RejectReason::TooLong));
    assert_eq!(
        refusal(&mut opener(), start(), &vec![VERSION; MAX_DATAGRAM + 1]),
        Some(RejectReason::TooLong)
    );
}

#[test]
fn whoever_has_another_key_is_not_heard() {
    let datagram = seal_at(&mut DatagramSealer::new(&stranger(), ALICE), start(), b"hello");
    let mut opener = opener();
    assert_eq!(refusal(&mut opener, start(), &datagram), Some(RejectReason::WrongMac));
    assert_eq!(opener.senders(), 0, "strangers take no memory");
}

#[test]
fn another_version_is_not_heard() {
    let mut datagram = sealed(b"hello");
    datagram[0] += 1;
    assert_eq!(refusal(&mut opener(), start(), &datagram), Some(RejectReason::WrongVersion));
}

#[test]
fn ones_own_words_are_not_heard() {
    let datagram = seal_at(&mut DatagramSealer::new(&key(), BOB), start(), b"hello");
    assert_eq!(refusal(&mut opener(), start(), &datagram), Some(RejectReason::Reflected));
}

#[test]
fn a_datagram_is_opened_once() {
    let (datagram, mut opener) = (sealed(b"hello"), opener());
    assert_eq!(refusal(&mut opener, start(), &datagram), None);
    assert_eq!(refusal(&mut opener, start(), &datagram), Some(RejectReason::Replayed));
    assert_eq!(refusal(&mut opener, seconds_on(61), &datagram), Some(RejectReason::Replayed));
}

#[test]
fn late_datagrams_are_opened_but_no_later_than_many_others() {
    let mut sealer = DatagramSealer::new(&key(), ALICE);
    let all: Vec<_> = (0..100).map(|_| seal_at(&mut sealer, start(), b"hello")).collect();
    let mut opener = opener();
    for (late, datagram) in all[30..].iter().rev().enumerate() {
        assert_eq!(refusal(&mut opener, start(), datagram).is_some(), late > 64);
    }
    assert!(
        all.iter()
            .all(|datagram| refusal(&mut opener, start(), datagram) == Some(RejectReason::Replayed))
    );
}

#[test]
fn a_node_that_has_just_started_knows_an_old_datagram() {
    let datagram = sealed(b"hello");
    assert_eq!(refusal(&mut opener(), seconds_on(62), &datagram), None);
    assert_eq!(
        refusal(&mut opener(), Timestamp::from_micros(seconds_on(62).as_micros() + 1), &datagram),
        Some(RejectReason::Stale)
    );
    let early = Timestamp::from_micros(start().as_micros() - 62_000_000);
    assert_eq!(refusal(&mut opener(), early, &datagram), None);
    assert_eq!(
        refusal(&mut opener(), Timestamp::from_micros(early.as_micros() - 1), &datagram),
        Some(RejectReason::Early)
    );
}

#[test]
fn a_sender_that_is_forgotten_has_nothing_left_that_could_be_opened_again() {
    let mut opener = opener();
    let old = seal_at(&mut DatagramSealer::new(&key(), Incarnation(1)), start(), b"old");
    opener.open(start(), &old).unwrap();
    let seal =
        |sender, now| seal_at(&mut DatagramSealer::new(&key(), Incarnation(sender)), now, b"new");
    let then = seconds_on(30);
    for sender in 2..=MAX_SENDERS as u64 {
        opener.open(then, &seal(sender, then)).unwrap();
    }
    assert_eq!(
        refusal(&mut opener, then, &seal(5_000, then)),
        Some(RejectReason::Crowded),
        "none can be forgotten yet"
    );
    let later = Timestamp::from_micros(seconds_on(62).as_micros() + 1);
    assert_eq!(refusal(&mut opener, later, &seal(5_000, later)), None);
    assert_eq!(opener.senders(), MAX_SENDERS, "the old one is forgotten");
    assert_eq!(refusal(&mut opener, later, &old), Some(RejectReason::Stale));
}

#[test]
fn a_clock_that_is_put_back_does_not_make_datagrams_alike() {
    let (mut sealer, mut opener) = (DatagramSealer::new(&key(), ALICE), opener());
    let first = seal_at(&mut sealer, seconds_on(10), b"hello");
    let second = seal_at(&mut sealer, start(), b"hello");
    assert_eq!(refusal(&mut opener, seconds_on(10), &first), None);
    assert_eq!(refusal(&mut opener, seconds_on(10), &second), None);
    assert_eq!(refusal(&mut opener, seconds_on(10), &second), Some(RejectReason::Replayed));
}

#[test]
fn clocks_that_were_far_ahead_and_are_put_right_find_each_other_again() {
    let (mut sealer, mut opener) = (DatagramSealer::new(&key(), ALICE), opener());
    for _ in 0..100 {
        let datagram = seal_at(&mut sealer, seconds_on(3_600), b"ahead");
        assert_eq!(refusal(&mut opener, seconds_on(3_600), &datagram), None);
    }
    let datagram = seal_at(&mut sealer, start(), b"right");
    assert_eq!(refusal(&mut opener, start(), &datagram), None);
    assert_eq!(refusal(&mut opener, start(), &datagram), Some(RejectReason::Replayed));
}

proptest! {
    #[test]
    fn a_datagram_of_which_any_bit_is_flipped_is_refused(payload: Vec<u8>, bit: prop::sample::Index) {
        let mut datagram = sealed(&payload);
        let bit = bit.index(datagram.len() * 8);
        datagram[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(opener().open(start(), &datagram).is_err());
    }

    #[test]
    fn a_datagram_that_is_cut_or_lengthened_is_refused(payload: Vec<u8>, cut: prop::sample::Index, more in prop::collection::vec(any::<u8>(), 1..50)) {
        let datagram = sealed(&payload);
        prop_assert!(opener().open(start(), &datagram[..cut.index(datagram.len())]).is_err());
        prop_assert!(opener().open(start(), &datagram[1..]).is_err());
        prop_assert!(opener().open(start(), &[&datagram[..], &more].concat()).is_err());
    }

    #[test]
    fn any_bytes_are_refused(bytes: Vec<u8>) {
        let mut opener = opener();
        prop_assert!(opener.open(start(), &bytes).is_err());
        prop_assert!(opener.open(start(), &[&[VERSION], &bytes[..]].concat()).is_err());
        prop_assert_eq!(opener.senders(), 0);
    }

    #[test]
    fn in_any_order_and_however_often_each_is_opened_once_at_most(
        comes in prop::collection::vec(0..200_usize, 1..600),
        steps in prop::collection::vec(0..3_000_u64, 200),
    ) {
        let (mut sealer, mut now) = (DatagramSealer::new(&key(), ALICE), start());
        let all: Vec<_> = steps.into_iter().map(|step| {
            now = now.after(Duration::from_micros(step));
            seal_at(&mut sealer, now, b"hello")
        }).collect();
        let (mut opener, mut opened) = (opener(), vec![0; all.len()]);
        for nth in comes {
            opened[nth] += usize::from(opener.open(now, &all[nth]).is_ok());
        }
        prop_assert!(opened.into_iter().all(|times| times <= 1));
    }
}
