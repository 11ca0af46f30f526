//! `slidegate serve`: listens until it is told to stop, then lets what runs finish.

use std::error::Error;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::SetGlobalDefaultError;
use tracing::{info, warn};

use crate::args::ServeArgs;
use crate::http::Connections;
use crate::settings::Settings;
use crate::{http, wire};

/// How long requests may go on after the signal to stop. A check takes microseconds: only a client
/// that is slow to send its body needs this. Supervisors kill after 10 s at the earliest.
const DRAIN: Duration = Duration::from_secs(5);

pub fn run(args: ServeArgs) -> Result<(), Box<dyn Error>> {
    let settings = Settings::read(args)?;
    log_to_stderr(settings.log)?;
    let runtime = runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(settings))?;
    // Connections that outlast the drain are cut, not waited for.
    runtime.shutdown_background();
    Ok(())
}

fn log_to_stderr(level: LevelFilter) -> Result<(), SetGlobalDefaultError> {
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .finish();
    tracing::subscriber::set_global_default(subscriber)
}

async fn serve(settings: Settings) -> Result<(), Box<dyn Error>> {
    let mut stop = StopSignal::register()?;
    let listener = listen(settings.http).await?;
    let address = listener.local_addr()?;
    let rules = settings.policy.rules().len();
    let clients = settings.clients;
    let answers = http::Answers::new(settings.headers, settings.retry_jitter);
    let store = settings.store.to_string();
    let router = http::router(wire::gate(settings)?, answers, clients.patience);
    let connections = Connections::new(router, clients);
    info!(rules, %store, "listening on http://{address}");
    until_stopped(listener, connections, &mut stop).await;
    Ok(())
}

async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot listen on {address}: {error}"))
    })
}

async fn until_stopped(listener: TcpListener, connections: Connections, stop: &mut StopSignal) {
    let signal = tokio::select! {
        never = connections.take(&listener) => match never {},
        signal = stop.received() => signal,
    };
    info!("{signal}: stopping, no new connections");
    drop(listener);
    if tokio::time::timeout(DRAIN, connections.drain()).await.is_err() {
        warn!("cutting connections that were still busy after {DRAIN:?}");
    }
    info!("stopped");
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
