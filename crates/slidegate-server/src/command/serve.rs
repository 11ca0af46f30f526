//! `slidegate serve`: listens until it is told to stop, then lets what runs finish.

use std::convert::Infallible;
use std::error::Error;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::args::ServeArgs;
use crate::connections::{ConnectionThreads, Connections, Listeners, Protocol};
use crate::grpc::GrpcProtocol;
use crate::http::HttpProtocol;
use crate::service::Service;
use crate::settings::{ClientBounds, Settings};
use crate::tls::{AppProtocol, ListenerTls};
use crate::{grpc, http, log, reload, wire};

/// How long clients may ask once more on connections that they have, before idle ones are ended.
const LAST_QUESTIONS: Duration = Duration::from_secs(1);

/// What a node of a cluster has to say that it goes, and what it has counted last, even if requests took all the
/// time that there was: else the others wait for it until all that it may have counted has left its window.
const FAREWELL: Duration = Duration::from_secs(1);

/// Connections that the admin listener serves at once. `--max-connections` does not apply to it: clients delay no probe.
const ADMIN_CONNECTIONS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(63);

pub fn run(args: ServeArgs) -> Result<(), Box<dyn Error>> {
    let settings = Settings::read(args)?;
    log::init(settings.log)?;
    let runtime = runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(settings))?;
    // Connections that outlast the drain are cut, not waited for.
    runtime.shutdown_background();
    Ok(())
}

async fn serve(settings: Settings) -> Result<(), Box<dyn Error>> {
    let mut stop = StopSignal::register()?;
    let hangup = signal(SignalKind::hangup())?;
    let shutdown_grace = settings.shutdown_grace;
    let http = listen(settings.http, "--http").await?;
    let grpc = listen_if(settings.grpc, "--grpc").await?;
    let admin = listen_if(settings.admin, "--admin").await?;
    let listeners = Listeners {
        clients: 1 + u64::from(grpc.is_some()),
        others: admin.as_ref().map_or(0, |_| ADMIN_CONNECTIONS.get() as u64),
    };
    let clients = listeners.within_open_files(settings.clients);
    let (rules, store) =
        (settings.service.policy.rules().len(), settings.service.store.to_string());
    let service = Arc::new(wire::service(settings.service).await?);
    if let Some(admin) = admin {
        let address = admin.local_addr()?;
        serve_admin(admin, service.clone(), clients);
        info!("operators ask at http://{address}");
    }
    if service.is_observe_only() {
        warn!("denies nothing: by --observe every rule only watches");
    }
    reload::log_notes(&settings.policy_file.notes);
    reload::start(settings.policy_file, service.clone(), hangup)?;
    let renderer = http::ResponseRenderer::new(settings.headers, settings.retry_jitter);
    let tls = settings.tls;
    if let Some(tls) = &tls {
        tls.reload_on_change(signal(SignalKind::hangup())?)?;
    }
    let tls_for = |protocol| tls.as_ref().map(|tls| tls.for_listener(protocol));
    let grpc = match grpc {
        Some(listener) => Some(serve_grpc(
            listener,
            service.clone(),
            renderer,
            tls_for(AppProtocol::Grpc),
            clients,
        )?),
        None => None,
    };
    let proxy_trust = http::ProxyTrust::new(settings.trusted_proxies, settings.repeated_headers);
    let http_service =
        http::HttpService::new(service.clone(), renderer, proxy_trust, clients.client_timeout);
    let protocol = HttpProtocol::new(http_service, clients.client_timeout);
    let threads = threads("http")?;
    let http =
        Face::new(http, Connections::new(protocol, threads, tls_for(AppProtocol::Http), clients));
    if let Some(grpc) = &grpc {
        info!("gRPC listening on {}", grpc.address()?);
    }
    let scheme = if tls.is_some() { "https" } else { "http" };
    info!(rules, %store, "listening on {scheme}://{}", http.address()?);
    let signal = tokio::select! {
        never = http.take() => match never {},
        never = take_if(grpc.as_ref()) => match never {},
        signal = stop.received() => signal,
    };
    service.health().drain();
    info!("{signal}: stopping, no new connections");
    let deadline = Instant::now() + shutdown_grace;
    let (http, grpc) = (http.stop_listening(), grpc.map(Face::stop_listening));
    let drained = async { tokio::join!(drain_http(http, shutdown_grace), drain_grpc(grpc)) };
    if tokio::time::timeout_at(deadline, drained).await.is_err() {
        warn!("cutting connections that were still busy after {shutdown_grace:?}");
    }
    if let Some(node) = service.active_policy().store().node() {
        node.leave(remaining(deadline).max(FAREWELL)).await;
    }
    if let Some(tracer) = service.telemetry().tracer() {
        tracer.flush(remaining(deadline)).await;
    }
    info!("stopped");
    Ok(())
}

fn remaining(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// A face that listens.
struct Face<P> {
    listener: TcpListener,
    connections: Connections<P>,
}

impl<P: Protocol> Face<P> {
    fn new(listener: TcpListener, connections: Connections<P>) -> Self {
        Self { listener, connections }
    }

    fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    async fn take(&self) -> Infallible {
        self.connections.accept_all(&self.listener).await
    }

    fn stop_listening(self) -> Connections<P> {
        self.connections
    }
}

fn serve_grpc(
    listener: TcpListener,
    service: Arc<Service>,
    renderer: http::ResponseRenderer,
    tls: Option<ListenerTls>,
    clients: ClientBounds,
) -> Result<Face<GrpcProtocol>, Box<dyn Error>> {
    let services = grpc::GrpcServices::new(service, renderer, clients.client_timeout)?;
    let protocol = GrpcProtocol::new(services, clients.client_timeout);
    Ok(Face::new(listener, Connections::new(protocol, threads("grpc")?, tls, clients)))
}

/// As many as can run at once.
fn threads(name: &str) -> io::Result<ConnectionThreads> {
    ConnectionThreads::start(name, thread::available_parallelism()?.get())
}

async fn take_if<P: Protocol>(face: Option<&Face<P>>) -> Infallible {
    match face {
        Some(face) => face.take().await,
        None => pending().await,
    }
}

/// Over HTTP/1.1 a client may have sent a question that is not here yet: it is answered first.
async fn drain_http(connections: Connections<HttpProtocol<http::HttpService>>, grace: Duration) {
    connections.wait_until_closed(LAST_QUESTIONS.min(grace / 4)).await;
    connections.drain().await;
}

/// HTTP/2 tells clients which of their calls were heard.
async fn drain_grpc(connections: Option<Connections<GrpcProtocol>>) {
    if let Some(connections) = connections {
        connections.drain().await;
    }
}

/// Serves the admin listener until the process ends, so that `/readyz` responds even while the server drains. Each
/// connection ends with its first response, and a full listener evicts the oldest: idle connections delay no probe.
fn serve_admin(listener: TcpListener, service: Arc<Service>, clients: ClientBounds) {
    let bounds = ClientBounds { connections: ADMIN_CONNECTIONS, ..clients };
    let router = http::admin::router(service, bounds.client_timeout);
    let connections = Connections::new(
        HttpProtocol::new(router, bounds.client_timeout).without_keep_alive(),
        ConnectionThreads::Shared,
        None,
        bounds,
    )
    .evicting_oldest();
    tokio::spawn(async move { connections.accept_all(&listener).await });
}

async fn listen(address: SocketAddr, flag: &str) -> io::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot listen on {address}, the address of {flag}: {error}"),
        )
    })
}

async fn listen_if(address: Option<SocketAddr>, flag: &str) -> io::Result<Option<TcpListener>> {
    match address {
        Some(address) => listen(address, flag).await.map(Some),
        None => Ok(None),
    }
}

/// What asks the server to stop. Registered before it listens, so that no signal finds it unready.
struct StopSignal {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignal {
    fn register() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn received(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
