//! What it costs the server to be watched: `/v1/check` with everything gathered, beside nothing.

use std::error::Error;

use lab::part::{Effort, Part};
use lab::server::Server;
use lab::table::Table;
use lab::targets::{Aim, Bound};

use crate::callers::Load;
use crate::rounds::{Measured, interleaved};

const WATCHED: Aim = Aim {
    text: "the server watched, requests/s in those of one that is not",
    bound: Bound::AtLeast(0.95),
    limited_by: "",
};

const INTRODUCTION: &str = "
### Watched

`/v1/check` with all that the admin address gathers (metrics, top) and the sampled log of denials, as it is by default, beside `--admin none --log-denials 0`. 16 connections that are kept, three rules, in memory, and many tenants; the callers run on the same two cores.";

/// Three rules under which everything fits.
const ROOMY: &str = "
rules:
  - { name: per-tenant, per: [tenant], limits: [1000000/s, 100000000/h] }
  - { name: writes, when: { method: POST }, per: [tenant, route], limits: [1000000/s] }
  - { name: everybody, limits: [100000000/s] }
";

/// The same, under which next to nothing fits.
const NARROW: &str = "
rules:
  - { name: per-tenant, per: [tenant], limits: [3/h, 30/d] }
  - { name: writes, when: { method: POST }, per: [tenant, route], limits: [1000000/s] }
  - { name: everybody, limits: [100000000/s] }
";

/// What is asked, and how.
const LOADS: [Load; 4] = [
    Load { name: "all allowed", policy: ROOMY, tenants: 10_000, depth: 1 },
    Load { name: "all allowed, 16 at a time", policy: ROOMY, tenants: 10_000, depth: 16 },
    Load { name: "nearly all denied", policy: NARROW, tenants: 1_000, depth: 1 },
    Load { name: "nearly all denied, 16 at a time", policy: NARROW, tenants: 1_000, depth: 16 },
];

/// By default.
const GATHERING: [&str; 2] = ["--admin", "127.0.0.1:0"];

const GATHERING_NOTHING: [&str; 4] = ["--admin", "none", "--log-denials", "0"];

pub fn run(effort: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.say(INTRODUCTION);
    part.progress.expect(LOADS.len());
    let mut table = Table::new([
        "`/v1/check`",
        "watched, requests/s",
        "unwatched, requests/s",
        "throughput",
        "watched, CPU µs",
        "unwatched, CPU µs",
        "denied",
    ]);
    for load in &LOADS {
        part.progress.step(load.name);
        let [watched, unwatched] = compare(effort, load)?;
        let throughput = watched.per_second / unwatched.per_second;
        table.row([
            load.name.to_owned(),
            format!("{:.0}", watched.per_second),
            format!("{:.0}", unwatched.per_second),
            format!("{throughput:.3}"),
            format!("{:.2}", watched.cpu_us),
            format!("{:.2}", unwatched.cpu_us),
            format!("{:.0} %", 100.0 * watched.denied),
        ]);
        part.hold(&WATCHED, throughput);
    }
    part.table(&table);
    Ok(())
}

fn compare(effort: Effort, load: &Load) -> Result<[Measured; 2], Box<dyn Error>> {
    let servers = [start(load.policy, &GATHERING)?, start(load.policy, &GATHERING_NOTHING)?];
    let requests = effort.pick(6_000, 1_500);
    let rounds = interleaved(effort.rounds(), 2, |which| load.run(&servers[which], requests))?;
    Ok([Measured::median(&rounds[0]), Measured::median(&rounds[1])])
}

fn start(policy: &str, flags: &[&str]) -> Result<Server, Box<dyn Error>> {
    let flags = [&["--grpc", "none"], flags].concat();
    Server::start(policy.as_bytes(), " listening on http://", |file| {
        Server::slidegate(file, &flags)
    })
}
