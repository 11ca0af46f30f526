//! `slidegate serve`: listens until it is told to stop, then lets what runs finish.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::args::ServeArgs;
use crate::http::Connections;
use crate::service::Service;
use crate::settings::{ClientBounds, Settings};
use crate::{http, log, reload, wire};

/// How long clients may ask once more on connections that they have, before idle ones are ended.
const LAST_QUESTIONS: Duration = Duration::from_secs(1);

/// Connections of operators at once.
const ADMIN_CONNECTIONS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(63);

pub fn run(args: ServeArgs) -> Result<(), Box<dyn Error>> {
    let settings = Settings::read(args)?;
    log::to_stderr(settings.log)?;
    let runtime = runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(settings))?;
    // Connections that outlast the drain are cut, not waited for.
    runtime.shutdown_background();
    Ok(())
}

async fn serve(settings: Settings) -> Result<(), Box<dyn Error>> {
    let mut stop = StopSignal::register()?;
    let hangup = signal(SignalKind::hangup())?;
    let Settings { clients, shutdown_grace, .. } = settings;
    let listener = listen(settings.http, "--http").await?;
    let admin = match settings.admin {
        Some(address) => Some(listen(address, "--admin").await?),
        None => None,
    };
    let (rules, store) =
        (settings.service.policy.rules().len(), settings.service.store.to_string());
    let service = Arc::new(wire::service(settings.service)?);
    if let Some(admin) = admin {
        let address = admin.local_addr()?;
        serve_admin(admin, service.clone(), clients);
        info!("operators ask at http://{address}");
    }
    if service.only_observes() {
        warn!("denies nothing: by --observe every rule only watches");
    }
    reload::start(settings.policy_file, service.clone(), hangup)?;
    let answers = http::Answers::new(settings.headers, settings.retry_jitter);
    let address = listener.local_addr()?;
    let router = http::router(service.clone(), answers, clients.patience);
    let connections = Connections::new(router, clients);
    info!(rules, %store, "listening on http://{address}");
    let signal = until_stopped(&listener, &connections, &mut stop).await;
    service.health().drain();
    info!("{signal}: stopping, no new connections");
    drop(listener);
    let deadline = Instant::now() + shutdown_grace;
    connections.last_questions(LAST_QUESTIONS.min(shutdown_grace / 4)).await;
    drain(connections, deadline, shutdown_grace).await;
    if let Some(traces) = service.watch().traces() {
        traces.flush(deadline.saturating_duration_since(Instant::now())).await;
    }
    info!("stopped");
    Ok(())
}

/// To the end: whoever asks whether the server is ready is told so even while it drains.
fn serve_admin(listener: TcpListener, service: Arc<Service>, clients: ClientBounds) {
    let bounds = ClientBounds { connections: ADMIN_CONNECTIONS, ..clients };
    let router = http::admin::router(service, bounds.patience);
    tokio::spawn(async move { Connections::new(router, bounds).take(&listener).await });
}

async fn listen(address: SocketAddr, flag: &str) -> io::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot listen on {address}, the address of {flag}: {error}"),
        )
    })
}

async fn until_stopped(
    listener: &TcpListener,
    connections: &Connections,
    stop: &mut StopSignal,
) -> &'static str {
    tokio::select! {
        never = connections.take(listener) => match never {},
        signal = stop.received() => signal,
    }
}

async fn drain(connections: Connections, deadline: Instant, grace: Duration) {
    if tokio::time::timeout_at(deadline, connections.drain()).await.is_err() {
        warn!("cutting connections that were still busy after {grace:?}");
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
