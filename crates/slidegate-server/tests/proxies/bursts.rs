//! Tests of bursts: HTTP/2 clients that send hundreds of requests at once. Most proxies let a request pass if its check
//! fails, so a server that refuses connections or calls in a burst has no limit.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::Request;
use futures_util::future::join_all;
use h2::client::{Builder, ResponseFuture};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::common::certificates::{CertAuthority, CertFiles, connect_with_tls, path_str};
use crate::common::project_path;
use crate::common::{Server, TempFile};
use crate::proxies::envoy::start_envoy;
use crate::proxies::launch::{Backends, start_nginx};
use crate::proxies::process::Proxy;
use crate::proxies::upstream::Upstream;
use crate::redis_server::wait_until;

/// Maximum wait for all responses of a burst. Much longer than any test needs, so that a broken test fails instead of
/// hanging.
const BURST_TIMEOUT: Duration = Duration::from_secs(120);

/// A burst of requests from one client.
#[derive(Clone, Copy)]
struct Burst {
    /// Number of HTTP/2 connections, which are opened at once.
    connections: usize,
    /// Number of requests that are sent at once on each connection.
    streams: usize,
}

/// The number of responses with each status. `None` counts streams that ended without a response.
type StatusCounts = BTreeMap<Option<u16>, usize>;

impl Burst {
    /// Sends the requests, over TLS if there is a certificate authority, and returns the statuses of the responses.
    async fn send(self, address: SocketAddr, authority: Option<&CertAuthority>) -> StatusCounts {
        let connections = (0..self.connections).map(async |_| match authority {
            Some(authority) => {
                let io = connect_with_tls(address, authority, None, b"h2").await.unwrap();
                send_at_once(io, self.streams).await
            }
            None => send_at_once(TcpStream::connect(address).await.unwrap(), self.streams).await,
        });
        let statuses = tokio::time::timeout(BURST_TIMEOUT, join_all(connections)).await.unwrap();
        let mut counts = StatusCounts::new();
        for status in statuses.into_iter().flatten() {
            *counts.entry(status).or_default() += 1;
        }
        counts
    }

    /// Returns the status counts of a burst that is denied completely.
    fn denied(self) -> StatusCounts {
        StatusCounts::from([(Some(429), self.connections * self.streams)])
    }
}

/// Sends this number of requests on one connection, without waiting for a response between them. Returns the statuses.
async fn send_at_once(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    requests: usize,
) -> Vec<Option<u16>> {
    let mut builder = Builder::new();
    let (client, connection) =
        builder.initial_max_send_streams(requests).handshake::<_, Bytes>(io).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request = || Request::get("http://shop.example/").body(()).unwrap();
    let responses: Vec<_> =
        (0..requests).map(|_| client.send_request(request(), true).unwrap().0).collect();
    let statuses = join_all(responses.into_iter().map(status_of_complete_response)).await;
    connection.abort();
    statuses
}

/// Waits until a response is complete, because Envoy closes connections on which many responses are cancelled. Returns
/// the status of the response, or `None` if the stream ends earlier.
async fn status_of_complete_response(response: ResponseFuture) -> Option<u16> {
    let (head, mut body) = response.await.ok()?.into_parts();
    while let Some(data) = body.data().await {
        body.flow_control().release_capacity(data.ok()?.len()).ok()?;
    }
    Some(head.status.as_u16())
}

/// Envoy with its configuration file in `deploy/`, and slidegate with a limit of five requests per address.
struct EnvoySetup {
    envoy: Proxy,
    slidegate: Option<Server>,
    policy: String,
    tls: Option<(CertAuthority, CertFiles)>,
    runtime: Runtime,
}

impl EnvoySetup {
    /// Starts the servers. Replaces the first text of each pair in `replacements` with the second in the configuration
    /// file. With `tls`, clients call Envoy, and Envoy calls slidegate, over TLS.
    fn start(replacements: &[(&str, &str)], tls: bool) -> Self {
        let policy = fs::read_to_string(project_path("deploy/envoy/policy.yaml")).unwrap();
        assert!(policy.contains("limits: [20/s]"));
        let policy = policy.replace("limits: [20/s]", "limits: [5/h]");
        let tls = tls.then(|| {
            let authority = CertAuthority::new();
            let files = CertFiles::new(&authority.issue_certificate());
            (authority, files)
        });
        let slidegate = start_slidegate(&policy, "127.0.0.1:0", tls.as_ref());
        let service = Upstream::start().address();
        let ca =
            tls.as_ref().map(|(authority, _)| TempFile::new(".pem", authority.certificate_pem()));
        let mut edits: Vec<(String, String)> =
            replacements.iter().map(|(from, to)| ((*from).into(), (*to).into())).collect();
        // Longer, because other tests compete for the cores. A refused call fails at once.
        for (timeout, longer) in
            [("timeout: 0.25s", "timeout: 60s"), ("timeout: 10s", "timeout: 60s")]
        {
            edits.push((timeout.into(), longer.into()));
        }
        if let (Some((_, files)), Some(ca)) = (&tls, &ca) {
            edits.extend(tls_edits(files, path_str(ca.path())));
        }
        let edits: Vec<_> = edits.iter().map(|(from, to)| (&**from, &**to)).collect();
        let file = project_path("deploy/envoy/envoy.yaml");
        let envoy = start_envoy(&file, slidegate.grpc_address(), service, &edits);
        let runtime = Runtime::new().unwrap();
        Self { envoy, slidegate: Some(slidegate), policy, tls, runtime }
    }

    fn send(&self, burst: Burst) -> StatusCounts {
        let authority = self.tls.as_ref().map(|(authority, _)| authority);
        self.runtime.block_on(burst.send(self.envoy.address, authority))
    }

    /// Restarts slidegate on the same address, so that Envoy must open new connections.
    fn restart_slidegate(&mut self) {
        let address = self.slidegate.take().unwrap().grpc_address().to_string();
        self.slidegate = Some(start_slidegate(&self.policy, &address, self.tls.as_ref()));
    }

    /// Sends four bursts after the limit is used up, and one after a restart of slidegate, when the counters are at 0
    /// again. Asserts that no request above the limit passes.
    fn assert_bursts_stay_within_limit(mut self) {
        const BURST: Burst = Burst { connections: 4, streams: 900 };
        let allowed = self.send(Burst { connections: 1, streams: 5 });
        assert_eq!(allowed, StatusCounts::from([(Some(200), 5)]));
        let mut rounds = StatusCounts::new();
        for _ in 0..4 {
            for (status, count) in self.send(BURST) {
                *rounds.entry(status).or_default() += count;
            }
        }
        self.restart_slidegate();
        let restarted = self.send(BURST);
        let expected = [
            StatusCounts::from([(Some(429), 4 * 4 * 900)]),
            StatusCounts::from([(Some(200), 5), (Some(429), 4 * 900 - 5)]),
        ];
        assert_eq!([rounds, restarted], expected);
    }
}

fn start_slidegate(policy: &str, grpc: &str, tls: Option<&(CertAuthority, CertFiles)>) -> Server {
    let mut flags = vec!["--grpc", grpc];
    flags.extend(tls.iter().flat_map(|(_, files)| files.tls_flags()));
    Server::start_with(policy, &flags)
}

/// Returns the changes to Envoy's configuration for TLS on its listener and in its cluster `slidegate`. `ca` is the
/// path of the file with the certificate authority of slidegate.
fn tls_edits(files: &CertFiles, ca: &str) -> [(String, String); 2] {
    const TLS: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3";
    let (cert, key) = (path_str(files.cert.path()), path_str(files.key.path()));
    let certificates = format!(
        "[{{ certificate_chain: {{ filename: {cert} }}, private_key: {{ filename: {key} }} }}]"
    );
    let listener = format!(
        "    - transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          \"@type\": {TLS}.DownstreamTlsContext
          common_tls_context: {{ alpn_protocols: [h2], tls_certificates: {certificates} }}
      filters:
"
    );
    let cluster = format!(
        "    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        \"@type\": {TLS}.UpstreamTlsContext
        sni: localhost
        common_tls_context: {{ validation_context: {{ trusted_ca: {{ filename: {ca} }} }} }}
    load_assignment:
      cluster_name: slidegate
"
    );
    [
        ("    - filters:\n".into(), listener),
        ("    load_assignment:\n      cluster_name: slidegate\n".into(), cluster),
    ]
}

#[test]
fn deployed_envoy_config_limits_bursts() {
    EnvoySetup::start(&[], false).assert_bursts_stay_within_limit();
}

#[test]
fn deployed_envoy_config_limits_bursts_over_tls() {
    EnvoySetup::start(&[], true).assert_bursts_stay_within_limit();
}

/// Without a number of its own, Envoy opens as many streams as it is allowed to, before it has read the number of
/// slidegate. The default of Envoy was unlimited before 1.36.
#[test]
fn envoy_with_unlimited_streams_limits_bursts() {
    let unlimited = [("max_concurrent_streams: 100", "max_concurrent_streams: 2147483647")];
    EnvoySetup::start(&unlimited, false).assert_bursts_stay_within_limit();
}

/// Returns the number of connections in the accept queue of a listener.
fn pending_connections(listener: SocketAddr) -> usize {
    let SocketAddr::V4(address) = listener else { panic!("{listener} is not an IPv4 address") };
    let ip = u32::from_ne_bytes(address.ip().octets());
    let local = format!("{ip:08X}:{:04X}", address.port());
    let sockets = fs::read_to_string("/proc/net/tcp").unwrap();
    let mut lines = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // State 0A is a listener, whose receive queue contains connections.
    let listener = lines.find(|fields| fields[1] == local && fields[3] == "0A").unwrap();
    let (_, received) = listener[4].split_once(':').unwrap();
    usize::from_str_radix(received, 16).unwrap()
}

/// slidegate accepts no connection while nginx opens hundreds of them: they must wait in the accept queue. If the queue
/// is full, nginx cannot connect, and lets requests pass.
#[test]
fn nginx_bursts_wait_in_accept_queue() {
    const BURST: Burst = Burst { connections: 6, streams: 120 };
    let policy = "rules: [{ name: address, per: [ip], limits: [5/h] }]";
    let (slidegate, upstream) = (Server::start(policy), Upstream::start());
    const EDITS: &[(&str, &str)] =
        &[("listen 80;", "listen 80 http2;"), ("proxy_read_timeout 1s", "proxy_read_timeout 30s")];
    let backends =
        Backends { slidegate: slidegate.address(), service: upstream.address(), edits: EDITS };
    let nginx = start_nginx(&backends);
    let runtime = Runtime::new().unwrap();
    let allowed = runtime.block_on(Burst { connections: 1, streams: 5 }.send(nginx.address, None));
    assert_eq!(allowed, StatusCounts::from([(Some(200), 5)]));
    for _ in 0..12 {
        slidegate.pause();
        let responses = runtime.spawn(BURST.send(nginx.address, None));
        // nginx has up to 64 idle connections.
        wait_until("nginx has connected", || {
            pending_connections(slidegate.address()) >= BURST.connections * BURST.streams - 64
        });
        slidegate.resume();
        assert_eq!(runtime.block_on(responses).unwrap(), BURST.denied());
    }
    assert_eq!(upstream.request_count(), 5);
}
