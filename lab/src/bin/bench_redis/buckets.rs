//! Measures three limits per identity, compared with a script that keeps the counts of time buckets in a hash.

use std::error::Error;
use std::time::Duration;

use lab::part::ReportPart;
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use redis::Cmd;
use slidegate::{Algorithm, Clock, SystemClock, Timestamp};

use crate::BenchScale;
use crate::counter::{bytes_per_identity, memory_row, memory_table};
use crate::request_sequence::{RequestSequence, UnitRequest};
use crate::rounds::{PIPELINED, SINGLE, ScriptServer, ScriptServerPair, TurnPlan, compare, table};
use crate::scripts::{PlainScript, SlidegateScripts, plain_key};

const IDENTITY_COUNT: usize = 100_000;

const QUOTAS_PER_IDENTITY: [&str; 3] = ["10/s", "600/min", "10000/h"];

/// The three limits of an identity, each as (window, precision, maximum). The precision is the length of a time bucket.
/// The window and the precision are in seconds.
type ThreeBucketLimits = [(u64, u64, u64); 3];

/// The limits in the article that published the script. Only the longest window slides, because it has several buckets.
/// The other windows have a single bucket each.
const LIMITS_WITH_ONE_SLIDING_WINDOW: ThreeBucketLimits =
    [(1, 1, 10), (60, 60, 600), (3600, 60, 10_000)];

/// Limits with two sliding windows. The window of a minute slides, too, because it has several buckets.
const LIMITS_WITH_TWO_SLIDING_WINDOWS: ThreeBucketLimits =
    [(1, 1, 10), (60, 5, 600), (3600, 60, 10_000)];

const MAX_CPU_RELATIVE_TO_BUCKET_HASH: BenchTarget = BenchTarget {
    text: "three limits, CPU relative to the hash of buckets",
    bound: TargetBound::AtMost(0.45),
    limited_by: "by callgrind a check takes 58,900 instructions, the hash 171,600 (0.34), but CPU time includes key \
        lookups. An empty script takes 17,000 of them, arguments 5,500, GET 5,000, the slots 4,000, three decisions \
        10,000, packing the reply 5,700, and a charge 11,000 for packing and writing. Tried: code repeated for each limit \
        (93,500 to 69,300), one table for all numbers (no gain), fewer functions (-5,000), no expiry for a key that \
        a longer window keeps (-4,000), fewer operations per decision (-2,000). Not kept: decisions without a function \
        call (-3,800), which would repeat the algorithm.",
};

/// Measures identities that have sent requests for 2 minutes or for an hour. The requests contain the time of the
/// caller, or Redis reads its own clock.
pub fn run(scale: BenchScale, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.progress.add_steps(if scale.is_quick { 2 } else { 7 });
    part.add_text(format!(
        "### Three limits per identity and the hash of buckets\n\nThe limits are 10/s, 600/min and 10000/h. The hash \
         has buckets of a second, a minute (or 5 s, so that two windows slide) and a minute. Its script receives the \
         limits as JSON and runs HGET, HGET and HDEL of expired buckets, HINCRBY and HSET for each limit, and \
         EXPIRE. There are {IDENTITY_COUNT} identities; every other one has reached the limit of the minute or the hour (with \
         TIME: of the hour). Young identities have sent requests for 2 minutes, old ones for an hour."
    ));
    let (mut costs, mut memory) = (table(), memory_table());
    let half_past = Timestamp::from_secs(500_000 * 3600 + 1805);
    for (age, minutes, limits, uses_caller_clock) in [
        ("young", 2, LIMITS_WITH_ONE_SLIDING_WINDOW, true),
        ("old", 60, LIMITS_WITH_ONE_SLIDING_WINDOW, true),
        ("old, two slide", 60, LIMITS_WITH_TWO_SLIDING_WINDOWS, true),
        ("old", 60, LIMITS_WITH_ONE_SLIDING_WINDOW, false),
    ]
    .into_iter()
    .take(if scale.is_quick { 1 } else { 4 })
    {
        let (clock, start) = match uses_caller_clock {
            true => ("caller's clock", half_past),
            false => ("TIME", SystemClock::new().now()),
        };
        let case = BucketBenchCase {
            name: format!("{age}, {clock}"),
            minutes,
            limits,
            start,
            uses_caller_clock,
        };
        measure_bucket_case(scale, &case, &mut costs, &mut memory, part)?;
    }
    part.add_table(&costs);
    part.add_table(&memory);
    Ok(())
}

/// The settings of one measurement.
struct BucketBenchCase {
    name: String,
    /// The time for which each identity has sent requests before the measurement, in minutes.
    minutes: u64,
    limits: ThreeBucketLimits,
    start: Timestamp,
    /// Whether requests contain the time of the caller. If not, Redis reads its own clock.
    uses_caller_clock: bool,
}

impl BucketBenchCase {
    /// Returns the index of the limit that the identity has reached; `None` if it has reached no limit.
    fn index_of_reached_limit(&self, identity: usize) -> Option<usize> {
        match identity % 4 {
            0 => Some(2),
            2 => Some(if self.uses_caller_clock { 1 } else { 2 }),
            _ => None,
        }
    }
}

fn measure_bucket_case(
    scale: BenchScale,
    case: &BucketBenchCase,
    costs: &mut MarkdownTable,
    memory: &mut MarkdownTable,
    part: &mut ReportPart,
) -> Result<(), Box<dyn Error>> {
    let slidegate = SlidegateScripts::new(&QUOTAS_PER_IDENTITY, Algorithm::SlidingCounter)?;
    let json = case.limits.map(|(window, precision, max)| format!("[{window},{max},{precision}]"));
    let json = format!("[{}]", json.join(","));
    let plain = PlainScript::new(include_str!("plain/buckets.lua"), |request: UnitRequest| {
        let now_s =
            request.now.map_or(String::new(), |now| (now.as_micros() / 1_000_000).to_string());
        vec![json.clone(), now_s, "1".to_owned()]
    });
    let mut contenders = [ScriptServer::new(&slidegate)?, ScriptServer::new(&plain)?];
    contenders[0].server.load(&slidegate.single_limit_script())?;
    let bytes = charge_all_identities(&mut contenders, &slidegate, case)?;
    memory_row(&format!("{}, used_memory", case.name), bytes, memory);

    // All requests are within half a minute, so no minute ends.
    let step = Duration::from_micros(30_000_000 / (3 * scale.rounds * scale.decisions) as u64);
    let time = case.uses_caller_clock.then_some((case.start, step));
    let mut sequence = RequestSequence { identities: IDENTITY_COUNT, time, position: 0 };
    let turn = TurnPlan { pipeline: PIPELINED, warm_up: None, measured: scale.decisions };
    let ratio = compare(scale, &case.name, &mut contenders, &mut sequence, turn, costs, part)?;
    part.record_target(&MAX_CPU_RELATIVE_TO_BUCKET_HASH, ratio);
    if case.uses_caller_clock {
        let turn = TurnPlan { pipeline: SINGLE, measured: scale.decisions / 2, ..turn };
        compare(scale, &case.name, &mut contenders, &mut sequence, turn, costs, part)?;
    }
    Ok(())
}

/// Charges all identities on both servers. Returns the bytes per identity of each server.
fn charge_all_identities(
    contenders: &mut ScriptServerPair<'_>,
    slidegate: &SlidegateScripts,
    case: &BucketBenchCase,
) -> Result<[f64; 2], Box<dyn Error>> {
    let start_s = case.start.as_micros() / 1_000_000;
    let own = (0..IDENTITY_COUNT).flat_map(|identity| {
        (0..case.limits.len()).flat_map(move |nth| {
            let (window, _, max) = case.limits[nth];
            let now = if case.index_of_reached_limit(identity) == Some(nth) { max } else { 1 };
            let before = Timestamp::from_secs(start_s - window);
            let before = (case.minutes >= 60 || nth < 2)
                .then(|| slidegate.charge_command(identity, nth, 1, before));
            before.into_iter().chain([slidegate.charge_command(identity, nth, now, case.start)])
        })
    });
    let plain =
        (0..IDENTITY_COUNT).map(|identity| new_bucket_hash_command(identity, start_s, case));
    let [own_server, plain_server] = contenders;
    Ok([bytes_per_identity(own_server, own)?, bytes_per_identity(plain_server, plain)?])
}

/// Returns the command that writes the hash of an identity, with at least one request in each bucket. If the identity
/// has reached a limit (see [`BucketBenchCase::index_of_reached_limit`]), the newest bucket has all remaining requests
/// up to this limit.
fn new_bucket_hash_command(identity: usize, now_s: u64, case: &BucketBenchCase) -> Cmd {
    let mut command = redis::cmd("HSET");
    command.arg(plain_key(identity));
    for (nth, (window, precision, max)) in case.limits.into_iter().enumerate() {
        let (current_bucket, bucket_count) = (now_s / precision, window / precision);
        let name = format!("{window}:{precision}:");
        let buckets = (case.minutes * 60 / precision).min(bucket_count);
        let older = buckets - 1;
        let newest =
            if case.index_of_reached_limit(identity) == Some(nth) { max - older } else { 1 };
        command.arg(format!("{name}o")).arg(current_bucket - bucket_count + 1);
        command.arg(&name).arg(newest + older);
        command.arg(format!("{name}{current_bucket}")).arg(newest);
        for bucket in current_bucket - older..current_bucket {
            command.arg(format!("{name}{bucket}")).arg(1);
        }
    }
    command
}
