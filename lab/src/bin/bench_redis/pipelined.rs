//! Measures scripts that are called in pipelines: each of 50 connections sends 16 requests before it reads the replies.
//! All contenders receive the same requests, in turns, each with its own Redis server.

use std::error::Error;
use std::time::Duration;

use lab::program::BenchRun;
use lab::results::median;
use redis::{Cmd, Connection};
use slidegate::{Algorithm, Timestamp};

use crate::redis_server::RedisServer;
use crate::scripts::{BenchScript, PlainScript, SlidegateScripts, UnitRequest, plain_key};

const CONNECTIONS: usize = 50;

/// The number of requests in a pipeline, as in published benchmarks of Redis.
const PIPELINE_DEPTH: usize = 16;

/// The names of the columns: the compared scripts.
const CONTENDERS: [&str; 2] = ["slidegate", "plain script"];

/// A compared script, with a Redis server that only this script uses.
struct Contender<'a> {
    server: RedisServer,
    script: &'a dyn BenchScript,
}

impl<'a> Contender<'a> {
    fn start(script: &'a dyn BenchScript) -> Result<Self, Box<dyn Error>> {
        let mut server = RedisServer::start()?;
        server.load_script(&script.lua_source())?;
        Ok(Self { server, script })
    }

    /// Sends requests in pipelines. Returns the CPU time of Redis per request, in microseconds.
    fn measure(&mut self, requests: &[UnitRequest]) -> Result<f64, Box<dyn Error>> {
        let connect = |_| self.server.connect();
        let mut connections: Vec<Connection> =
            (0..CONNECTIONS).map(connect).collect::<Result<_, _>>()?;
        let before_us = self.server.cpu_us()?;
        for wave in requests.chunks(CONNECTIONS * PIPELINE_DEPTH) {
            let pipelines = || wave.chunks(PIPELINE_DEPTH);
            for (connection, pipeline) in connections.iter_mut().zip(pipelines()) {
                let mut bytes = Vec::new();
                for request in pipeline {
                    self.script.new_call_command(*request).write_packed_command(&mut bytes);
                }
                connection.send_packed_command(&bytes)?;
            }
            for (connection, pipeline) in connections.iter_mut().zip(pipelines()) {
                for _ in pipeline {
                    self.script.reply_allows_request(&connection.recv_response()?);
                }
            }
        }
        Ok((self.server.cpu_us()? - before_us) / requests.len() as f64)
    }
}

/// An endless sequence of requests at constant intervals. The identity of each request is sampled uniformly.
struct RequestSequence {
    identities: usize,
    start: Timestamp,
    step: Duration,
    /// The number of the next request.
    next: u64,
    rng: fastrand::Rng,
}

impl RequestSequence {
    fn new(identities: usize, start: Timestamp, step: Duration) -> Self {
        Self { identities, start, step, next: 0, rng: fastrand::Rng::with_seed(1) }
    }

    fn take_requests(&mut self, count: usize) -> Vec<UnitRequest> {
        let mut take_one = || {
            let now =
                self.start.after(Duration::from_nanos(self.step.as_nanos() as u64 * self.next));
            self.next += 1;
            UnitRequest {
                identity: self.rng.usize(0..self.identities),
                nth: self.next,
                now: Some(now),
            }
        };
        (0..count).map(|_| take_one()).collect()
    }
}

/// Measures both contenders in turns, and records the median of the rounds.
fn compare_contenders(
    run: &mut BenchRun,
    row: &str,
    contenders: &mut [Contender<'_>; 2],
    requests: &mut RequestSequence,
    requests_per_round: usize,
) -> Result<(), Box<dyn Error>> {
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..round_count(run) {
        let requests = requests.take_requests(requests_per_round);
        for (contender, results) in contenders.iter_mut().zip(&mut rounds) {
            results.push(contender.measure(&requests)?);
        }
    }
    for (column, results) in CONTENDERS.into_iter().zip(rounds) {
        run.record(["redis-scripts-cpu", row, column], median(results));
    }
    Ok(())
}

fn round_count(run: &BenchRun) -> usize {
    run.effort.full_or_quick(15, 3)
}

/// Compares `sliding_log` with a script that keeps a sorted set. The request rate is twice the limit, and all logs are
/// full.
pub fn measure_logs(run: &mut BenchRun) -> Result<(), Box<dyn Error>> {
    const START: Timestamp = Timestamp::from_secs(1_800_000_000);
    let charges = run.effort.full_or_quick(100_000, 20_000);
    for (max, name) in [(100, "100"), (1_000, "1,000")] {
        let slidegate = SlidegateScripts::new(&[&format!("{max}/h")], Algorithm::SlidingLog)?;
        let plain = PlainScript::new(include_str!("plain/log.lua"), move |request: UnitRequest| {
            let now_ms = request.now.map_or(0, Timestamp::as_micros) / 1_000;
            let [window_ms, ttl_s] = [3_600_000, 3_610];
            let member = format!("r-{:010x}", request.nth);
            let numbers = [now_ms, window_ms, max, ttl_s].map(|number| number.to_string());
            [numbers.to_vec(), vec![member]].concat()
        });
        let mut contenders = [Contender::start(&slidegate)?, Contender::start(&plain)?];
        let step = Duration::from_secs(3_600) / (2 * charges) as u32;
        let identities = charges / max as usize;
        let mut requests = RequestSequence::new(identities, START, step);
        let filling = requests.take_requests(2 * charges);
        for Contender { server, script } in &mut contenders {
            server
                .send_commands(filling.iter().map(|request| script.new_call_command(*request)))?;
        }
        let row = format!("sliding_log of {name}, and a sorted set");
        compare_contenders(
            run,
            &row,
            &mut contenders,
            &mut requests,
            run.effort.full_or_quick(8_000, 4_000),
        )?;
        for (column, contender) in CONTENDERS.into_iter().zip(&mut contenders) {
            let bytes = contender.server.memory_usage()? / identities as f64;
            run.record(["redis-scripts-memory", &row, column], bytes);
        }
    }
    Ok(())
}

/// Three limits as (window, precision, max). The window and the precision (the length of a bucket) are in seconds.
type BucketLimits = [(u64, u64, u64); 3];

/// Compares the limits 10/s, 600/min and 10000/h with a script that keeps the counts of time buckets in a hash. Half of
/// the identities have reached a limit.
pub fn measure_three_limits(run: &mut BenchRun) -> Result<(), Box<dyn Error>> {
    // The limits of the article that published the compared script. Only the longest window slides, as only it has
    // several buckets.
    let one_slides: BucketLimits = [(1, 1, 10), (60, 60, 600), (3_600, 60, 10_000)];
    let two_slide: BucketLimits = [(1, 1, 10), (60, 5, 600), (3_600, 60, 10_000)];
    for (row, minutes, limits) in [
        ("three limits after 2 minutes, and a hash of buckets", 2, one_slides),
        ("three limits after an hour, and a hash of buckets", 60, one_slides),
        ("the same, two windows slide", 60, two_slide),
    ] {
        let slidegate =
            SlidegateScripts::new(&["10/s", "600/min", "10000/h"], Algorithm::SlidingCounter)?;
        let json = limits.map(|(window, precision, max)| format!("[{window},{max},{precision}]"));
        let json = format!("[{}]", json.join(","));
        let plain = PlainScript::new(include_str!("plain/buckets.lua"), |request: UnitRequest| {
            let now_s = request.now.map_or(0, Timestamp::as_micros) / 1_000_000;
            vec![json.clone(), now_s.to_string(), "1".to_owned()]
        });
        let mut contenders = [Contender::start(&slidegate)?, Contender::start(&plain)?];
        contenders[0].server.load_script(&slidegate.single_limit_script())?;
        let identities = run.effort.full_or_quick(100_000, 10_000);
        let start = Timestamp::from_secs(500_000 * 3_600 + 1_805);
        charge_identities(&mut contenders, &slidegate, identities, start, minutes, limits)?;
        let count = run.effort.full_or_quick(8_000, 4_000);
        // All requests are within half a minute, so no minute ends.
        let step = Duration::from_secs(30) / (round_count(run) * count) as u32;
        let mut requests = RequestSequence::new(identities, start, step);
        compare_contenders(run, row, &mut contenders, &mut requests, count)?;
    }
    Ok(())
}

/// Returns the index of the limit that an identity has reached before the measurement.
fn reached_limit_index(identity: usize) -> Option<usize> {
    match identity % 4 {
        0 => Some(2),
        2 => Some(1),
        _ => None,
    }
}

/// Charges all identities on both servers, as after `minutes` minutes of requests.
fn charge_identities(
    [own, plain]: &mut [Contender<'_>; 2],
    slidegate: &SlidegateScripts,
    identities: usize,
    start: Timestamp,
    minutes: u64,
    limits: BucketLimits,
) -> Result<(), Box<dyn Error>> {
    let start_s = start.as_micros() / 1_000_000;
    own.server.send_commands((0..identities).flat_map(|identity| {
        limits.into_iter().enumerate().flat_map(move |(nth, (window, _, max))| {
            let units = if reached_limit_index(identity) == Some(nth) { max } else { 1 };
            let before = Timestamp::from_secs(start_s - window);
            let before = (minutes >= 60 || nth < 2)
                .then(|| slidegate.charge_command(identity, nth, 1, before));
            before.into_iter().chain([slidegate.charge_command(identity, nth, units, start)])
        })
    }))?;
    plain.server.send_commands(
        (0..identities).map(|identity| new_bucket_hash_command(identity, start_s, minutes, limits)),
    )
}

/// Returns the command that writes the hash of an identity, with a request in each bucket. If the identity has reached a
/// limit, the newest bucket has all remaining requests up to this limit.
fn new_bucket_hash_command(identity: usize, now_s: u64, minutes: u64, limits: BucketLimits) -> Cmd {
    let mut command = redis::cmd("HSET");
    command.arg(plain_key(identity));
    for (nth, (window, precision, max)) in limits.into_iter().enumerate() {
        let (current_bucket, bucket_count) = (now_s / precision, window / precision);
        let name = format!("{window}:{precision}:");
        let older = (minutes * 60 / precision).min(bucket_count) - 1;
        let newest = if reached_limit_index(identity) == Some(nth) { max - older } else { 1 };
        command.arg(format!("{name}o")).arg(current_bucket - bucket_count + 1);
        command.arg(&name).arg(newest + older);
        command.arg(format!("{name}{current_bucket}")).arg(newest);
        for bucket in current_bucket - older..current_bucket {
            command.arg(format!("{name}{bucket}")).arg(1);
        }
    }
    command
}
