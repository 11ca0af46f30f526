//! How late answers are at half of the load that the slowest server bears.

use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;
use lab::part::{Effort, Part};
use lab::server::Server;
use lab::table::Table;
use quanta::Instant;

use crate::caller::Caller;
use crate::open_loop::{Poisson, WallClock, delays, empty};
use crate::question::{Face, Question};
use crate::rounds::{Measured, interleaved, median};
use crate::{contenders, h2load};

const INTRODUCTION: &str = "
### Latency at half load

The rate is half of what the slowest server of the table reached in a closed loop just before, the same for all. Questions come at random times that were set before (Poisson), on 50 connections, each with a thread of its own; a delay counts from when its question was due to when it was answered, so what waits behind a late answer is late, too. The first row asks nobody: it is how late the threads themselves are on these two cores, and is part of all others. Medians of the rounds.";

/// Between connecting and the first question.
const BREATH: Duration = Duration::from_millis(50);

/// Who is asked, and what.
struct Contender {
    name: &'static str,
    /// None asks nobody.
    asked: Option<(Server, Question)>,
}

/// Delays in microseconds.
struct Delays {
    p50: f64,
    p99: f64,
    p999: f64,
}

pub fn run(effort: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.say(INTRODUCTION);
    part.progress.expect(4);
    let mut table = Table::new(["asked", "a second", "server", "p50, µs", "p99, µs", "p99.9, µs"]);
    for (name, contenders) in [("`/v1/check`", http()?), ("`ShouldRateLimit`", grpc()?)] {
        part.progress.step(&format!("{name}, closed loop"));
        let rate = half_of_the_slowest(effort, &contenders)?;
        part.progress.step(&format!("{name}, {rate:.0} a second"));
        let time = Duration::from_millis(effort.pick(2_000, 500));
        let mut round = 0;
        let rounds = interleaved(effort.rounds(), contenders.len(), |which| {
            round += 1;
            let seed = round / contenders.len() as u64;
            contenders[which].delays(rate, time, seed)
        })?;
        for (contender, rounds) in contenders.iter().zip(&rounds) {
            table.row([
                name.to_owned(),
                format!("{rate:.0}"),
                contender.name.to_owned(),
                format!("{:.0}", median(rounds, |round| round.p50)),
                format!("{:.0}", median(rounds, |round| round.p99)),
                format!("{:.0}", median(rounds, |round| round.p999)),
            ]);
        }
    }
    part.table(&table);
    Ok(())
}

const NOBODY: Contender = Contender { name: "nobody", asked: None };

fn http() -> Result<Vec<Contender>, Box<dyn Error>> {
    let question = Question::check();
    let slidegate = contenders::slidegate(Face::Http)?;
    let answer = contenders::answer(&slidegate, &question)?;
    let bare = |threads| contenders::bare(Face::Http, threads, &answer);
    Ok(vec![
        NOBODY,
        Contender::new("slidegate", slidegate, question.clone()),
        Contender::new("axum, one thread", bare(0)?, question.clone()),
        Contender::new("axum, two workers", bare(2)?, question),
        Contender::new("throttlecrab", contenders::throttlecrab(Face::Http)?, Question::throttle()),
    ])
}

fn grpc() -> Result<Vec<Contender>, Box<dyn Error>> {
    let question = Question::should_rate_limit(3);
    let slidegate = contenders::slidegate(Face::Grpc)?;
    let answer = contenders::answer(&slidegate, &question)?;
    let bare = |threads| contenders::bare(Face::Grpc, threads, &answer);
    let throttle = Question::throttle_call();
    Ok(vec![
        NOBODY,
        Contender::new("slidegate", slidegate, question.clone()),
        Contender::new("tonic, one thread", bare(0)?, question.clone()),
        Contender::new("tonic, two workers", bare(2)?, question),
        Contender::new("throttlecrab", contenders::throttlecrab(Face::Grpc)?, throttle),
    ])
}

fn half_of_the_slowest(effort: Effort, contenders: &[Contender]) -> Result<f64, Box<dyn Error>> {
    let asked: Vec<_> = contenders.iter().filter_map(|one| one.asked.as_ref()).collect();
    let rounds = interleaved(effort.pick(5, 1), asked.len(), |which| {
        let (server, question) = asked[which];
        h2load::run(server, question, 1, effort.pick(40_000, 15_000))
    })?;
    let fastest = rounds.iter().map(|rounds| Measured::median(rounds).per_second);
    Ok(fastest.fold(f64::INFINITY, f64::min) / 2.0)
}

impl Contender {
    fn new(name: &'static str, server: Server, question: Question) -> Self {
        Self { name, asked: Some((server, question)) }
    }

    /// Of so many questions a second, for so long.
    fn delays(&self, rate: f64, time: Duration, seed: u64) -> Result<Delays, Box<dyn Error>> {
        let connect = |_| -> Result<_, Box<dyn Error>> {
            let asked = self.asked.as_ref();
            asked.map(|(server, question)| connect(server.address(), question)).transpose()
        };
        let callers: Vec<_> = (0..h2load::CONNECTIONS).map(connect).collect::<Result<_, _>>()?;
        let begun = Instant::now() + BREATH;
        let rate = rate / callers.len() as f64;
        let all = thread::scope(|scope| {
            let threads: Vec<_> = (callers.into_iter().zip(0..))
                .map(|(caller, nth)| {
                    let due = Poisson::new(rate, time, (seed << 8) | nth);
                    scope.spawn(move || ask(caller, due, begun))
                })
                .collect();
            let ended = threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| "a caller panicked".to_owned()).flatten());
            ended.collect::<Result<Vec<_>, _>>()
        })?;
        let mut delays = empty()?;
        for its in &all {
            delays.add(its)?;
        }
        Ok(Delays::of(&delays))
    }
}

/// Connects, and asks once: what is done once is not measured.
fn connect(server: SocketAddr, question: &Question) -> Result<Caller, Box<dyn Error>> {
    let mut caller = Caller::connect(server, question)?;
    caller.ask()?;
    Ok(caller)
}

/// An error is text, since it leaves its thread.
fn ask(mut caller: Option<Caller>, due: Poisson, begun: Instant) -> Result<Histogram<u64>, String> {
    let ask = || caller.as_mut().map_or(Ok(()), |caller| caller.ask().map(drop));
    delays(due, &WallClock::new(begun), ask).map_err(|error| error.to_string())
}

impl Delays {
    fn of(all: &Histogram<u64>) -> Self {
        let us = |quantile| all.value_at_quantile(quantile) as f64 / 1e3;
        Self { p50: us(0.50), p99: us(0.99), p999: us(0.999) }
    }
}
