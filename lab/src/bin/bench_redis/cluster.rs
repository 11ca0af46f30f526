//! The same callers beside one Redis and beside a Redis Cluster of three masters.

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lab::draw::Draw;
use lab::part::Part;
use lab::table::Table;
use slidegate::Algorithm;
use slidegate_redis::{RedisStore, Settings};
use tokio::runtime::Runtime;

use crate::Scope;
use crate::crowd::{Asker, CALLERS, Course, Errand, runtime, turn};
use crate::rounds::median;
use crate::server::{Server, free_port};
use crate::side::Slidegate;

const KEYS: usize = 100_000;

const MASTERS: u16 = 3;

const SLOTS: u16 = 16_384;

/// How long masters may take to find each other.
const PATIENCE: Duration = Duration::from_secs(20);

/// Servers, and callers of a store over all of them.
struct Seat {
    name: &'static str,
    servers: Vec<Server>,
    asker: Arc<Asker>,
}

impl Seat {
    fn new(
        name: &'static str,
        servers: Vec<Server>,
        address: &str,
        runtime: &Runtime,
    ) -> Result<Self, Box<dyn Error>> {
        let _in_it = runtime.enter();
        let slidegate = Arc::new(Slidegate::new(&["1000000/d"], Algorithm::SlidingWindow)?);
        let settings = Settings {
            timeout: Duration::from_secs(5),
            deny_cache_ttl: Duration::ZERO,
            ..Settings::default()
        };
        let store = RedisStore::open(address, settings)?;
        Ok(Self { name, servers, asker: Arc::new(Asker::Store { slidegate, store }) })
    }
}

/// Measures both.
pub fn run(scope: Scope, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.progress.expect(2);
    part.progress.step("a Redis Cluster of three masters begins");
    let runtime = runtime()?;
    let one = Server::start()?;
    let address = one.address();
    let masters = masters()?;
    let seeds: Vec<String> = masters.iter().map(Server::host_and_port).collect();
    let mut seats = [
        Seat::new("one Redis", vec![one], &address, &runtime)?,
        Seat::new(
            "three masters",
            masters,
            &format!("redis+cluster://{}", seeds.join(",")),
            &runtime,
        )?,
    ];
    part.progress.step(&format!("{CALLERS} callers beside one Redis and beside three masters"));
    let mut rounds: [Vec<Course>; 2] = Default::default();
    // In the first one scripts are made known and connections made.
    for round in 0..=scope.crowd_rounds {
        for nth in 0..seats.len() {
            let at = (round + nth) % seats.len();
            let (draw, asks) = (Draw::Uniform(KEYS), scope.crowd_asks);
            let errand = Errand { draw, asks, every: None, seed: round as u64 };
            let asker = seats[at].asker.clone();
            let course = turn(&runtime, &mut seats[at].servers, &asker, &errand)?;
            if round > 0 {
                rounds[at].push(course);
            }
        }
    }
    part.say(format!(
        "### A Redis Cluster\n\n{CALLERS} callers as above, over {KEYS} identities, all allowed: one Redis beside three \
         masters, on the same two cores, so the masters share what one has alone. What it shows is what a decision \
         costs when asks go to three servers: fewer go together in a call. CPU of all servers in microseconds per \
         decision, times in milliseconds."
    ));
    part.table(&table(&seats, &rounds));
    Ok(())
}

fn table(seats: &[Seat; 2], rounds: &[Vec<Course>; 2]) -> Table {
    let columns = ["", "per second", "CPU, us", "asks per call", "p50, ms", "p99, ms"];
    let mut table = Table::new(columns);
    for (seat, courses) in seats.iter().zip(rounds) {
        let of = |field: fn(&Course) -> f64| median(courses.iter().map(field));
        table.row([
            seat.name.to_owned(),
            format!("{:.0}", of(|course| course.per_second)),
            format!("{:.1}", of(|course| course.cpu_us)),
            format!("{:.0}", of(|course| course.asks / course.calls)),
            format!("{:.2}", of(|course| course.p50_ms)),
            format!("{:.2}", of(|course| course.p99_ms)),
        ]);
    }
    table
}

/// Masters that have found each other and share all slots.
fn masters() -> Result<Vec<Server>, Box<dyn Error>> {
    let mut masters: Vec<Server> = (0..MASTERS).map(|_| master()).collect::<Result<_, _>>()?;
    let first = masters[0].host_and_port();
    let (host, port) = first.split_once(':').ok_or("an address without a port")?;
    for (nth, master) in (0..MASTERS).zip(&mut masters) {
        let from = u32::from(nth) * u32::from(SLOTS) / u32::from(MASTERS);
        let to = u32::from(nth + 1) * u32::from(SLOTS) / u32::from(MASTERS) - 1;
        let slots = redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(from).arg(to).clone();
        master.ask::<String>(&slots)?;
    }
    let bus: String = masters[0]
        .ask(redis::cmd("CONFIG").arg("GET").arg("cluster-port"))
        .map(|words: Vec<String>| words.into_iter().next_back().unwrap_or_default())?;
    for master in &mut masters[1..] {
        master.ask::<String>(redis::cmd("CLUSTER").arg("MEET").arg(host).arg(port).arg(&bus))?;
    }
    for master in &mut masters {
        wait(master)?;
    }
    Ok(masters)
}

/// Each writes what it knows of the others into a file of its own, in the folder of what is built.
fn master() -> Result<Server, Box<dyn Error>> {
    let bus = free_port()?.to_string();
    let file = std::env::current_exe()?.with_file_name(format!("bench-redis-nodes-{bus}.conf"));
    let file = file.display().to_string();
    Server::start_with(&[
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &bus,
        "--cluster-config-file",
        &file,
    ])
}

/// Until a master knows who has every slot.
fn wait(master: &mut Server) -> Result<(), Box<dyn Error>> {
    let begun = quanta::Instant::now();
    while begun.elapsed() < PATIENCE {
        let info: String = master.ask(redis::cmd("CLUSTER").arg("INFO"))?;
        let known = format!("cluster_known_nodes:{MASTERS}");
        if info.contains("cluster_state:ok") && info.contains(&known) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(50));
    }
    Err("the masters do not find each other".into())
}
