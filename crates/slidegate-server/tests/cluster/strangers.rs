//! Who has no key, or another one, is not heard, and counted.

use std::io::Write;
use std::net::{TcpStream, UdpSocket};

use crate::node::{Plan, address, agree_on, know_each_other, plans, rule, start, wait_until};

#[test]
fn a_server_with_another_key_stays_out_and_is_counted() {
    let plans = plans::<3>(&rule(50, 5));
    let nodes = start(&plans);
    let refused =
        || nodes[0].metric("slidegate_cluster_rejected_frames_total", r#"reason="wrong_mac""#);
    for (name, key) in [("other", "a key that only strangers know"), ("none", "")] {
        let (name, listen, before) = (name.to_owned(), address(), refused());
        let stranger = Plan { name, listen, key, ..plans[0].clone() }.start();
        wait_until("it is refused", refused, |now| *now > before);
        assert_eq!(stranger.others("alive"), [""; 0]);
        assert!(stranger.allows("default", 60) <= 50, "it counts by itself");
    }
    know_each_other(&nodes.each_ref());
    agree_on(&nodes.each_ref(), "default", 50);
}

#[test]
fn noise_is_counted_and_disturbs_nobody() {
    let plans = plans::<2>(&rule(50, 5));
    let nodes = start(&plans);
    let at = plans[0].listen;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let refused = || nodes[0].metric("slidegate_cluster_rejected_frames_total", "");
    let before = refused();
    for length in [0, 1, 50, 200, 1_400, 60_000] {
        socket.send_to(&vec![0xA5; length], at).unwrap();
        let mut stream = TcpStream::connect(at).unwrap();
        // It may be closed before all is written.
        let _ = stream.write_all(&vec![0x5A; length]);
    }
    wait_until("it is counted", refused, |now| *now >= before + 6.0);
    know_each_other(&nodes.each_ref());
    assert_eq!(nodes[0].allows("default", 20), 20);
    agree_on(&nodes.each_ref(), "default", 30);
}
