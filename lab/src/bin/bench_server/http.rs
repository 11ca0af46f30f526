//! HTTP beside bare services of axum, and beside throttlecrab.

use std::error::Error;

use lab::chart::{Bar, bars};
use lab::part::{Effort, Part};
use lab::server::Server;
use lab::table::Table;
use lab::targets::{Aim, Bound};

use crate::question::{Face, Question};
use crate::rounds::{Measured, interleaved};
use crate::{contenders, h2load};

const BESIDE_AXUM: Aim = Aim {
    text: "HTTP `/v1/check`, requests/s in those of the faster bare axum",
    bound: Bound::AtLeast(0.85),
    limited_by: "by callgrind a third of slidegate's own instructions are hyper's, which axum pays alike; the rest are a \
        fifth for three limits decided, counted and timed, a tenth each to write the JSON, to write the headers, and \
        to read the question. Tried, and kept: no router and no layers on the paths that decide, which made boxes for \
        each request; a thread for each connection from its beginning to its end; no future of Redis within that of a \
        decision in memory; JSON without serde. Together they halved the instructions.",
};

const BESIDE_THROTTLECRAB: Aim = Aim {
    text: "HTTP `/v1/check` with three rules, requests per CPU second in those of throttlecrab-server with one",
    bound: Bound::AtLeast(1.3),
    limited_by: "axum that decides nothing is not much further ahead of throttlecrab (the table has it): the kernel and \
        hyper take most of a request on both sides. Three limits instead of one, and an answer that tells of all three \
        in headers and in JSON of several times the bytes, take what is left. What was tried stands with the target \
        beside axum.",
};

const INTRODUCTION: &str = "
### HTTP

Each server is a process of its own, and h2load asks it on 50 connections that are kept, from the same two cores. `/v1/check` and forward-auth (`/v1/auth`) are decided by three rules in memory, with everything gathered that is gathered by default. Beside it stand a service of axum that answers the very same bytes and headers to whatever it is asked (`axum::serve`, the body taken as bytes; once on one thread, once on two workers), and throttlecrab-server, which has one limit for each question and answers fewer bytes. With one body there is one key for each rule: all threads count the same ones. All is allowed. Of other peers in Rust, limitador's server is not published as a package, so it is not here.";

struct Load {
    name: &'static str,
    question: fn() -> Question,
    /// Questions that a connection has under way at once.
    depth: usize,
    /// Whether throttlecrab knows such a question.
    has_peer: bool,
    is_aimed_at: bool,
}

const LOADS: [Load; 3] = [
    Load {
        name: "`/v1/check`",
        question: Question::check,
        depth: 1,
        has_peer: true,
        is_aimed_at: true,
    },
    Load {
        name: "`/v1/check`, 16 at once",
        question: Question::check,
        depth: 16,
        has_peer: true,
        is_aimed_at: false,
    },
    Load {
        name: "forward-auth",
        question: Question::auth,
        depth: 1,
        has_peer: false,
        is_aimed_at: false,
    },
];

/// A server and what it is asked.
struct Contender {
    name: &'static str,
    server: Server,
    question: Question,
}

pub fn run(effort: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.say(INTRODUCTION);
    part.progress.expect(LOADS.len());
    let mut table = Table::new([
        "asked",
        "server",
        "requests/s",
        "slidegate's in times of it",
        "CPU s per 1 M",
        "requests per CPU second, slidegate's in times of it",
    ]);
    for load in &LOADS {
        part.progress.step(load.name);
        let contenders = load.contenders()?;
        let measured = load.measure(effort, &contenders)?;
        for (contender, measured_of) in contenders.iter().zip(&measured) {
            table.row(row(load, contender, measured_of, &measured[0]));
        }
        if load.is_aimed_at {
            hold(part, &measured);
            draw(part, &contenders, &measured)?;
        }
    }
    part.table(&table);
    Ok(())
}

impl Load {
    /// slidegate before all others.
    fn contenders(&self) -> Result<Vec<Contender>, Box<dyn Error>> {
        let question = (self.question)();
        let slidegate = contenders::slidegate(Face::Http)?;
        let answer = contenders::answer(&slidegate, &question)?;
        let bare = |threads| contenders::bare(Face::Http, threads, &answer);
        let mut all = vec![
            Contender { name: "slidegate", server: slidegate, question: question.clone() },
            Contender { name: "axum, one thread", server: bare(0)?, question: question.clone() },
            Contender { name: "axum, two workers", server: bare(2)?, question },
        ];
        if self.has_peer {
            let server = contenders::throttlecrab(Face::Http)?;
            all.push(Contender { name: "throttlecrab", server, question: Question::throttle() });
        }
        Ok(all)
    }

    fn measure(
        &self,
        effort: Effort,
        contenders: &[Contender],
    ) -> Result<Vec<Measured>, Box<dyn Error>> {
        let requests = effort.pick(60_000, 20_000);
        let rounds = interleaved(effort.rounds(), contenders.len(), |which| {
            let Contender { server, question, .. } = &contenders[which];
            h2load::run(server, question, self.depth, requests)
        })?;
        Ok(rounds.iter().map(|rounds| Measured::median(rounds)).collect())
    }
}

fn row(load: &Load, contender: &Contender, its: &Measured, own: &Measured) -> [String; 6] {
    [
        load.name.to_owned(),
        contender.name.to_owned(),
        format!("{:.0}", its.per_second),
        format!("{:.2}", own.per_second / its.per_second),
        format!("{:.1}", its.cpu_us),
        format!("{:.2}", its.cpu_us / own.cpu_us),
    ]
}

fn hold(part: &mut Part, measured: &[Measured]) {
    if let [own, one_thread, two_workers, throttlecrab] = measured {
        let faster = one_thread.per_second.max(two_workers.per_second);
        part.hold(&BESIDE_AXUM, own.per_second / faster);
        part.hold(&BESIDE_THROTTLECRAB, throttlecrab.cpu_us / own.cpu_us);
    }
}

fn draw(
    part: &mut Part,
    contenders: &[Contender],
    measured: &[Measured],
) -> Result<(), Box<dyn Error>> {
    let all = || contenders.iter().zip(measured);
    let bar = |name: &str, value: f64, label| Bar {
        name: name.to_owned(),
        value,
        label,
        is_own: name == "slidegate",
    };
    let fast: Vec<Bar> = all()
        .map(|(one, its)| bar(one.name, its.per_second, format!("{:.0}", its.per_second)))
        .collect();
    let svg = bars("HTTP, one request at a time on 50 connections: requests/s", &fast)?;
    part.chart("server-http", "Requests a second over HTTP", svg);
    let cheap: Vec<Bar> =
        all().map(|(one, its)| bar(one.name, its.cpu_us, format!("{:.1} s", its.cpu_us))).collect();
    let svg = bars("HTTP: CPU seconds of the server for a million requests", &cheap)?;
    part.chart("server-http-cpu", "CPU seconds of a million requests over HTTP", svg);
    Ok(())
}
