//! Network relays, which forward the traffic between cluster nodes. A test can cut the link between two nodes to create
//! a partition.
//!
//! Each node advertises the address of a relay, so all traffic to the node passes through it. A cut link delivers
//! nothing, like an unplugged cable: TCP connections over the link stay open and wait.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use crate::cluster::node::{NodeConfig, unused_address};

/// Size of a read buffer in bytes.
const READ_BUFFER_BYTES: usize = 65_536;

/// A network of relays through which all traffic between nodes passes.
#[derive(Clone, Default)]
pub struct RelayNetwork(Arc<CurrentlyCutLinks>);

#[derive(Default)]
struct CurrentlyCutLinks {
    /// The links that are currently cut. Each link is given as the addresses of the two nodes that it connects.
    cut: Mutex<BTreeSet<[IpAddr; 2]>>,
    changed: Condvar,
}

/// The network link between two nodes, for traffic in both directions.
#[derive(Clone)]
struct RelayLink {
    state: Arc<CurrentlyCutLinks>,
    ends: [IpAddr; 2],
}

impl RelayNetwork {
    /// Creates a network with one relay for each node. Changes `configs` so that each node advertises the address of
    /// its relay, and uses the addresses of relays as seeds.
    pub fn with_relays_for(configs: &mut [NodeConfig]) -> Self {
        let network = Self::default();
        for config in &mut *configs {
            let relay = unused_address();
            network.start_relay(relay, config.listen);
            config.advertise = Some(relay);
        }
        let seeds =
            configs.iter().filter_map(|config| config.advertise.map(|relay| relay.to_string()));
        let seeds = seeds.collect::<Vec<_>>().join(",");
        configs.iter_mut().for_each(|config| config.seeds.clone_from(&seeds));
        network
    }

    /// Cuts all links between the nodes of `side` and the nodes of `other_side`.
    pub fn cut_links(&self, side: &[&NodeConfig], other_side: &[&NodeConfig]) {
        let mut cut = self.0.cut.lock().unwrap();
        for node in side {
            let pairs = other_side
                .iter()
                .map(|other| sorted_address_pair(node.listen.ip(), other.listen.ip()));
            cut.extend(pairs);
        }
    }

    /// Restores all links that were cut.
    pub fn restore_all_links(&self) {
        self.0.cut.lock().unwrap().clear();
        self.0.changed.notify_all();
    }

    fn link_between(&self, from: SocketAddr, to: SocketAddr) -> RelayLink {
        RelayLink { state: self.0.clone(), ends: sorted_address_pair(from.ip(), to.ip()) }
    }

    fn start_relay(&self, relay: SocketAddr, to: SocketAddr) {
        let (listener, network) = (TcpListener::bind(relay).unwrap(), self.clone());
        thread::spawn(move || {
            while let Ok((stream, from)) = listener.accept() {
                let link = network.link_between(from, to);
                thread::spawn(move || link.relay_connection(stream, to));
            }
        });
    }
}

impl RelayLink {
    /// Blocks the calling thread while the link is cut.
    fn wait_while_cut(&self) {
        let cut = self.state.cut.lock().unwrap();
        drop(self.state.changed.wait_while(cut, |cut| cut.contains(&self.ends)));
    }

    fn relay_connection(self, near: TcpStream, to: SocketAddr) {
        self.wait_while_cut();
        let Ok(far) = TcpStream::connect(to) else { return };
        for (from, to) in [(&near, &far), (&far, &near)] {
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            to.set_nodelay(true).unwrap();
            let link = self.clone();
            thread::spawn(move || link.copy_bytes(from, to));
        }
    }

    /// Copies bytes from the connection `from` to the connection `to` until either side closes. Pauses while the link
    /// is cut.
    fn copy_bytes(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = vec![0; READ_BUFFER_BYTES];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            self.wait_while_cut();
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        self.wait_while_cut();
        // Either side may have closed its connection already.
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}

/// Returns the two addresses in sorted order, so that swapped arguments produce the same pair.
fn sorted_address_pair(first: IpAddr, second: IpAddr) -> [IpAddr; 2] {
    [first.min(second), first.max(second)]
}
