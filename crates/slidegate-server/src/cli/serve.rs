//! `slidegate serve`: runs the server until a signal stops it, then drains its connections.

use std::error::Error;
use std::process::ExitCode;

use tokio::runtime;

use crate::boot::serve_until_signal;
use crate::cli::args::ServeArgs;
use crate::cli::settings;
use crate::telemetry::log::Log;

/// Runs `slidegate serve`.
pub fn run(args: ServeArgs) -> Result<ExitCode, Box<dyn Error>> {
    let settings = settings::from_args(args)?;
    let log = Log::start(settings.log)?;
    let runtime = runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(serve_until_signal(settings, log.queue()));
    // Stops the runtime without waiting for connections that outlast the drain.
    runtime.shutdown_background();
    let Err(error) = result else { return Ok(ExitCode::SUCCESS) };
    // The error is written through the log queue and not returned, because the caller would print it without a timeout.
    log.queue().push(format!("{error}\n"));
    Ok(ExitCode::FAILURE)
}
