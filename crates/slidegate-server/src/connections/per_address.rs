//! Counts the open connections of each client address, so that one client cannot open all connections of a listener.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

/// Number of bits of an IPv6 address that do not distinguish clients: one client usually has a whole /64 network.
const IPV6_HOST_BITS: u32 = 64;

/// The numbers of open connections of all client addresses, each at most `max_per_address`.
#[derive(Debug)]
pub struct ConnectionsPerAddress {
    max_per_address: usize,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// One connection of an address. It counts until it is dropped.
#[derive(Debug)]
pub struct AddressSlot {
    address: IpAddr,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl ConnectionsPerAddress {
    /// Creates an empty list. Each address may have at most `max_per_address` connections.
    pub fn new(max_per_address: usize) -> Self {
        Self { max_per_address, open: Arc::default() }
    }

    /// Counts a connection of an address. Returns `None` if the address has the maximum number of connections.
    pub fn try_occupy(&self, address: IpAddr) -> Option<AddressSlot> {
        let address = client_network(address);
        let mut counts = self.open.lock();
        let count = counts.entry(address).or_default();
        if *count >= self.max_per_address {
            return None;
        }
        *count += 1;
        Some(AddressSlot { address, open: self.open.clone() })
    }
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        let mut counts = self.open.lock();
        let Some(count) = counts.get_mut(&self.address) else { return };
        *count -= 1;
        if *count == 0 {
            counts.remove(&self.address);
        }
    }
}

/// Returns the address as which a client counts: an IPv4 address, or the first address of an IPv6 network.
fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let network = address.to_bits() >> IPV6_HOST_BITS << IPV6_HOST_BITS;
            Ipv6Addr::from_bits(network).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_counted_per_network() {
        let connections = ConnectionsPerAddress::new(2);
        let [one, same_network, other] =
            ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"].map(|text| text.parse().unwrap());
        let first = connections.try_occupy(one).unwrap();
        let _second = connections.try_occupy(same_network).unwrap();
        assert!(connections.try_occupy(one).is_none());
        let _other = connections.try_occupy(other).unwrap();
        drop(first);
        assert!(connections.try_occupy(one).is_some());
    }

    #[test]
    fn closed_connections_leave_no_entry() {
        let connections = ConnectionsPerAddress::new(1);
        let [mapped, plain] = ["::ffff:192.0.2.7", "192.0.2.7"].map(|text| text.parse().unwrap());
        let slot = connections.try_occupy(mapped).unwrap();
        assert!(connections.try_occupy(plain).is_none());
        drop(slot);
        assert!(connections.open.lock().is_empty());
    }
}
