//! gRPC beside services of tonic that answer OK with the same bytes, and beside throttlecrab.

use std::error::Error;

use lab::chart::{Bar, bars};
use lab::part::{Effort, Part};
use lab::server::Server;
use lab::table::Table;
use lab::targets::{Aim, Bound};

use crate::question::{Face, Question};
use crate::rounds::{Measured, interleaved};
use crate::{contenders, h2load};

const BESIDE_TONIC: Aim = Aim {
    text: "gRPC, calls/s in those of the faster no-op tonic",
    bound: Bound::AtLeast(0.90),
    limited_by: "by callgrind four fifths of a call are HTTP/2 and tonic's framing, which both pay; the decision, its \
        counters and the text of its headers are a seventh with one limit, and grow with the limits. Tried, and kept: \
        below tonic's server and its layers, a thread for each connection, a codec with small buffers, and no future \
        of Redis within that of a decision in memory, which was copied for each call.",
};

const INTRODUCTION: &str = "
### gRPC

`ShouldRateLimit` of Envoy's rate limit service, each descriptor of another rule, in memory. Beside it stand services of tonic that read the message and answer OK with the same bytes, on a runtime of one thread and on one of two workers, and throttlecrab's own gRPC face with its one limit. h2load as above.";

/// How it is asked.
struct Load {
    /// Descriptors of a request.
    descriptors: usize,
    /// Calls that a connection has at once.
    depth: usize,
}

const LOADS: [Load; 4] = [
    Load { descriptors: 1, depth: 1 },
    Load { descriptors: 1, depth: 10 },
    Load { descriptors: 3, depth: 1 },
    Load { descriptors: 3, depth: 10 },
];

const NAMES: [&str; 4] = ["slidegate", "tonic, one thread", "tonic, two workers", "throttlecrab"];

pub fn run(effort: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.say(INTRODUCTION);
    part.progress.expect(LOADS.len());
    let mut table = Table::new([
        "descriptors",
        "calls at once on a connection",
        "server",
        "calls/s",
        "slidegate's in times of it",
        "CPU s per 1 M",
    ]);
    for load in &LOADS {
        part.progress.step(&format!("{} descriptors, {} at once", load.descriptors, load.depth));
        let measured = load.measure(effort)?;
        let own = measured[0];
        for (name, its) in NAMES.iter().zip(&measured) {
            table.row([
                load.descriptors.to_string(),
                load.depth.to_string(),
                (*name).to_owned(),
                format!("{:.0}", its.per_second),
                format!("{:.2}", own.per_second / its.per_second),
                format!("{:.1}", its.cpu_us),
            ]);
        }
        part.hold(
            &BESIDE_TONIC,
            own.per_second / measured[1].per_second.max(measured[2].per_second),
        );
        if (load.descriptors, load.depth) == (1, 1) {
            draw(part, &measured)?;
        }
    }
    part.table(&table);
    Ok(())
}

impl Load {
    /// In the order of their names.
    fn measure(&self, effort: Effort) -> Result<[Measured; 4], Box<dyn Error>> {
        let question = Question::should_rate_limit(self.descriptors);
        let slidegate = contenders::slidegate(Face::Grpc)?;
        let answer = contenders::answer(&slidegate, &question)?;
        let bare = |threads| contenders::bare(Face::Grpc, threads, &answer);
        let contenders: [(Server, Question); 4] = [
            (slidegate, question.clone()),
            (bare(0)?, question.clone()),
            (bare(2)?, question),
            (contenders::throttlecrab(Face::Grpc)?, Question::throttle_call()),
        ];
        let calls = effort.pick(80_000, 25_000);
        let rounds = interleaved(effort.rounds(), contenders.len(), |which| {
            let (server, question) = &contenders[which];
            h2load::run(server, question, self.depth, calls)
        })?;
        let mut measured = [Measured::default(); 4];
        for (median, rounds) in measured.iter_mut().zip(&rounds) {
            *median = Measured::median(rounds);
        }
        Ok(measured)
    }
}

fn draw(part: &mut Part, measured: &[Measured; 4]) -> Result<(), Box<dyn Error>> {
    let bar = |(name, its): (&&str, &Measured)| Bar {
        name: (*name).to_owned(),
        value: its.per_second,
        label: format!("{:.0}", its.per_second),
        is_own: *name == "slidegate",
    };
    let all: Vec<Bar> = NAMES.iter().zip(measured).map(bar).collect();
    let svg = bars("gRPC, one call at a time on 50 connections: calls/s", &all)?;
    part.chart("server-grpc", "Calls a second over gRPC", svg);
    Ok(())
}
