//! Measures slidegate and a plain script in rounds. In each round both contenders receive the same requests, one
//! contender after the other.

use std::error::Error;

use lab::part::ReportPart;
use lab::table::MarkdownTable;

use quanta::Instant;

use crate::BenchScale;
use crate::pipeline_client::{CONNECTIONS, PipelineClient, PipelineSettings};
use crate::request_sequence::RequestSequence;
use crate::scripts::BenchScript;
use crate::server::RedisServer;

/// The text before the tables of the report. It describes the columns of the tables.
pub const INTRODUCTION: &str = "slidegate and the plain script each have a separate redis-server. Both receive the \
    same requests, in turns, on 50 connections that each send 16 requests before they read the replies (\"16\"), or \
    one (\"1\"). CPU is the time of the main thread of Redis, in microseconds per decision: the median of the \
    rounds. The ratio is the median of the ratios of the rounds.";

/// Settings with a pipeline of 16 requests, as in published benchmarks.
pub const PIPELINED: PipelineSettings = PipelineSettings { depth: 16, per_second: None };

/// Settings without pipelining: each connection waits for the reply to each request.
pub const SINGLE: PipelineSettings = PipelineSettings { depth: 1, per_second: None };

/// A compared script, with a Redis server that only this script uses.
pub struct ScriptServer<'a> {
    pub server: RedisServer,
    script: &'a dyn BenchScript,
}

impl<'a> ScriptServer<'a> {
    /// Starts a Redis server and loads the script into it.
    pub fn new(script: &'a dyn BenchScript) -> Result<Self, Box<dyn Error>> {
        let mut server = RedisServer::start()?;
        server.load(&script.lua_source())?;
        Ok(Self { server, script })
    }

    /// Sends the next `count` requests of the sequence to the server, without measuring them.
    pub fn send(&mut self, sequence: &RequestSequence, count: usize) -> Result<(), Box<dyn Error>> {
        let script = self.script;
        self.server.send_all(sequence.next(count).map(|request| script.new_call_command(request)))
    }

    /// Sends the requests of one turn and measures them.
    pub fn turn(
        &mut self,
        sequence: &RequestSequence,
        turn: TurnPlan,
    ) -> Result<DecisionCost, Box<dyn Error>> {
        let script = self.script;
        let mut client = PipelineClient::new(&self.server)?;
        let mut measured = *sequence;
        if let Some((pipeline, count)) = turn.warm_up {
            client.run(
                pipeline,
                sequence.next(count).map(|request| script.new_call_command(request)),
                |_| {},
            )?;
            measured.position += count as u64;
        }
        let (before, mut denied, start) = (self.server.cpu_us()?, 0, Instant::now());
        client.run(
            turn.pipeline,
            measured.next(turn.measured).map(|request| script.new_call_command(request)),
            |reply| {
                denied += usize::from(!script.reply_allows_request(reply));
            },
        )?;
        let decisions = turn.measured as f64;
        let per_second = decisions / start.elapsed().as_secs_f64();
        let us = (self.server.cpu_us()? - before) / decisions;
        Ok(DecisionCost { us, denied: denied as f64 / decisions, per_second })
    }
}

/// The plan of one turn: the number of requests, and the pipelining with which they are sent.
#[derive(Clone, Copy)]
pub struct TurnPlan {
    /// The pipelining of the measured requests.
    pub pipeline: PipelineSettings,
    /// The requests before the measurement: their pipelining and their number. `None` if there are no such requests.
    pub warm_up: Option<(PipelineSettings, usize)>,
    /// The number of measured requests.
    pub measured: usize,
}

/// The cost and the denials of the measured requests of a turn.
#[derive(Clone, Copy, Default)]
pub struct DecisionCost {
    /// The CPU time of the main thread of Redis per decision, in microseconds.
    pub us: f64,
    /// The share of denied requests, from 0 to 1.
    pub denied: f64,
    /// The number of decisions per second.
    pub per_second: f64,
}

/// The two contenders, each with its own server: slidegate first, then the plain script.
pub type ScriptServerPair<'a> = [ScriptServer<'a>; 2];

/// Measures both contenders in rounds and adds a row to the table. Returns the CPU time of slidegate relative to the
/// plain script, as the median of the rounds.
pub fn compare(
    scale: BenchScale,
    name: &str,
    contenders: &mut ScriptServerPair<'_>,
    sequence: &mut RequestSequence,
    turn: TurnPlan,
    table: &mut MarkdownTable,
    part: &mut ReportPart,
) -> Result<f64, Box<dyn Error>> {
    let depth = turn.pipeline.depth;
    part.progress.begin_step(&format!("{name}: {CONNECTIONS} connections, pipelines of {depth}"));
    let mut rounds = Vec::new();
    for nth in 0..scale.rounds {
        // The first contender changes from round to round.
        let mut costs = [DecisionCost::default(); 2];
        for at in [nth % 2, 1 - nth % 2] {
            costs[at] = contenders[at].turn(sequence, turn)?;
        }
        sequence.position += (turn.warm_up.map_or(0, |(_, count)| count) + turn.measured) as u64;
        rounds.push(costs);
    }
    let median = |value: &dyn Fn(&[DecisionCost; 2]) -> f64| median(rounds.iter().map(value));
    let ratio = median(&|[own, plain]| own.us / plain.us);
    table.add_row([
        name.to_owned(),
        depth.to_string(),
        format!("{:.1}", median(&|costs| costs[0].us)),
        format!("{:.1}", median(&|costs| costs[1].us)),
        format!("{ratio:.2}x"),
        format!("{:.2}, {:.2}", median(&|costs| costs[0].denied), median(&|costs| costs[1].denied)),
    ]);
    Ok(ratio)
}

/// Creates the table to which [`compare`] adds rows.
pub fn table() -> MarkdownTable {
    MarkdownTable::new(["", "pipeline", "slidegate, us", "plain, us", "ratio", "denied"])
}

/// Returns the median of the values. There must be at least one value.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = values.collect();
    all.sort_unstable_by(f64::total_cmp);
    all[all.len() / 2]
}
