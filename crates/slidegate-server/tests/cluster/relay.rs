//! Links that can be cut: what nodes say to each other goes through relays, each at the address that a node advertises.
//! A cut link is one that nothing comes out of, as with a cable: connections stay, and wait.

use std::collections::{BTreeSet, HashMap};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use crate::node::{Plan, address};

/// The largest datagram.
const DATAGRAM: usize = 65_536;

/// The links between nodes, which know each other by relays.
#[derive(Clone, Default)]
pub struct Network(Arc<Links>);

#[derive(Default)]
struct Links {
    /// Pairs that hear nothing of each other.
    cut: Mutex<BTreeSet<[IpAddr; 2]>>,
    changed: Condvar,
}

/// From one node to another, and back.
#[derive(Clone)]
struct Link {
    links: Arc<Links>,
    ends: [IpAddr; 2],
}

impl Network {
    /// Puts a relay before each of these nodes.
    pub fn between(plans: &mut [Plan]) -> Self {
        let network = Self::default();
        for plan in &mut *plans {
            let relay = address();
            network.relay_streams(relay, plan.listen);
            network.relay_datagrams(relay, plan.listen);
            plan.advertise = Some(relay);
        }
        let seeds = plans.iter().filter_map(|plan| plan.advertise.map(|relay| relay.to_string()));
        let seeds = seeds.collect::<Vec<_>>().join(",");
        plans.iter_mut().for_each(|plan| plan.seeds.clone_from(&seeds));
        network
    }

    /// Cuts these nodes from all others.
    pub fn cut(&self, part: &[&Plan], others: &[&Plan]) {
        let mut cut = self.0.cut.lock().unwrap();
        for one in part {
            cut.extend(others.iter().map(|other| ends(one.listen.ip(), other.listen.ip())));
        }
    }

    /// Mends every link.
    pub fn heal(&self) {
        self.0.cut.lock().unwrap().clear();
        self.0.changed.notify_all();
    }

    fn link(&self, from: SocketAddr, to: SocketAddr) -> Link {
        Link { links: self.0.clone(), ends: ends(from.ip(), to.ip()) }
    }

    fn relay_streams(&self, at: SocketAddr, to: SocketAddr) {
        let (listener, network) = (TcpListener::bind(at).unwrap(), self.clone());
        thread::spawn(move || {
            while let Ok((stream, from)) = listener.accept() {
                let link = network.link(from, to);
                thread::spawn(move || link.carry(stream, to));
            }
        });
    }

    fn relay_datagrams(&self, at: SocketAddr, to: SocketAddr) {
        let (socket, network) = (Arc::new(UdpSocket::bind(at).unwrap()), self.clone());
        thread::spawn(move || {
            let (mut onwards, mut datagram) = (HashMap::new(), vec![0; DATAGRAM]);
            while let Ok((bytes, from)) = socket.recv_from(&mut datagram) {
                let link = network.link(from, to);
                let onward = onwards.entry(from).or_insert_with(|| {
                    let onward = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
                    let (socket, onward_back, link) =
                        (socket.clone(), onward.clone(), link.clone());
                    thread::spawn(move || link.carry_back(&onward_back, &socket, from));
                    onward
                });
                if !link.is_cut() {
                    // Nobody listens, perhaps: it is lost.
                    let _ = onward.send_to(&datagram[..bytes], to);
                }
            }
        });
    }
}

impl Link {
    fn is_cut(&self) -> bool {
        self.links.cut.lock().unwrap().contains(&self.ends)
    }

    /// Waits as long as it is cut.
    fn wait(&self) {
        let cut = self.links.cut.lock().unwrap();
        drop(self.links.changed.wait_while(cut, |cut| cut.contains(&self.ends)));
    }

    fn carry(self, near: TcpStream, to: SocketAddr) {
        self.wait();
        let Ok(far) = TcpStream::connect(to) else { return };
        for (from, to) in [(&near, &far), (&far, &near)] {
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            to.set_nodelay(true).unwrap();
            let link = self.clone();
            thread::spawn(move || link.pump(from, to));
        }
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = vec![0; DATAGRAM];
        while let Ok(some @ 1..) = from.read(&mut bytes) {
            self.wait();
            if to.write_all(&bytes[..some]).is_err() {
                break;
            }
        }
        self.wait();
        // The other side may have gone before.
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }

    fn carry_back(&self, onward: &UdpSocket, socket: &UdpSocket, to: SocketAddr) {
        let mut datagram = vec![0; DATAGRAM];
        loop {
            // While nobody listens there, the system says so here.
            let Ok((bytes, _)) = onward.recv_from(&mut datagram) else { continue };
            if !self.is_cut() {
                let _ = socket.send_to(&datagram[..bytes], to);
            }
        }
    }
}

fn ends(one: IpAddr, other: IpAddr) -> [IpAddr; 2] {
    [one.min(other), one.max(other)]
}
