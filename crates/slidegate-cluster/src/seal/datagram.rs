//! Sealed (authenticated) datagrams: each has a header and a message authentication code (MAC).
//!
//! ```text
//! version  incarnation  counter  payload  MAC of all preceding bytes
//!    1          8          8        n      32      bytes; numbers are big-endian
//! ```
//!
//! The counter is the sender's wall clock in microseconds, or the previous counter plus one if that is larger. The
//! counter is thus unique per sender, and also serves as the timestamp of the datagram.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use ring::hmac;
use slidegate::Timestamp;

use super::{ClusterKey, MAC_BYTES, RejectReason, VERSION, key};
use crate::pn_counter::Incarnation;

/// Size of the header before the payload of a datagram, in bytes.
const DATAGRAM_HEADER_BYTES: usize = 1 + 8 + 8;

/// Number of bytes that sealing adds to the payload of a datagram: header and MAC.
pub const DATAGRAM_OVERHEAD: usize = DATAGRAM_HEADER_BYTES + MAC_BYTES;

/// Size of the longest datagram over IPv4, in bytes.
pub const MAX_DATAGRAM: usize = 65_507;

/// Time for which a datagram is accepted after it was sealed. The maximum clock skew is added to this time.
const DATAGRAM_LIFETIME: Duration = Duration::from_secs(60);

/// Maximum number of senders whose counters are remembered. Only senders with the key of the cluster are remembered.
pub const MAX_SENDERS: usize = 1_024;

/// Number of counters that are remembered per sender. A datagram that arrives after this number of newer ones is
/// rejected.
const MAX_STORED_COUNTERS_PER_SENDER: usize = 64;

/// A sealer for the datagrams that one node sends. It adds a header and a MAC to each datagram.
#[derive(Debug)]
pub struct DatagramSealer {
    key: hmac::Key,
    incarnation: Incarnation,
    last_counter: u64,
}

impl DatagramSealer {
    /// Creates a sealer for an incarnation. Each incarnation must have only one sealer, since two sealers would use the
    /// same counters.
    pub fn new(key: &ClusterKey, incarnation: Incarnation) -> Self {
        Self { key: key.datagram_key().clone(), incarnation, last_counter: 0 }
    }

    /// Replaces the content of `sealed` with the sealed payload. `now` is the wall clock time.
    ///
    /// # Errors
    /// Returns [`RejectReason::TooLong`] if the payload does not fit into a datagram.
    pub fn seal(
        &mut self,
        now: Timestamp,
        payload: &[u8],
        sealed: &mut Vec<u8>,
    ) -> Result<(), RejectReason> {
        if payload.len() > MAX_DATAGRAM - DATAGRAM_OVERHEAD {
            return Err(RejectReason::TooLong);
        }
        self.last_counter = self.next_datagram_counter(now);
        sealed.clear();
        sealed.push(VERSION);
        sealed.extend_from_slice(&self.incarnation.0.to_be_bytes());
        sealed.extend_from_slice(&self.last_counter.to_be_bytes());
        sealed.extend_from_slice(payload);
        let mac = hmac::sign(&self.key, sealed);
        sealed.extend_from_slice(mac.as_ref());
        Ok(())
    }

    /// Returns the counter of the next datagram. If the clock was set back a little, the counter still increases. If
    /// the clock was set back by more than two datagram lifetimes, the counter restarts from the clock: the previous
    /// counters were so far in the future that no node with a correct clock has accepted them.
    fn next_datagram_counter(&self, now: Timestamp) -> u64 {
        let now_us = now.as_micros();
        let is_far_ahead = self.last_counter > now.after(DATAGRAM_LIFETIME * 2).as_micros();
        if is_far_ahead { now_us } else { now_us.max(self.last_counter.saturating_add(1)) }
    }
}

/// The sender and payload of a received datagram whose MAC is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedDatagram<'d> {
    /// The incarnation of the sender.
    pub from: Incarnation,
    /// The content of the datagram.
    pub payload: &'d [u8],
}

/// An opener for the datagrams that one node receives. It verifies each datagram, and accepts each one only once.
///
/// The opener remembers the latest counters of each sender until all earlier datagrams of that sender are stale. Its
/// memory is thus bounded, and an entry that was removed cannot enable a replay.
#[derive(Debug)]
pub struct DatagramOpener {
    key: hmac::Key,
    local: Incarnation,
    tolerance: Duration,
    senders: HashMap<Incarnation, AcceptedCountersOfSender>,
}

impl DatagramOpener {
    /// Creates an opener for the node with incarnation `local`. `max_clock_skew` is the maximum difference between the
    /// clocks of two nodes.
    pub fn new(key: &ClusterKey, local: Incarnation, max_clock_skew: Duration) -> Self {
        let tolerance = DATAGRAM_LIFETIME.saturating_add(max_clock_skew);
        Self { key: key.datagram_key().clone(), local, tolerance, senders: HashMap::new() }
    }

    /// Verifies a datagram, and returns its sender and payload. `now` is the wall clock time.
    ///
    /// # Errors
    /// Returns the reason for the rejection of the datagram. A datagram with an invalid MAC does not change the opener.
    pub fn open<'d>(
        &mut self,
        now: Timestamp,
        datagram: &'d [u8],
    ) -> Result<OpenedDatagram<'d>, RejectReason> {
        let (from, counter, payload) = self.verify_datagram(datagram)?;
        if from == self.local {
            return Err(RejectReason::Reflected);
        }
        self.check_datagram_age(now, counter)?;
        self.get_or_add_counters_of_sender(now, from)?.check_and_store_counter(counter)?;
        Ok(OpenedDatagram { from, payload })
    }

    fn verify_datagram<'d>(
        &self,
        datagram: &'d [u8],
    ) -> Result<(Incarnation, u64, &'d [u8]), RejectReason> {
        if datagram.len() > MAX_DATAGRAM {
            return Err(RejectReason::TooLong);
        }
        if *datagram.first().ok_or(RejectReason::Truncated)? != VERSION {
            return Err(RejectReason::WrongVersion);
        }
        let (sealed, mac) =
            datagram.split_last_chunk::<MAC_BYTES>().ok_or(RejectReason::Truncated)?;
        let (header, payload) =
            sealed.split_first_chunk::<DATAGRAM_HEADER_BYTES>().ok_or(RejectReason::Truncated)?;
        key::verify_mac(&self.key, sealed, mac)?;
        let [_, numbers @ ..] = header;
        let (incarnation, counter) = numbers.split_at(8);
        Ok((
            Incarnation(key::read_big_endian_u64(incarnation)),
            key::read_big_endian_u64(counter),
            payload,
        ))
    }

    fn check_datagram_age(&self, now: Timestamp, counter: u64) -> Result<(), RejectReason> {
        if Timestamp::from_micros(counter).after(self.tolerance) < now {
            return Err(RejectReason::Stale);
        }
        if counter > now.after(self.tolerance).as_micros() {
            return Err(RejectReason::Early);
        }
        Ok(())
    }

    /// Returns the remembered counters of a sender. The counters are reset if they are too far in the future, which
    /// means that the local clock was set back.
    fn get_or_add_counters_of_sender(
        &mut self,
        now: Timestamp,
        from: Incarnation,
    ) -> Result<&mut AcceptedCountersOfSender, RejectReason> {
        if !self.senders.contains_key(&from) && self.senders.len() >= MAX_SENDERS {
            self.remove_stale_senders(now);
            if self.senders.len() >= MAX_SENDERS {
                return Err(RejectReason::Crowded);
            }
        }
        let latest_us = now.after(self.tolerance).as_micros();
        let sender_window = self.senders.entry(from).or_default();
        if sender_window.newest_counter() > latest_us {
            *sender_window = AcceptedCountersOfSender::default();
        }
        Ok(sender_window)
    }

    /// Removes the remembered counters of each sender whose previous datagrams would all be rejected as stale.
    fn remove_stale_senders(&mut self, now: Timestamp) {
        let tolerance = self.tolerance;
        self.senders.retain(|_, sender_window| {
            Timestamp::from_micros(sender_window.newest_counter()).after(tolerance) >= now
        });
    }

    /// Returns the number of remembered senders.
    pub fn senders(&self) -> usize {
        self.senders.len()
    }
}

/// The latest counters that were accepted from one sender.
#[derive(Debug, Default)]
struct AcceptedCountersOfSender {
    /// The newest accepted counters, in ascending order.
    newest: VecDeque<u64>,
    /// The largest counter that is no longer remembered. Counters up to this value are rejected.
    floor: u64,
}

impl AcceptedCountersOfSender {
    fn newest_counter(&self) -> u64 {
        self.newest.back().copied().unwrap_or_default()
    }

    fn check_and_store_counter(&mut self, counter: u64) -> Result<(), RejectReason> {
        if counter <= self.floor {
            return Err(RejectReason::Replayed);
        }
        let Err(index) = self.newest.binary_search(&counter) else {
            return Err(RejectReason::Replayed);
        };
        self.newest.insert(index, counter);
        if self.newest.len() > MAX_STORED_COUNTERS_PER_SENDER
            && let Some(oldest) = self.newest.pop_front()
        {
            self.floor = oldest;
        }
        Ok(())
    }
}
