//! Separates the cores of the measured servers from the cores of the load generator, so that a benchmark measures the
//! servers.

use std::io;
use std::sync::OnceLock;
use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores of the servers and of the load. `None` if the cores are not separated.
static CORE_SPLIT: OnceLock<CoreSplit> = OnceLock::new();

/// The cores of this process, split in two halves.
struct CoreSplit {
    servers: Vec<usize>,
    load: Vec<usize>,
}

/// Splits the cores that this process may use: from now on, this thread and the threads and processes that it starts
/// run on the first half, and servers on the second half. If there is only one core, all processes share it.
///
/// # Errors
/// If the system does not allow the process to choose its cores.
pub fn separate_load_from_servers() -> io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let mut load: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let servers = load.split_off(load.len() / 2);
    if load.is_empty() {
        return Ok(());
    }
    run_this_thread_on(&CORE_SPLIT.get_or_init(|| CoreSplit { servers, load }).load)
}

/// Returns the number of cores on which servers run.
///
/// # Errors
/// If the number of cores is unknown.
pub fn server_core_count() -> io::Result<usize> {
    CORE_SPLIT
        .get()
        .map_or_else(|| Ok(thread::available_parallelism()?.get()), |split| Ok(split.servers.len()))
}

/// Calls `start`. The processes and threads that it starts run on the cores of the servers.
///
/// # Errors
/// If the system does not allow the thread to change its cores.
pub fn on_server_cores<T>(start: impl FnOnce() -> T) -> io::Result<T> {
    let Some(split) = CORE_SPLIT.get() else { return Ok(start()) };
    run_this_thread_on(&split.servers)?;
    let started = start();
    run_this_thread_on(&split.load)?;
    Ok(started)
}

fn run_this_thread_on(cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    Ok(sched_setaffinity(None, &set)?)
}
