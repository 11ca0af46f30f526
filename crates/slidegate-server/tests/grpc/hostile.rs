//! Clients that send what they should not: each is told what is wrong, and the others are served.

use std::fs;
use std::time::Duration;

use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::client::{PATH, descriptor, request};
use crate::common::Server;
use crate::raw::{Raw, framed};

const POLICY: &str = "rules: [{ name: per-user, domain: api, per: [user], limits: [1000000/h] }]";

/// Far more than anything takes: a test should fail, not hang.
const PATIENCE: Duration = Duration::from_secs(30);

const INVALID_ARGUMENT: &str = "3";
const DEADLINE_EXCEEDED: &str = "4";
const OUT_OF_RANGE: &str = "11";
const UNIMPLEMENTED: &str = "12";
const INTERNAL: &str = "13";

/// What is sent where, and the status that says what is wrong.
fn hostile() -> Vec<(&'static str, &'static str, Vec<u8>, &'static str, &'static str)> {
    let good = request([descriptor(&[("user", "ann")])]).encode_to_vec();
    let many = request(vec![descriptor(&[("a", "b")]); 1_025]).encode_to_vec();
    let long = framed(&request([descriptor(&[("a", &"x".repeat(1 << 20))])]).encode_to_vec());
    let mut compressed = framed(&good);
    compressed[0] = 1;
    let mut no_flag = framed(&good);
    no_flag[0] = 7;
    vec![
        (
            "1,025 descriptors",
            PATH,
            framed(&many),
            INVALID_ARGUMENT,
            "1025 descriptors: at most 1024",
        ),
        ("over 1 MiB", PATH, long, OUT_OF_RANGE, "too large"),
        (
            "no descriptors",
            PATH,
            framed(&request([]).encode_to_vec()),
            INVALID_ARGUMENT,
            "no descriptors",
        ),
        ("nothing said", PATH, framed(&[]), INVALID_ARGUMENT, "no descriptors"),
        ("garbage", PATH, framed(&[0xff; 100]), INVALID_ARGUMENT, "decode"),
        ("truncated message", PATH, framed(&good[..good.len() - 1]), INVALID_ARGUMENT, "decode"),
        ("truncated frame", PATH, framed(&good)[..9].to_vec(), INTERNAL, "EOF"),
        ("truncated length", PATH, vec![0, 0], INTERNAL, "EOF"),
        ("empty body", PATH, vec![], INTERNAL, "issing"),
        ("compressed", PATH, compressed, INTERNAL, "ompress"),
        ("no such flag", PATH, no_flag, INTERNAL, "ompress"),
        ("a length beyond all", PATH, vec![0, 0xff, 0xff, 0xff, 0xff], OUT_OF_RANGE, "too large"),
        ("other path", "/", framed(&good), UNIMPLEMENTED, "no path"),
        ("other service", "/some.Service/Do", framed(&good), UNIMPLEMENTED, "some.Service"),
        (
            "other method",
            "/envoy.service.ratelimit.v3.RateLimitService/Reset",
            framed(&good),
            UNIMPLEMENTED,
            "no method `Reset`",
        ),
    ]
}

fn resident_kb(server: &Server) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", server.process_id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn what_is_hostile_is_told_so_and_memory_stays_as_it_is() {
    let server = Server::start_with_grpc(POLICY, &[]);
    let calls = hostile();
    let round = async || {
        let client = Raw::connect(server.grpc()).await;
        for (name, path, body, code, message) in &calls {
            let ended = client.call(path, body.clone()).await;
            assert_eq!(ended.code, *code, "{name}: {ended:?}");
            let told = ended.message.replace("%20", " ").replace("%60", "`");
            assert!(told.contains(message), "{name}: {ended:?}");
        }
        let answer = client.ask(&request([descriptor(&[("user", "ann")])])).await;
        assert_eq!(answer.overall_code, 1);
    };
    for _ in 0..20 {
        round().await;
    }
    let before = resident_kb(&server);
    for _ in 0..200 {
        round().await;
    }
    let grown = resident_kb(&server).saturating_sub(before);
    assert!(grown < 8 * 1024, "after {} hostile calls: {grown} kB more", 200 * calls.len());
}

#[tokio::test]
async fn what_is_no_http_2_is_let_go_and_the_others_are_served() {
    let server = Server::start_with_grpc(POLICY, &["--client-timeout", "1"]);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let frames: [&[u8]; 6] = [
        b"",
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        &preface[..10],
        // A frame that is longer than allowed, one of settings on a stream, a header that is none.
        &[preface, &[0xff; 64][..]].concat(),
        &[preface, &[0, 0, 0, 4, 0, 0, 0, 0, 1][..]].concat(),
        &[preface, &[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 1, 5, 0, 0, 0, 1, 0xff][..]].concat(),
    ];
    for sent in frames {
        let mut client = TcpStream::connect(server.grpc()).await.unwrap();
        client.write_all(sent).await.unwrap();
        let mut told = Vec::new();
        // A reset is an end, too.
        let _ = timeout(PATIENCE, client.read_to_end(&mut told)).await.expect("it stays");
    }
    let client = Raw::connect(server.grpc()).await;
    client.ask(&request([descriptor(&[("user", "ann")])])).await;
}

#[tokio::test]
async fn a_call_that_does_not_come_whole_ends_in_time_and_the_connection_goes_on() {
    let server = Server::start_with_grpc(POLICY, &["--client-timeout", "1"]);
    let client = Raw::connect(server.grpc()).await;
    let silent = client.begin(PATH).await.unwrap();
    let mut slow = client.begin(PATH).await.unwrap();
    slow.body.send_data(vec![0, 0].into(), false).unwrap();
    for call in [silent, slow] {
        let ended = timeout(PATIENCE, call.end()).await.unwrap().unwrap();
        assert_eq!(ended.code, DEADLINE_EXCEEDED, "{ended:?}");
    }
    client.ask(&request([descriptor(&[("user", "ann")])])).await;
}

#[tokio::test]
async fn an_idle_client_that_is_there_may_stay() {
    let server = Server::start_with_grpc(POLICY, &["--client-timeout", "1"]);
    let client = Raw::connect(server.grpc()).await;
    // Nothing happens that could be waited for: it is the time itself that must do no harm.
    sleep(Duration::from_millis(2_500)).await;
    client.ask(&request([descriptor(&[("user", "ann")])])).await;
}
