//! Callers whose asks go together beside one call for each ask.

use std::error::Error;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use lab::draw::Draw;
use lab::part::Part;
use lab::table::Table;
use lab::targets::{Aim, Bound};
use redis::Cmd;
use slidegate::{Algorithm, Clock, SystemClock, Timestamp};
use slidegate_redis::{RedisStore, Settings};
use tokio::runtime::Runtime;

use crate::Scope;
use crate::crowd::{Asker, CALLERS, Course, Errand, runtime, turn};
use crate::rounds::median;
use crate::server::Server;
use crate::side::{Side, Slidegate, plain_key};
use crate::two_keys::{self, DAY_S};

const KEYS: usize = 100_000;

const FEW: usize = 10;

/// More than is asked for of anybody, of those who are not full.
const MAX: u64 = 1_000_000;

/// What was charged in the window before.
const PREVIOUS: u64 = 300;

const CPU_LIMITED_BY: &str = "Redis's own work: to receive 96 names, MGET them all and SET half of them takes two fifths \
    of a call for each ask, without any decision, half of that in looking keys up (by a profile): a batch that decided \
    nothing would reach 2.5. Tried without gain: SETRANGE, shorter answers, one pack for all, no garbage collection.";

const P99: Aim = Aim {
    text: "200 callers together, p99 in times of those alone",
    bound: Bound::AtMost(1.0),
    limited_by: "",
};

const TWO_KEYS: Aim = Aim {
    text: "200 callers, two-count window beside two keys, CPU",
    bound: Bound::AtMost(0.45),
    limited_by: "between runs the worst row moves between 0.41 and 0.46.",
};

/// Measures one limit, then three.
pub fn run(scope: Scope, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.progress.expect(if scope.is_short { 6 } else { 8 });
    part.say(format!(
        "### {CALLERS} callers at once\n\nTasks of one program on one thread, each with one ask at a time. \"Together\": slidegate's store, without its \
         deny cache. \"Alone\": the same scripts, a call for each ask, all over one connection that they share. \
         sliding_window; identities of {KEYS}, or of {FEW}; about half of all asks are of those who are full. CPU in \
         microseconds per decision, times in milliseconds from asking to knowing."
    ));
    let runtime = runtime()?;
    let (mut table, mut two_keys) = (crowd_table(), crowd_table());
    one_limit(scope, &runtime, &mut table, &mut two_keys, part)?;
    if !scope.is_short {
        three_limits(scope, &runtime, &mut table, part)?;
    }
    part.table(&table);
    part.say("Beside the two-key script, a call for each ask over one connection:");
    part.table(&two_keys);
    Ok(())
}

fn crowd_table() -> Table {
    Table::new([
        "",
        "together, us",
        "alone, us",
        "decisions per CPU second",
        "p50, ms",
        "",
        "p99, ms",
        "",
        "times",
        "asks per call",
        "per second",
        "",
        "denied",
    ])
}

/// Whether an identity is full. The same share of those who ask often as of others.
fn is_full(who: usize) -> bool {
    matches!(who % 4, 0 | 3)
}

/// Who asks a server, by the caller's clock and by Redis's.
struct Seat {
    server: Server,
    told: Arc<Asker>,
    by_time: Arc<Asker>,
}

impl Seat {
    fn asker(&self, is_told: bool) -> &Arc<Asker> {
        if is_told { &self.told } else { &self.by_time }
    }

    /// By slidegate's store.
    fn together(runtime: &Runtime, slidegate: &Arc<Slidegate>) -> Result<Self, Box<dyn Error>> {
        let server = Server::start()?;
        let _in_it = runtime.enter();
        // So long that a busy machine is seen in the times, and not in failures.
        let timeout = Duration::from_secs(5);
        let store = || {
            let settings =
                Settings { timeout, deny_cache_ttl: Duration::ZERO, ..Settings::default() };
            RedisStore::open(&server.address(), settings)
        };
        let asker = |store| Arc::new(Asker::Store { slidegate: slidegate.clone(), store });
        let told = asker(store()?.with_clock(SystemClock::new()));
        let by_time = asker(store()?);
        Ok(Self { told, by_time, server })
    }

    /// By these scripts, one call for each ask.
    fn alone(
        runtime: &Runtime,
        told: Arc<dyn Side>,
        by_time: Arc<dyn Side>,
    ) -> Result<Self, Box<dyn Error>> {
        let mut server = Server::start()?;
        server.load(&told.script())?;
        server.load(&by_time.script())?;
        let connection = runtime.block_on(server.share())?;
        let asker = |side, clock| {
            Arc::new(Asker::EachAlone { side, connection: connection.clone(), clock })
        };
        let (told, by_time) = (asker(told, Some(SystemClock::new())), asker(by_time, None));
        Ok(Self { server, told, by_time })
    }
}

fn one_limit(
    scope: Scope,
    runtime: &Runtime,
    table: &mut Table,
    two_keys: &mut Table,
    part: &mut Part,
) -> Result<(), Box<dyn Error>> {
    let quota = format!("{MAX}/d");
    let slidegate = Arc::new(Slidegate::new(&[&quota], Algorithm::SlidingWindow)?);
    let mut seats = [
        Seat::together(runtime, &slidegate)?,
        Seat::alone(runtime, slidegate.clone(), slidegate.clone())?,
        Seat::alone(runtime, Arc::new(two_keys::told(MAX)), Arc::new(two_keys::by_time(MAX)))?,
    ];
    let now = SystemClock::new().now();
    for seat in &mut seats[..2] {
        seat.server.load(&slidegate.script_of_one())?;
        seat.server.send_all(spent(&slidegate, now, &[DAY_S]))?;
    }
    seats[2].server.send_all(spent_plain(now))?;
    for (name, draw) in [
        ("uniform", Draw::Uniform(KEYS)),
        ("Zipf", Draw::zipf(KEYS)),
        ("10 identities", Draw::Uniform(FEW)),
    ] {
        for is_told in [true, false] {
            let name = format!("{name}, {}", clock_name(is_told));
            part.progress.step(&format!("{name}: {CALLERS} callers"));
            let is_few = matches!(draw, Draw::Uniform(FEW));
            let rounds = rounds(scope, runtime, &mut seats, &draw, is_told)?;
            let beside_alone = compared(&rounds, 1);
            row(&name, &beside_alone, table);
            beside_alone.hold(if is_few { Limits::OneOfFew } else { Limits::One }, part);
            let beside_plain = compared(&rounds, 2);
            row(&name, &beside_plain, two_keys);
            part.hold(&TWO_KEYS, 1.0 / beside_plain.times);
        }
    }
    Ok(())
}

fn three_limits(
    scope: Scope,
    runtime: &Runtime,
    table: &mut Table,
    part: &mut Part,
) -> Result<(), Box<dyn Error>> {
    let quotas = ["min", "h", "d"].map(|window| format!("{MAX}/{window}"));
    let quotas = quotas.each_ref().map(String::as_str);
    let slidegate = Arc::new(Slidegate::new(&quotas, Algorithm::SlidingWindow)?);
    let mut seats = [
        Seat::together(runtime, &slidegate)?,
        Seat::alone(runtime, slidegate.clone(), slidegate.clone())?,
    ];
    let now = SystemClock::new().now();
    for seat in &mut seats {
        seat.server.load(&slidegate.script_of_one())?;
        seat.server.send_all(spent(&slidegate, now, &[60, 3600, DAY_S]))?;
    }
    for is_told in [true, false] {
        let name = format!("three limits, uniform, {}", clock_name(is_told));
        part.progress.step(&format!("{name}: {CALLERS} callers"));
        let draw = Draw::Uniform(KEYS);
        let rounds = rounds(scope, runtime, &mut seats, &draw, is_told)?;
        let beside_alone = compared(&rounds, 1);
        row(&name, &beside_alone, table);
        beside_alone.hold(Limits::Three, part);
    }
    Ok(())
}

fn clock_name(is_told: bool) -> &'static str {
    if is_told { "caller's clock" } else { "TIME" }
}

/// Everybody has asked in the window before; in this one who is full has spent all of the longest.
fn spent(slidegate: &Slidegate, now: Timestamp, windows_s: &[u64]) -> impl Iterator<Item = Cmd> {
    let last = windows_s.len() - 1;
    (0..KEYS).flat_map(move |who| {
        windows_s.iter().enumerate().flat_map(move |(nth, window_s)| {
            let before = Timestamp::from_micros(now.as_micros() - window_s * 1_000_000);
            let units = if is_full(who) && nth == last { MAX } else { 1 };
            [slidegate.spend(who, nth, PREVIOUS, before), slidegate.spend(who, nth, units, now)]
        })
    })
}

/// The same for the two-key script.
fn spent_plain(now: Timestamp) -> impl Iterator<Item = Cmd> {
    let number = now.as_micros() / (DAY_S * 1_000_000);
    (0..KEYS).flat_map(move |who| {
        let units = if is_full(who) { MAX } else { 1 };
        [(number - 1, PREVIOUS), (number, units)].map(|(number, count)| {
            let mut command = redis::cmd("SET");
            let key = format!("{}:{number}", plain_key(who));
            command.arg(key).arg(count).arg("EX").arg(2 * DAY_S);
            command
        })
    })
}

/// Rounds in which all seats take turns.
fn rounds(
    scope: Scope,
    runtime: &Runtime,
    seats: &mut [Seat],
    draw: &Draw,
    is_told: bool,
) -> Result<Vec<Vec<Course>>, Box<dyn Error>> {
    let mut rounds = Vec::new();
    // In the first one scripts are made known and connections made.
    for nth in 0..=scope.crowd_rounds {
        let draw = draw.clone();
        let errand = Errand { draw, asks: scope.crowd_asks, every: None, seed: nth as u64 };
        let mut courses = vec![Course::default(); seats.len()];
        // Who comes first changes, too.
        for at in 0..seats.len() {
            let at = (at + nth) % seats.len();
            let seat = &mut seats[at];
            let asker = seat.asker(is_told).clone();
            courses[at] = turn(runtime, slice::from_mut(&mut seat.server), &asker, &errand)?;
        }
        rounds.push(courses);
    }
    Ok(rounds.split_off(1))
}

/// What is counted.
#[derive(Clone, Copy)]
enum Limits {
    One,
    OneOfFew,
    Three,
}

impl Limits {
    fn cpu_text(self) -> &'static str {
        match self {
            Self::One => "200 callers together, decisions per CPU second in times of those alone",
            Self::OneOfFew => "200 callers together, of 10 identities, the same",
            Self::Three => "200 callers together, three limits, the same",
        }
    }
}

/// The first seat beside another: medians of the rounds, and of their ratios.
struct Compared {
    own: Course,
    other: Course,
    /// Decisions per CPU second, in times of the other's.
    times: f64,
    /// p99 in times of the other's.
    p99: f64,
}

impl Compared {
    fn hold(&self, limits: Limits, part: &mut Part) {
        let text = limits.cpu_text();
        let aim = Aim { text, bound: Bound::AtLeast(2.0), limited_by: CPU_LIMITED_BY };
        part.hold(&aim, self.times);
        part.hold(&P99, self.p99);
    }
}

fn compared(rounds: &[Vec<Course>], other: usize) -> Compared {
    let of = |of: &dyn Fn(&[Course]) -> f64| median(rounds.iter().map(|round| of(round)));
    let course = |at: usize| Course {
        cpu_us: of(&|round| round[at].cpu_us),
        p50_ms: of(&|round| round[at].p50_ms),
        p99_ms: of(&|round| round[at].p99_ms),
        calls: of(&|round| round[at].calls),
        asks: of(&|round| round[at].asks),
        denied: of(&|round| round[at].denied),
        per_second: of(&|round| round[at].per_second),
    };
    Compared {
        own: course(0),
        other: course(other),
        times: of(&|round| round[other].cpu_us / round[0].cpu_us),
        p99: of(&|round| round[0].p99_ms / round[other].p99_ms),
    }
}

fn row(name: &str, compared: &Compared, table: &mut Table) {
    let Compared { own, other, times, p99 } = compared;
    let [own_rate, other_rate] = [own, other].map(|course| format!("{:.0}", course.per_second));
    table.row([
        name.to_owned(),
        format!("{:.1}", own.cpu_us),
        format!("{:.1}", other.cpu_us),
        format!("{times:.2}x"),
        format!("{:.2}", own.p50_ms),
        format!("{:.2}", other.p50_ms),
        format!("{:.2}", own.p99_ms),
        format!("{:.2}", other.p99_ms),
        format!("{p99:.2}x"),
        format!("{:.0}", own.asks / own.calls),
        own_rate,
        other_rate,
        format!("{:.2}, {:.2}", own.denied, other.denied),
    ]);
}
