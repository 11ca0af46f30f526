//! Sealed datagrams.
//!
//! ```text
//! version  incarnation  counter  payload  MAC_BYTES over all before it
//!    1          8          8        n      32      bytes; numbers are big-endian
//! ```
//!
//! A sender's counter is its wall clock in microseconds, or one more than its last one if that is larger. So it tells
//! when a datagram was sealed, and no two are alike.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use ring::hmac;
use slidegate::Timestamp;

use super::{ClusterKey, MAC_BYTES, RejectReason, VERSION, key};
use crate::pn_counter::Incarnation;

/// Bytes before the payload.
const HEADER_BYTES: usize = 1 + 8 + 8;

/// Bytes that a seal adds to a payload.
pub const DATAGRAM_OVERHEAD: usize = HEADER_BYTES + MAC_BYTES;

/// Bytes of the longest datagram that UDP carries over IPv4.
pub const MAX_DATAGRAM: usize = 65_507;

/// So long after its sealing a datagram is opened, apart from how far clocks may be apart.
const DATAGRAM_LIFETIME: Duration = Duration::from_secs(60);

/// Senders whose counters are remembered. Only who has the key becomes one.
pub const MAX_SENDERS: usize = 1_024;

/// Counters that are remembered of each sender: a datagram may be so many late.
const REPLAY_WINDOW: usize = 64;

/// Seals the datagrams of one node.
#[derive(Debug)]
pub struct DatagramSealer {
    key: hmac::Key,
    incarnation: Incarnation,
    last: u64,
}

impl DatagramSealer {
    /// Seals as this incarnation. There may be only one of it: two would use the same counters.
    pub fn new(key: &ClusterKey, incarnation: Incarnation) -> Self {
        Self { key: key.datagrams().clone(), incarnation, last: 0 }
    }

    /// Puts the sealed payload into `sealed`, instead of what is in it. `now` is by the wall clock.
    ///
    /// # Errors
    /// [`RejectReason::TooLong`] for a payload that fits no datagram.
    pub fn seal(
        &mut self,
        now: Timestamp,
        payload: &[u8],
        sealed: &mut Vec<u8>,
    ) -> Result<(), RejectReason> {
        if payload.len() > MAX_DATAGRAM - DATAGRAM_OVERHEAD {
            return Err(RejectReason::TooLong);
        }
        self.last = self.next_counter(now);
        sealed.clear();
        sealed.push(VERSION);
        sealed.extend_from_slice(&self.incarnation.0.to_be_bytes());
        sealed.extend_from_slice(&self.last.to_be_bytes());
        sealed.extend_from_slice(payload);
        let mac = hmac::sign(&self.key, sealed);
        sealed.extend_from_slice(mac.as_ref());
        Ok(())
    }

    /// A clock that was put back does not bring counters back, unless it was put back so far that nobody whose clock
    /// is right has opened them.
    fn next_counter(&self, now: Timestamp) -> u64 {
        let now_us = now.as_micros();
        let ahead = self.last > now.after(DATAGRAM_LIFETIME * 2).as_micros();
        if ahead { now_us } else { now_us.max(self.last.saturating_add(1)) }
    }
}

/// A datagram whose seal is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedDatagram<'d> {
    /// Who has sealed it.
    pub from: Incarnation,
    /// What it holds.
    pub payload: &'d [u8],
}

/// Opens the datagrams that one node hears, each once.
///
/// It remembers the newest counters of each sender, until all that the sender has sealed so far would be stale. So
/// its memory is bounded, and forgets nothing that could be opened again.
#[derive(Debug)]
pub struct DatagramOpener {
    key: hmac::Key,
    local: Incarnation,
    tolerance: Duration,
    senders: HashMap<Incarnation, SenderWindow>,
}

impl DatagramOpener {
    /// Opens for this incarnation, whose clock may be so far from others'.
    pub fn new(key: &ClusterKey, local: Incarnation, max_clock_skew: Duration) -> Self {
        let tolerance = DATAGRAM_LIFETIME.saturating_add(max_clock_skew);
        Self { key: key.datagrams().clone(), local, tolerance, senders: HashMap::new() }
    }

    /// Opens a datagram. `now` is by the wall clock.
    ///
    /// # Errors
    /// Why it is not opened. Nothing of a datagram with a wrong MAC is remembered.
    pub fn open<'d>(
        &mut self,
        now: Timestamp,
        datagram: &'d [u8],
    ) -> Result<OpenedDatagram<'d>, RejectReason> {
        let (from, counter, payload) = self.verify(datagram)?;
        if from == self.local {
            return Err(RejectReason::Reflected);
        }
        self.check_age(now, counter)?;
        self.seen(now, from)?.accept(counter)?;
        Ok(OpenedDatagram { from, payload })
    }

    fn verify<'d>(&self, datagram: &'d [u8]) -> Result<(Incarnation, u64, &'d [u8]), RejectReason> {
        if datagram.len() > MAX_DATAGRAM {
            return Err(RejectReason::TooLong);
        }
        if *datagram.first().ok_or(RejectReason::Truncated)? != VERSION {
            return Err(RejectReason::WrongVersion);
        }
        let (sealed, mac) =
            datagram.split_last_chunk::<MAC_BYTES>().ok_or(RejectReason::Truncated)?;
        let (head, payload) =
            sealed.split_first_chunk::<HEADER_BYTES>().ok_or(RejectReason::Truncated)?;
        key::verify(&self.key, sealed, mac)?;
        let [_, numbers @ ..] = head;
        let (incarnation, counter) = numbers.split_at(8);
        Ok((Incarnation(key::read_be(incarnation)), key::read_be(counter), payload))
    }

    fn check_age(&self, now: Timestamp, counter: u64) -> Result<(), RejectReason> {
        if Timestamp::from_micros(counter).after(self.tolerance) < now {
            return Err(RejectReason::Stale);
        }
        if counter > now.after(self.tolerance).as_micros() {
            return Err(RejectReason::Early);
        }
        Ok(())
    }

    /// What is remembered of a sender. Of one that has sealed later than can be (the own clock was put back), nothing.
    fn seen(
        &mut self,
        now: Timestamp,
        from: Incarnation,
    ) -> Result<&mut SenderWindow, RejectReason> {
        if !self.senders.contains_key(&from) && self.senders.len() >= MAX_SENDERS {
            self.remove_stale_senders(now);
            if self.senders.len() >= MAX_SENDERS {
                return Err(RejectReason::Crowded);
            }
        }
        let end = now.after(self.tolerance).as_micros();
        let seen = self.senders.entry(from).or_default();
        if seen.newest() > end {
            *seen = SenderWindow::default();
        }
        Ok(seen)
    }

    /// Forgets whoever has not been heard for so long that all that it said is stale.
    fn remove_stale_senders(&mut self, now: Timestamp) {
        let tolerance = self.tolerance;
        self.senders
            .retain(|_, seen| Timestamp::from_micros(seen.newest()).after(tolerance) >= now);
    }

    /// Senders that are remembered.
    pub fn senders(&self) -> usize {
        self.senders.len()
    }
}

/// The newest counters of one sender.
#[derive(Debug, Default)]
struct SenderWindow {
    /// In order.
    newest: VecDeque<u64>,
    /// Nothing up to here is opened any more.
    floor: u64,
}

impl SenderWindow {
    fn newest(&self) -> u64 {
        self.newest.back().copied().unwrap_or_default()
    }

    fn accept(&mut self, counter: u64) -> Result<(), RejectReason> {
        if counter <= self.floor {
            return Err(RejectReason::Replayed);
        }
        let Err(index) = self.newest.binary_search(&counter) else {
            return Err(RejectReason::Replayed);
        };
        self.newest.insert(index, counter);
        if self.newest.len() > REPLAY_WINDOW
            && let Some(oldest) = self.newest.pop_front()
        {
            self.floor = oldest;
        }
        Ok(())
    }
}
