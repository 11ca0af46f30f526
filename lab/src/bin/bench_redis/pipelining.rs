//! Measures the decisions per second of one Redis server with different pipeline depths. The depth is the number of
//! requests that a connection sends before it reads the replies.

use std::error::Error;

use lab::chart::{LineChart, Series};
use lab::part::ReportPart;
use lab::table::MarkdownTable;
use redis::{Cmd, Value};
use slidegate::Algorithm;

use crate::BenchScale;
use crate::pipeline_client::PipelineSettings;
use crate::request_sequence::{RequestSequence, UnitRequest};
use crate::rounds::{DecisionCost, ScriptServer, TurnPlan, median};
use crate::scripts::{BenchScript, SlidegateScripts, plain_key, two_keys_with_redis_clock};

const IDENTITY_COUNT: usize = 100_000;

const PIPELINE_DEPTHS: [usize; 4] = [1, 4, 16, 64];

/// A contender that only sends the command INCR: the minimum cost of a counter in Redis.
struct IncrScript;

impl BenchScript for IncrScript {
    fn lua_source(&self) -> String {
        "return 0".to_owned()
    }

    fn new_call_command(&self, request: UnitRequest) -> Cmd {
        let mut command = redis::cmd("INCR");
        command.arg(plain_key(request.identity));
        command
    }

    fn reply_allows_request(&self, _: &Value) -> bool {
        true
    }
}

/// Measures slidegate's `sliding_counter`, the two-key script and INCR with each pipeline depth.
pub fn run(scale: BenchScale, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.progress.add_steps(PIPELINE_DEPTHS.len());
    let (slidegate, plain) = (
        SlidegateScripts::new(&["1000000/d"], Algorithm::SlidingCounter)?,
        two_keys_with_redis_clock(1_000_000),
    );
    let mut contenders = [
        ScriptServer::new(&slidegate)?,
        ScriptServer::new(&plain)?,
        ScriptServer::new(&IncrScript)?,
    ];
    let names = ["sliding_counter", "two keys", "INCR"];
    let mut table = MarkdownTable::new([
        "pipeline",
        "sliding_counter, decisions/s",
        "two keys",
        "INCR",
        "sliding_counter, us",
        "two keys",
        "INCR",
    ]);
    let mut lines = names.map(|name| Series {
        name: name.to_owned(),
        points: Vec::with_capacity(PIPELINE_DEPTHS.len()),
    });
    for depth in PIPELINE_DEPTHS {
        part.progress.begin_step(&format!("pipelines of {depth}"));
        let costs = measure_pipeline_depth(scale, depth, &mut contenders)?;
        let rates = costs.map(|cost| format!("{:.0}", cost.per_second));
        let times = costs.map(|cost| format!("{:.1}", cost.us));
        table.add_row([depth.to_string()].into_iter().chain(rates).chain(times));
        for (line, cost) in lines.iter_mut().zip(&costs) {
            line.points.push((depth as f64, cost.per_second));
        }
    }
    part.add_text(format!(
        "### Pipelining\n\n50 connections, {IDENTITY_COUNT} identities, by TIME, all allowed. The columns are decisions per \
         second with the client on the other core, and the CPU time of the main thread of Redis per decision, in \
         microseconds."
    ));
    part.add_table(&table);
    let title = "Decisions per second of one Redis by pipeline depth";
    let x_label = "requests that a connection sends before it reads the replies";
    let svg = LineChart { title, x_label, y_label: "decisions/s", is_log_x: true, lines: &lines }
        .draw()?;
    part.add_chart("redis-depth", "decisions per second of one Redis by pipeline depth", svg);
    Ok(())
}

/// Measures all contenders in rounds with one pipeline depth. Returns the median costs of each contender.
fn measure_pipeline_depth(
    scale: BenchScale,
    depth: usize,
    contenders: &mut [ScriptServer<'_>; 3],
) -> Result<[DecisionCost; 3], Box<dyn Error>> {
    let pipeline = PipelineSettings { depth, per_second: None };
    let mut rounds: [Vec<DecisionCost>; 3] = Default::default();
    for round in 0..scale.rounds.min(7) {
        for nth in 0..contenders.len() {
            let at = (round + nth) % contenders.len();
            let sequence = RequestSequence {
                identities: IDENTITY_COUNT,
                time: None,
                position: (round * scale.decisions) as u64,
            };
            let turn = TurnPlan { pipeline, warm_up: None, measured: scale.decisions };
            rounds[at].push(contenders[at].turn(&sequence, turn)?);
        }
    }
    let median_of = |costs: &Vec<DecisionCost>, field: fn(&DecisionCost) -> f64| {
        median(costs.iter().map(field))
    };
    Ok(rounds.each_ref().map(|costs| DecisionCost {
        us: median_of(costs, |cost| cost.us),
        denied: median_of(costs, |cost| cost.denied),
        per_second: median_of(costs, |cost| cost.per_second),
    }))
}
