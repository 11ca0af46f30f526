//! From settings to a running service: the store and the service on top of it, listeners, and reloads of the policy.

pub mod allocator;
mod ignored_input;
pub mod listen;
mod reload;
pub mod settings;
mod start;

use std::convert::Infallible;
use std::error::Error;
use std::future::pending;
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use slidegate_cluster::{Certificates, CredentialsError};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use self::ignored_input::warn_about_ignored_input;
use self::settings::Settings;
use self::start::start_service;
use crate::bounds::ClientBounds;
use crate::connections::bodies::{BodyBudget, MIN_BODY_BUDGET};
use crate::connections::{
    ConnectionThreads, Connections, LargeCallThread, ListenSocket, OpenFileDemand, Protocol,
};
use crate::decide::Service;
use crate::render::ResponseRenderer;
use crate::telemetry::clock_steps;
use crate::telemetry::log::LogQueue;
use crate::tls::{AppProtocol, ListenerTls};
use crate::wire::grpc::{GrpcProtocol, GrpcServices};
use crate::wire::http::{HttpProtocol, HttpService, ProxyTrust, admin};

/// The delay before idle HTTP/1.1 connections are closed when the server stops, so that their clients can send one more
/// request.
const IDLE_CONNECTION_CLOSE_DELAY: Duration = Duration::from_secs(1);

/// The minimum time that a cluster node gets to leave the cluster when it stops. In this time, the node replicates its
/// last charges and announces its departure. The minimum applies even if the requests in flight used the whole time of
/// `--shutdown-grace`. If a node stops without the announcement, the other nodes continue to require its
/// acknowledgements until every unit that it may have charged has left its window.
const MIN_CLUSTER_LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// The interval at which the log reports the denials that had no line of their own, because their rules had used up
/// their budgets of lines.
const UNLOGGED_DENIALS_INTERVAL: Duration = Duration::from_secs(10);

/// The maximum number of connections to the admin listener. This limit is separate from `--max-connections`, so that
/// health probes can connect even if clients use all connections of the other listeners.
const MAX_ADMIN_CONNECTIONS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(63);

/// Starts the listeners and the service, waits for a signal, and drains all connections.
pub async fn serve_until_signal(settings: Settings, log: &LogQueue) -> Result<(), Box<dyn Error>> {
    let mut stop = StopSignals::register_signal_handlers()?;
    let hangup = signal(SignalKind::hangup())?;
    let shutdown_grace = settings.shutdown_grace;
    let http = listen::bind(&settings.http, "--http (SLIDEGATE_HTTP)")?;
    let grpc = settings.grpc.map(|address| listen::bind_grpc(&address, "--grpc (SLIDEGATE_GRPC)"));
    let admin = settings.admin.map(|address| listen::bind(&address, "--admin (SLIDEGATE_ADMIN)"));
    let (grpc, admin) = (grpc.transpose()?, admin.transpose()?);
    listen::warn_about_short_accept_queues();
    let connection_sources = OpenFileDemand {
        client_listeners: 1 + u64::from(grpc.is_some()),
        max_other_connections: admin.as_ref().map_or(0, |_| MAX_ADMIN_CONNECTIONS.get() as u64),
    };
    let bounds = connection_sources
        .fit_bounds_to_open_files(settings.clients, settings.is_max_connections_given);
    let (rules, store) =
        (settings.service.policy.rules().len(), settings.service.store.to_string());
    let cluster_tls = settings.service.store.cluster_tls().cloned();
    let service = Arc::new(start_service(settings.service, log.clone()).await?);
    if let Some(admin) = admin {
        let address = admin.local_address()?;
        spawn_admin_listener(admin, service.clone(), bounds, &settings.admin_hosts);
        info!("admin listening on {address}");
    }
    clock_steps::start(service.health().background_tasks().clone());
    report_unlogged_denials(service.clone());
    if service.is_observe_only() {
        warn!("--observe is set: every rule only observes, and no request is denied");
    }
    reload::log_notes(&settings.policy_file.notes);
    warn_about_ignored_input(&settings.policy_file.source);
    reload::start(settings.policy_file, service.clone(), hangup)?;
    let renderer = ResponseRenderer::new(settings.headers, settings.retry_jitter);
    let tls = settings.tls;
    if let Some(tls) = &tls {
        tls.reload_on_change(service.health().background_tasks())?;
    }
    if let Some(cluster_tls) = cluster_tls {
        let node = service.clone();
        cluster_tls.reload_on_change(service.health().background_tasks(), move |certificates| {
            replace_cluster_certificates(&node, certificates)
        })?;
    }
    let tls_for = |protocol| tls.as_ref().and_then(|tls| tls.for_listener(protocol));
    let clients = ClientResources {
        bounds,
        bodies: service.bodies().clone(),
        large_calls: LargeCallThread::start(service.health().background_tasks())?,
    };
    let grpc = match grpc {
        Some(socket) => {
            let (tls, clients) = (tls_for(AppProtocol::Grpc), clients.clone());
            Some(new_grpc_listener(socket, service.clone(), renderer.clone(), tls, clients).await?)
        }
        None => None,
    };
    let proxy_trust = ProxyTrust::new(settings.trusted_proxies, settings.repeated_headers);
    let http_service =
        HttpService::new(service.clone(), renderer, proxy_trust, clients.large_calls);
    let protocol = HttpProtocol::new(http_service, bounds, clients.bodies);
    let threads = start_connection_threads("http", &service)?;
    let http_tls = tls_for(AppProtocol::Http);
    let scheme = if http_tls.is_some() { "https" } else { "http" };
    let http = ClientListener::new(http, Connections::new(protocol, threads, http_tls, bounds));
    if let Some(grpc) = &grpc {
        info!("gRPC listening on {}", grpc.local_address()?);
    }
    let cluster = service.store().cluster_node().and_then(|node| node.status());
    if let Some(address) = cluster.and_then(|status| status.address.clone()) {
        info!("cluster node reachable at {address}");
    }
    info!(rules, %store, "listening on {scheme}://{}", http.local_address()?);
    let signal = tokio::select! {
        never = http.accept_connections() => match never {},
        never = accept_connections_if_listening(grpc.as_ref()) => match never {},
        signal = stop.wait_for_signal() => signal,
    };
    service.health().drain();
    info!("{signal}: stopping, no new connections");
    let deadline = Instant::now() + shutdown_grace;
    let (http, grpc) = (http.stop_listening(), grpc.map(ClientListener::stop_listening));
    let drained = async {
        tokio::join!(drain_http_connections(http, shutdown_grace), drain_grpc_connections(grpc))
    };
    if tokio::time::timeout_at(deadline, drained).await.is_err() {
        warn!("closing connections that are still busy after --shutdown-grace {shutdown_grace:?}");
    }
    if let Some(node) = service.store().cluster_node() {
        node.leave(time_until_deadline(deadline).max(MIN_CLUSTER_LEAVE_TIMEOUT)).await;
    }
    if let Some(traces) = service.telemetry().tracer() {
        traces.flush(time_until_deadline(deadline)).await;
    }
    service.active_policy().log_unlogged_denials();
    info!("stopped");
    Ok(())
}

/// Starts a task that regularly logs, for each rule, the denials that had no line of their own, because the rule had
/// used up its budget of lines.
fn report_unlogged_denials(service: Arc<Service>) {
    let tasks = service.health().background_tasks().clone();
    let report = async move || loop {
        sleep(UNLOGGED_DENIALS_INTERVAL).await;
        service.active_policy().log_unlogged_denials();
    };
    tokio::spawn(tasks.keep_running("unlogged denials", report));
}

/// Makes a cluster node use new certificates for new connections to other nodes. Does nothing if the store is not a
/// cluster.
fn replace_cluster_certificates(
    service: &Service,
    certificates: &Certificates,
) -> Result<(), CredentialsError> {
    match service.store().cluster_node() {
        Some(node) => node.replace_certificates(certificates),
        None => Ok(()),
    }
}

/// Returns the time until the deadline, or zero if the deadline has passed.
fn time_until_deadline(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// The resources that the clients of the HTTP and gRPC listeners share, and their bounds.
#[derive(Clone)]
struct ClientResources {
    bounds: ClientBounds,
    bodies: BodyBudget,
    large_calls: LargeCallThread,
}

/// A client listener: its socket and its connections.
struct ClientListener<P> {
    socket: ListenSocket,
    connections: Connections<P>,
}

impl<P: Protocol> ClientListener<P> {
    fn new(socket: ListenSocket, connections: Connections<P>) -> Self {
        Self { socket, connections }
    }

    fn local_address(&self) -> io::Result<String> {
        self.socket.local_address()
    }

    async fn accept_connections(&self) -> Infallible {
        self.connections.accept_connections(&self.socket).await
    }

    /// Closes the listening socket and returns the open connections.
    fn stop_listening(self) -> Connections<P> {
        self.connections
    }
}

async fn new_grpc_listener(
    socket: ListenSocket,
    service: Arc<Service>,
    renderer: ResponseRenderer,
    tls: Option<ListenerTls>,
    clients: ClientResources,
) -> Result<ClientListener<GrpcProtocol>, Box<dyn Error>> {
    let ClientResources { bounds, bodies, large_calls } = clients;
    let threads = start_connection_threads("grpc", &service)?;
    let services = GrpcServices::new(service, renderer, large_calls).await?;
    let protocol = GrpcProtocol::new(services, bounds, bodies);
    Ok(ClientListener::new(socket, Connections::new(protocol, threads, tls, bounds)))
}

/// Starts one connection thread for each processor.
fn start_connection_threads(
    name: &'static str,
    service: &Service,
) -> io::Result<ConnectionThreads> {
    let count = thread::available_parallelism()?.get();
    ConnectionThreads::start(name, count, service.health().background_tasks())
}

/// Accepts the connections of a listener. If there is no listener, waits forever.
async fn accept_connections_if_listening<P: Protocol>(
    listener: Option<&ClientListener<P>>,
) -> Infallible {
    match listener {
        Some(listener) => listener.accept_connections().await,
        None => pending().await,
    }
}

/// Drains HTTP connections. A client may be sending a request when the server stops. So idle HTTP/1.1 connections stay
/// open for [`IDLE_CONNECTION_CLOSE_DELAY`], but at most for a quarter of `grace`.
async fn drain_http_connections(
    connections: Connections<HttpProtocol<HttpService>>,
    grace: Duration,
) {
    connections.drain(IDLE_CONNECTION_CLOSE_DELAY.min(grace / 4)).await;
}

/// Drains gRPC connections. Unlike the drain of HTTP/1.1 connections, this needs no delay: when an HTTP/2 connection
/// closes, the protocol reports to the client the calls that the server received.
async fn drain_grpc_connections(connections: Option<Connections<GrpcProtocol>>) {
    if let Some(connections) = connections {
        connections.drain(Duration::ZERO).await;
    }
}

/// Serves the admin listener until the process ends, so that `/readyz` responds even while the server drains. Idle
/// connections cannot delay health probes: each connection closes after its first response, and if the maximum number
/// of connections is open, a new connection closes the oldest one. `hosts` are the host names of the listener.
fn spawn_admin_listener(
    socket: ListenSocket,
    service: Arc<Service>,
    clients: ClientBounds,
    hosts: &[String],
) {
    let bounds = ClientBounds { max_connections: MAX_ADMIN_CONNECTIONS, ..clients };
    let tasks = service.health().background_tasks().clone();
    // The admin listener has its own body budget, so that the bodies of clients do not delay operators.
    let bodies = BodyBudget::new(MIN_BODY_BUDGET);
    let router = admin::router(service, hosts);
    let connections = Connections::new(
        HttpProtocol::new(router, bounds, bodies).without_keep_alive(),
        ConnectionThreads::Shared,
        None,
        bounds,
    )
    .with_eviction();
    let accept = async move || match connections.accept_connections(&socket).await {};
    tokio::spawn(tasks.keep_running("admin listener", accept));
}

/// The signals that stop the server: SIGTERM and SIGINT. They are registered before the server listens, so that no
/// signal is missed.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn register_signal_handlers() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn wait_for_signal(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
