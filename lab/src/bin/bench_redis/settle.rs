//! Measures reservations that are settled, compared with checks of the same cost.

use std::error::Error;
use std::time::Duration;

use lab::part::ReportPart;
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use redis::Value;
use slidegate::{Algorithm, Timestamp};

use crate::BenchScale;
use crate::pipeline_client::PipelineClient;
use crate::request_sequence::{RequestSequence, UnitRequest};
use crate::rounds::{PIPELINED, median};
use crate::scripts::{BenchScript, SlidegateScripts};
use crate::server::RedisServer;

const IDENTITY_COUNT: usize = 10_000;

/// The units that are charged by a check, and in advance by a reservation.
const RESERVED_UNITS: u64 = 10;

/// The time of the first request, by the clock of the caller. It is in the future, so that no key expires during a run.
const START_TIME: Timestamp = Timestamp::from_secs(1_800_000_000);

/// The quotas of a rule with one limit, and of one with three. No request is denied.
const QUOTAS: [&[&str]; 2] = [&["1000000/h"], &["1000000/min", "1000000/h", "1000000/d"]];

/// The measured costs, with their names: below, equal to, and above the reserved cost.
const ACTUAL_COSTS: [(&str, u64); 3] = [("below", 3), ("equal to", RESERVED_UNITS), ("above", 13)];

const MAX_CPU_RELATIVE_TO_CHECK: BenchTarget = BenchTarget {
    text: "reserve and settle, actual cost below the estimate, CPU relative to a check",
    bound: TargetBound::AtMost(2.2),
    limited_by: "with one limit, a settlement that changes nothing and only writes its record costs 0.9 checks: half of it \
        is the script call itself. The revert of one charge reads and writes 28 bytes in place.",
};

/// Measures both for each number of limits and actual cost.
pub fn run(scale: BenchScale, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    let algorithms = [Algorithm::default(), Algorithm::SlidingCounter];
    part.progress.add_steps(algorithms.len() * QUOTAS.len() * ACTUAL_COSTS.len());
    part.add_text(format!(
        "### Reservations\n\nA check charges {RESERVED_UNITS} units of one of {IDENTITY_COUNT} identities. A \
         reservation charges as many, and its settlement corrects them to the actual cost. Both in pipelines of 16, \
         with the clock of the caller."
    ));
    let mut table = MarkdownTable::new([
        "algorithm, limits",
        "actual cost",
        "check, us",
        "reserve and settle, us",
        "ratio",
    ]);
    for algorithm in algorithms {
        for quotas in QUOTAS {
            for (name, actual_units) in ACTUAL_COSTS {
                let scripts = SlidegateScripts::new(quotas, algorithm)?;
                let title = format!("{algorithm}, {}", quotas.len());
                part.progress.begin_step(&format!("{title}: {name} the estimate"));
                let [check_us, both_us, ratio] = measure(scale, &scripts, actual_units)?;
                table.add_row([
                    title,
                    format!("{name} the estimate"),
                    format!("{check_us:.1}"),
                    format!("{both_us:.1}"),
                    format!("{ratio:.2}x"),
                ]);
                if actual_units < RESERVED_UNITS {
                    part.record_target(&MAX_CPU_RELATIVE_TO_CHECK, ratio);
                }
            }
        }
    }
    part.add_table(&table);
    Ok(())
}

/// Returns the CPU time of Redis per check and per settled reservation in microseconds, and their ratio: the medians of
/// the rounds.
fn measure(
    scale: BenchScale,
    scripts: &SlidegateScripts,
    actual_units: u64,
) -> Result<[f64; 3], Box<dyn Error>> {
    let mut servers = [RedisServer::start()?, RedisServer::start()?];
    let time = Some((START_TIME, Duration::from_millis(1)));
    let mut sequence = RequestSequence { identities: IDENTITY_COUNT, time, position: 0 };
    let mut rounds = Vec::new();
    // The first round loads the scripts and creates the keys.
    for nth in 0..=scale.rounds {
        let mut us = [0.0; 2];
        for is_settled in [nth % 2 == 0, nth % 2 == 1] {
            let index = usize::from(is_settled);
            let actual_units = is_settled.then_some(actual_units);
            us[index] = run_turn(scale, scripts, &mut servers[index], &sequence, actual_units)?;
        }
        sequence.position += scale.decisions as u64;
        if nth > 0 {
            rounds.push(us);
        }
    }
    let median_of = |value: &dyn Fn(&[f64; 2]) -> f64| median(rounds.iter().map(value));
    Ok([median_of(&|us| us[0]), median_of(&|us| us[1]), median_of(&|us| us[1] / us[0])])
}

/// Sends the next requests of the sequence, and settles them if there are actual units. Returns the CPU time of Redis
/// per request in microseconds.
fn run_turn(
    scale: BenchScale,
    scripts: &SlidegateScripts,
    server: &mut RedisServer,
    sequence: &RequestSequence,
    actual_units: Option<u64>,
) -> Result<f64, Box<dyn Error>> {
    let mut client = PipelineClient::new(server)?;
    server.load(&scripts.lua_source())?;
    let requests: Vec<UnitRequest> = sequence.next(scale.decisions).collect();
    let now = |request: &UnitRequest| request.now.unwrap_or(START_TIME);
    let commands: Vec<_> = requests
        .iter()
        .map(|request| scripts.take_command(request.identity, RESERVED_UNITS, now(request)))
        .collect();
    let (before_us, mut replies) = (server.cpu_us()?, Vec::with_capacity(requests.len()));
    client.run(PIPELINED, commands.into_iter(), |reply| replies.push(reply.clone()))?;
    let mut us = server.cpu_us()? - before_us;
    if let Some(actual_units) = actual_units {
        let mut commands = Vec::with_capacity(requests.len());
        for (request, reply) in requests.iter().zip(&replies) {
            let call = (request.nth, request.identity);
            let units = [RESERVED_UNITS, actual_units];
            let (command, script) = scripts.settle_command(call, reply, units, now(request));
            if commands.is_empty() {
                server.load(script)?;
            }
            commands.push(command);
        }
        let before_us = server.cpu_us()?;
        client.run(PIPELINED, commands.into_iter(), |reply| {
            assert_eq!(reply, &Value::BulkString(vec![0]), "each reservation is settled once");
        })?;
        us += server.cpu_us()? - before_us;
    }
    Ok(us / scale.decisions as f64)
}
