//! Rounds in which both sides take turns over the same asks.

use std::error::Error;

use lab::part::Part;
use lab::table::Table;

use quanta::Instant;

use crate::Scope;
use crate::course::Course;
use crate::driver::{CONNECTIONS, Driver, StoreKind};
use crate::server::Server;
use crate::side::Side;

/// What the tables say.
pub const EXPLAINED: &str = "Each side has a redis-server of its own; both are asked the same, in turns, by 50 \
    connections that each send 16 asks before they read the answers (\"16\"), or one (\"1\"). CPU is that of Redis' \
    main thread, in microseconds per decision: the median of the rounds. The ratio is the median of the rounds' ratios.";

/// As published benchmarks ask.
pub const PIPELINED: StoreKind = StoreKind { depth: 16, per_second: None };

/// Without pipelining.
pub const SINGLE: StoreKind = StoreKind { depth: 1, per_second: None };

/// A side at its server.
pub struct Seat<'a> {
    pub server: Server,
    side: &'a dyn Side,
}

impl<'a> Seat<'a> {
    /// Starts a server that knows the side's script.
    pub fn new(side: &'a dyn Side) -> Result<Self, Box<dyn Error>> {
        let mut server = Server::start()?;
        server.load(&side.script())?;
        Ok(Self { server, side })
    }

    /// Asks without measuring.
    pub fn ask(&mut self, course: &Course, count: usize) -> Result<(), Box<dyn Error>> {
        let side = self.side;
        self.server.send_all(course.next(count).map(|ask| side.take(ask)))
    }

    /// One turn.
    pub fn turn(&mut self, course: &Course, turn: Turn) -> Result<Cost, Box<dyn Error>> {
        let side = self.side;
        let mut driver = Driver::new(&self.server)?;
        let mut measured = *course;
        if let Some((pace, count)) = turn.before {
            driver.run(pace, course.next(count).map(|ask| side.take(ask)), |_| {})?;
            measured.passed += count as u64;
        }
        let (before, mut denied, begun) = (self.server.cpu_us()?, 0, Instant::now());
        driver.run(
            turn.pace,
            measured.next(turn.measured).map(|ask| side.take(ask)),
            |answer| {
                denied += usize::from(!side.admits(answer));
            },
        )?;
        let decisions = turn.measured as f64;
        let per_second = decisions / begun.elapsed().as_secs_f64();
        let us = (self.server.cpu_us()? - before) / decisions;
        Ok(Cost { us, denied: denied as f64 / decisions, per_second })
    }
}

/// How many asks a turn has.
#[derive(Clone, Copy)]
pub struct Turn {
    /// At which pace they are sent.
    pub pace: StoreKind,
    /// Those before it is measured, and at which pace.
    pub before: Option<(StoreKind, usize)>,
    /// Those while it is.
    pub measured: usize,
}

/// What a turn came to.
#[derive(Clone, Copy, Default)]
pub struct Cost {
    /// CPU time of Redis' main thread for a decision, in microseconds.
    pub us: f64,
    /// The share that was denied.
    pub denied: f64,
    /// Decisions a second.
    pub per_second: f64,
}

/// slidegate's seat and that of the plain script.
pub type Seats<'a> = [Seat<'a>; 2];

/// Lets both take turns; adds a row, and gives the ratio.
pub fn compare(
    scope: Scope,
    name: &str,
    seats: &mut Seats<'_>,
    course: &mut Course,
    turn: Turn,
    table: &mut Table,
    part: &mut Part,
) -> Result<f64, Box<dyn Error>> {
    let depth = turn.pace.depth;
    part.progress.step(&format!("{name}: {CONNECTIONS} connections, pipelines of {depth}"));
    let mut rounds = Vec::new();
    for nth in 0..scope.rounds {
        // Who comes first changes, too.
        let mut costs = [Cost::default(); 2];
        for at in [nth % 2, 1 - nth % 2] {
            costs[at] = seats[at].turn(course, turn)?;
        }
        course.passed += (turn.before.map_or(0, |(_, count)| count) + turn.measured) as u64;
        rounds.push(costs);
    }
    let median = |of: &dyn Fn(&[Cost; 2]) -> f64| median(rounds.iter().map(of));
    let ratio = median(&|[own, plain]| own.us / plain.us);
    table.row([
        name.to_owned(),
        depth.to_string(),
        format!("{:.1}", median(&|costs| costs[0].us)),
        format!("{:.1}", median(&|costs| costs[1].us)),
        format!("{ratio:.2}x"),
        format!("{:.2}, {:.2}", median(&|costs| costs[0].denied), median(&|costs| costs[1].denied)),
    ]);
    Ok(ratio)
}

/// The head of what [`compare`] adds to.
pub fn table() -> Table {
    Table::new(["", "pipeline", "slidegate, us", "plain, us", "ratio", "denied"])
}

/// The median of some measures, at least one.
pub fn median(measures: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = measures.collect();
    all.sort_unstable_by(f64::total_cmp);
    all[all.len() / 2]
}
