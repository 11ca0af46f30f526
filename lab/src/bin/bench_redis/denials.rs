//! Few identities that ask for far more than they may have: what the deny cache spares Redis.

use std::error::Error;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use lab::draw::Draw;
use lab::part::Part;
use lab::table::Table;
use lab::targets::{Aim, Bound};
use slidegate::{Algorithm, ManualClock, Timestamp};
use slidegate_redis::{RedisStore, Settings};
use tokio::runtime::Runtime;

use crate::Scope;
use crate::course::Ask;
use crate::crowd::{Asker, CALLERS, Course, Errand, runtime, turn};
use crate::server::Server;
use crate::side::{Side, Slidegate};

const KEYS: usize = 10;

/// When it begins: where windows begin, too.
const BEGIN_S: u64 = 500_000 * 3600;

/// Of so many asks one is admitted, and how many times fewer calls are aimed at.
const SHARES: [(u64, f64, &str); 2] = [
    (20, 10.0, "deny cache, 95 % denied, times fewer calls"),
    (100, 40.0, "deny cache, 99 % denied, times fewer calls"),
];

const SAME: Aim =
    Aim { text: "deny cache, asks decided otherwise", bound: Bound::AtMost(0.0), limited_by: "" };

/// Measures one caller by a manual clock, then many at a pace.
pub fn run(scope: Scope, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.progress.expect(9 + SHARES.len());
    part.say(format!(
        "### The deny cache\n\n{KEYS} identities ask at an even pace for 20 or 100 times what they may have. One caller that has one ask at a \
         time, by a clock that is moved from ask to ask, so that nothing waits; {} asks after windows are full. The \
         same asks of a store that believes denials for a second and of one that asks Redis each time, each with a \
         redis-server of its own. The rows of 600/h, where a second is less than a unit takes, are no target.",
        scope.denials
    ));
    let runtime = runtime()?;
    let mut table = Table::new([
        "",
        "denied",
        "asks",
        "calls without",
        "calls with",
        "times fewer",
        "decided otherwise",
    ]);
    for algorithm in [
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
        Algorithm::TokenBucket { burst: None, max_debt: None },
    ] {
        for (max, window, window_s) in [(100, "s", 1), (600, "min", 60), (600, "h", 3600)] {
            let case = Case { algorithm, max, window, window_s };
            one_caller(scope, &runtime, &case, &mut table, part)?;
        }
    }
    part.table(&table);
    many_callers(scope, &runtime, part)
}

/// A limit.
struct Case {
    algorithm: Algorithm,
    max: u64,
    window: &'static str,
    window_s: u64,
}

impl Case {
    fn quota(&self) -> String {
        format!("{}/{}", self.max, self.window)
    }

    /// From one ask to the next, if all identities together ask for just what they may have.
    fn even_us(&self) -> u64 {
        self.window_s * 1_000_000 / (self.max * KEYS as u64)
    }
}

/// A store at a server of its own.
struct Seat {
    server: Server,
    store: RedisStore,
}

impl Seat {
    fn new(deny_cache_ttl: Duration, clock: &ManualClock) -> Result<Self, Box<dyn Error>> {
        let server = Server::start()?;
        let settings = Settings { deny_cache_ttl, ..patient() };
        let store = RedisStore::open(&server.address(), settings)?.with_clock(clock.clone());
        Ok(Self { server, store })
    }
}

/// So long that a busy machine breaks nothing, and that nothing expires while a manual clock stands nearly still.
fn patient() -> Settings {
    let (timeout, expiry_margin) = (Duration::from_secs(5), Duration::from_secs(86_400));
    Settings { timeout, expiry_margin, ..Settings::default() }
}

fn one_caller(
    scope: Scope,
    runtime: &Runtime,
    case: &Case,
    table: &mut Table,
    part: &mut Part,
) -> Result<(), Box<dyn Error>> {
    let slidegate = Slidegate::with_settings(&[&case.quota()], case.algorithm, &patient())?;
    let name = format!("{}, {}", case.algorithm.name(), case.quota());
    part.progress.step(&format!("{name}: one caller"));
    for (pace, aim, text) in SHARES {
        let _in_it = runtime.enter();
        let clock = ManualClock::at(Timestamp::from_secs(BEGIN_S));
        let mut seats =
            [Seat::new(Duration::ZERO, &clock)?, Seat::new(patient().deny_cache_ttl, &clock)?];
        for seat in &mut seats {
            fill(seat, &slidegate, case)?;
        }
        clock.advance(Duration::from_secs(2 * case.window_s));
        let before = [seats[0].server.calls()?, seats[1].server.calls()?];
        let step = Duration::from_nanos(case.even_us() * 1_000 / pace);
        let (denied, differing) =
            runtime.block_on(ask_both(&slidegate, &seats, &clock, scope.denials, step))?;
        let [without, with] = [0, 1].map(|at: usize| seats[at].server.calls());
        let [without, with] = [without? - before[0], with? - before[1]];
        table.row([
            name.clone(),
            format!("{:.3}", denied as f64 / scope.denials as f64),
            scope.denials.to_string(),
            without.to_string(),
            with.to_string(),
            format!("{:.1}", without / with),
            differing.to_string(),
        ]);
        if case.window_s < 3600 {
            let aim = Aim { text, bound: Bound::AtLeast(aim), limited_by: "" };
            part.hold(&aim, without / with);
        }
        part.hold(&SAME, differing as f64);
    }
    Ok(())
}

/// Two windows in which everybody takes what there is, at an even pace, after all of the first was spent at once.
fn fill(seat: &mut Seat, slidegate: &Slidegate, case: &Case) -> Result<(), Box<dyn Error>> {
    seat.server.load(&slidegate.script())?;
    let begin = Timestamp::from_secs(BEGIN_S);
    let spent = (0..KEYS).map(|who| slidegate.spend(who, 0, case.max, begin));
    let asks = 2 * case.max * KEYS as u64;
    let even = (0..asks).map(|nth| {
        let now = begin.after(Duration::from_micros(nth * case.even_us()));
        slidegate.take(Ask { who: nth as usize % KEYS, nth, now: Some(now) })
    });
    seat.server.send_all(spent.chain(even))
}

/// How many of the same asks were denied by the first, and how many decided otherwise by the second.
async fn ask_both(
    slidegate: &Slidegate,
    [without, with]: &[Seat; 2],
    clock: &ManualClock,
    asks: usize,
    step: Duration,
) -> Result<(usize, usize), Box<dyn Error>> {
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut denied, mut differing) = (0, 0);
    for _ in 0..asks {
        let who = rng.usize(0..KEYS);
        let admitted = slidegate.take_by(&without.store, who).await?;
        let same = slidegate.take_by(&with.store, who).await? == admitted;
        denied += usize::from(!admitted);
        differing += usize::from(!same);
        clock.advance(step);
    }
    Ok((denied, differing))
}

/// Callers at once, at a pace: what waits goes together without the cache, too.
fn many_callers(scope: Scope, runtime: &Runtime, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.say(format!(
        "{CALLERS} callers at once and the machine's clock, by TIME, sliding_window of 20/s: asks that wait go together \
         without the cache, too. No target."
    ));
    let mut table = Table::new([
        "",
        "denied",
        "asks",
        "calls without",
        "calls with",
        "times fewer",
        "CPU without, us",
        "with, us",
        "times less",
    ]);
    let slidegate = Arc::new(Slidegate::new(&["20/s"], Algorithm::SlidingWindow)?);
    for (pace, _, _) in SHARES {
        let per_second = 20 * KEYS as u64 * pace;
        part.progress.step(&format!("{CALLERS} callers, {per_second} asks per second"));
        let every = Duration::from_secs(1) * CALLERS as u32 / per_second as u32;
        let courses = [Duration::ZERO, patient().deny_cache_ttl].map(|deny_cache_ttl| {
            let _in_it = runtime.enter();
            let mut server = Server::start()?;
            let store =
                RedisStore::open(&server.address(), Settings { deny_cache_ttl, ..patient() })?;
            let asker = Arc::new(Asker::Store { slidegate: slidegate.clone(), store });
            let errand = |seconds: u64, seed| Errand {
                draw: Draw::Uniform(KEYS),
                asks: (per_second * seconds) as usize,
                every: Some(every),
                seed,
            };
            turn(runtime, slice::from_mut(&mut server), &asker, &errand(2, 0))?;
            turn(runtime, slice::from_mut(&mut server), &asker, &errand(scope.denial_seconds, 1))
        });
        let [without, with]: [Result<Course, Box<dyn Error>>; 2] = courses;
        let (without, with) = (without?, with?);
        table.row([
            format!("{per_second} asks per second"),
            format!("{:.3}, {:.3}", without.denied, with.denied),
            format!("{:.0}", without.asks),
            format!("{:.0}", without.calls),
            format!("{:.0}", with.calls),
            format!("{:.1}", without.calls / with.calls),
            format!("{:.2}", without.cpu_us),
            format!("{:.2}", with.cpu_us),
            format!("{:.1}", without.cpu_us / with.cpu_us),
        ]);
    }
    part.table(&table);
    Ok(())
}
