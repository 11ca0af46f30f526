//! Tests that the work of one script call is bounded for counters of any size, and that the outcomes equal the outcomes
//! of the memory store.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use slidegate::store::{Adjustment, Edit, Hit, Key, Outcome, Receipt, Scope, Value};
use slidegate::{Algorithm, Limit, ManualClock, MemoryStore, Quota, Store, SyncStore, Timestamp};
use slidegate_redis::{RedisSettings, RedisStore};

use crate::server::{LONG, Redis};

const MAX_UNITS_PER_WINDOW: u64 = 10_000;

/// An expiry margin so long that no key expires in a test. Keys expire by the clock of Redis, which differs from the
/// clock of the tests.
const LONG_EXPIRY_MARGIN: Duration = Duration::from_secs(1_000_000);

const MINUTE: Duration = Duration::from_secs(60);

/// A long window. With this window, a tick (the time unit of a sliding log) is longer than a microsecond.
const HOUR: Duration = Duration::from_secs(3_600);

/// Costs of successive charges in a sliding log. The list is repeated until the log is full.
const SINGLE_UNIT_COSTS: &[u64] = &[1];
const COSTS_OF_TWO_AND_ONE_UNITS: &[u64] = &[2, 1];
const MIXED_COSTS: &[u64] = &[1, 1, 1, 5, 1, 2, 1, 1, 1, 1, 1, 1, 3];
const COSTS_OF_500_SINGLE_UNITS: &[u64] = &[1; 500];
const COSTS_OF_THREE_UNITS: &[u64] = &[3];

/// The byte offset of the running sum of units in the Redis value of a sliding log. The sum is stored modulo
/// `RUNNING_SUM_MODULUS`.
const RUNNING_SUM_OFFSET_BYTES: &str = "16";
const RUNNING_SUM_MODULUS: f64 = (1_u64 << 52) as f64;

/// A connection that receives all commands that a server runs, including the commands that scripts call.
struct RedisCommandMonitor {
    lines: BufReader<TcpStream>,
}

/// Number of Redis commands that scripts have called, and number of bytes that they have read.
#[derive(Debug, Default)]
struct ScriptWork {
    calls: usize,
    bytes_read: i64,
    /// Number of reads of a whole Redis value.
    whole_value_reads: usize,
}

impl RedisCommandMonitor {
    fn connect_to(redis: &Redis) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut monitor = Self { lines: BufReader::new(stream) };
        assert_eq!(monitor.read_response_line(), "+OK");
        monitor
    }

    fn read_response_line(&mut self) -> String {
        let mut line = Vec::new();
        self.lines.read_until(b'\n', &mut line).unwrap();
        String::from_utf8_lossy(&line).trim_end().to_owned()
    }

    /// Returns the work of scripts since the last call of this method.
    fn script_work_since_last_call(&mut self, redis: &Redis) -> ScriptWork {
        redis.command(&["ECHO", "end of work"]);
        let mut work = ScriptWork::default();
        loop {
            let line = self.read_response_line();
            if line.contains("end of work") {
                return work;
            }
            if !line.contains(" lua] ") {
                continue;
            }
            work.calls += 1;
            let words: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
            if words[0] == "GETRANGE" {
                let [from, to] = [2, 3].map(|nth: usize| words[nth].parse::<i64>().unwrap());
                work.bytes_read += to - from + 1;
                work.whole_value_reads += usize::from(to < 0);
            }
        }
    }
}

/// A sliding log in Redis, and the same log in memory to compare it with.
struct SlidingLogPair {
    redis: Redis,
    store: RedisStore,
    model: MemoryStore<ManualClock>,
    clock: ManualClock,
    scope: Scope,
    limit: Limit,
    /// The time between charges, chosen so that a log of single units is full after half a window.
    step: Duration,
    receipts: Vec<[Receipt; 2]>,
}

fn open_store(redis: &Redis, clock: &ManualClock) -> RedisStore {
    let settings = RedisSettings {
        timeout: LONG,
        expiry_margin: LONG_EXPIRY_MARGIN,
        deny_cache_ttl: Duration::ZERO,
        ..RedisSettings::default()
    };
    RedisStore::open(&redis.address(), settings).unwrap().with_clock(clock.clone())
}

impl SlidingLogPair {
    /// Starts a server and creates two empty sliding logs, one in Redis and one in memory.
    fn open_empty_pair(window: Duration) -> Self {
        let redis = Redis::start();
        // For windows of a minute, whose tick is a microsecond: ticks modulo 2^31 wrap while the log is filled.
        let clock = ManualClock::at(Timestamp::from_micros((1 << 31) * 800_000 - 7_000_000));
        let store = open_store(&redis, &clock);
        let quota = Quota::new(MAX_UNITS_PER_WINDOW, window).unwrap();
        Self {
            redis,
            store,
            model: MemoryStore::with_clock(clock.clone(), 10),
            clock,
            scope: Scope::new("logs", "rule", "limit", &["client"]),
            limit: Limit::new(quota, Algorithm::SlidingLog).unwrap(),
            step: window / (2 * MAX_UNITS_PER_WINDOW as u32),
            receipts: Vec::new(),
        }
    }

    fn new_hit(&self, cost: u64) -> Hit<'_> {
        Hit::new(Key::new(&self.scope, &[Value::Text("all")]), &self.limit, cost)
    }

    /// Charges a hit of this cost in Redis and in memory. Asserts that the outcomes are equal.
    async fn take_in_both(&mut self, cost: u64) -> Outcome {
        self.take_changed_hit_in_both(|hit| hit, cost).await
    }

    /// Charges a hit of this cost in Redis and in memory, after `change` has been applied to the hit. Asserts that the
    /// outcomes are equal.
    async fn take_changed_hit_in_both(
        &mut self,
        change: impl Fn(Hit<'_>) -> Hit<'_>,
        cost: u64,
    ) -> Outcome {
        let hit = change(self.new_hit(cost));
        let store = self.store.charge_async(&[hit]).await.unwrap();
        let model = self.model.charge(&[hit]);
        assert_eq!(store.outcomes, model.outcomes, "{cost} at {:?}", self.clock);
        if !model.receipt.is_empty() {
            self.receipts.push([store.receipt, model.receipt]);
        }
        model.outcomes[0]
    }

    /// Evaluates a hit of this cost in Redis and in memory. Asserts that the outcomes are equal.
    async fn peek_in_both(&self, cost: u64) -> Outcome {
        let hit = self.new_hit(cost);
        let store = self.store.peek_async(&[hit]).await.unwrap();
        let model = self.model.peek(&[hit]);
        assert_eq!(store, model, "{cost} at {:?}", self.clock);
        model[0]
    }

    /// Subtracts units in Redis and in memory. Asserts that the outcomes are equal.
    async fn refund_in_both(&self, units: u64) {
        let hit = self.new_hit(units);
        let store = self.store.edit_async(&[hit], Edit::Refund).await.unwrap();
        let model = self.model.edit(&[hit], Edit::Refund);
        assert_eq!(store, model, "{units} at {:?}", self.clock);
    }

    /// Reverts a part of the nth charge, in Redis and in memory: `tenths` / 10 of its units.
    async fn revert_tenths_in_both(&mut self, nth: usize, tenths: u64) {
        let [store, model] = self.receipts.remove(nth);
        let cost = store.charges()[0].hit_cost;
        let adjustment = Adjustment::SetCost(cost - cost * tenths / 10);
        self.store.adjust_async(&store, adjustment).await.unwrap();
        self.model.adjust(&model, adjustment);
    }

    async fn fill_sliding_log(&mut self, costs: &[u64]) {
        for cost in costs.iter().cycle() {
            let remaining = self.take_in_both(*cost).await.remaining();
            if remaining == 0 {
                return;
            }
            if remaining < *cost {
                self.take_in_both(remaining).await;
                return;
            }
            self.clock.advance(self.step);
        }
    }

    /// Asserts that Redis and memory return the same waits and remaining units for costs of all sizes.
    async fn assert_both_return_same_peeks(&self, rng: &mut fastrand::Rng) {
        for cost in [
            0,
            1,
            2,
            3,
            MAX_UNITS_PER_WINDOW / 2,
            MAX_UNITS_PER_WINDOW - 1,
            MAX_UNITS_PER_WINDOW,
            MAX_UNITS_PER_WINDOW + 1,
            rng.u64(1..=MAX_UNITS_PER_WINDOW),
        ] {
            self.peek_in_both(cost).await;
        }
    }

    /// Sets the running sum of the log in Redis close to its largest value, so that the sum wraps around while the log
    /// is filled.
    fn set_running_sum_near_modulus(&self) {
        let key = self.redis.keys().remove(0);
        let sum = (RUNNING_SUM_MODULUS - MAX_UNITS_PER_WINDOW as f64 / 2.0).to_le_bytes();
        let mut command = redis::cmd("SETRANGE");
        command
            .arg(key)
            .arg(RUNNING_SUM_OFFSET_BYTES)
            .arg(&sum[..])
            .exec(&mut self.redis.connection())
            .unwrap();
    }
}

/// Fills a sliding log, lets half of it expire while all calls are denied, and continues with calls of all kinds.
/// Asserts that Redis and memory always return the same outcomes.
async fn assert_redis_sliding_log_matches_memory(window: Duration, costs: &[u64], seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut log = SlidingLogPair::open_empty_pair(window);
    log.take_in_both(1).await;
    log.set_running_sum_near_modulus();
    log.fill_sliding_log(costs).await;
    log.assert_both_return_same_peeks(&mut rng).await;
    log.clock.advance(window / 2);
    for _ in 0..20 {
        log.clock.advance(log.step * rng.u32(..500));
        assert!(!log.take_in_both(MAX_UNITS_PER_WINDOW).await.fits());
        log.assert_both_return_same_peeks(&mut rng).await;
    }
    for step in 0..3_000 {
        log.clock.advance(log.step.mul_f64(rng.f64() * 4.0));
        match rng.u32(..100) {
            0..70 => drop(log.take_in_both(costs[step % costs.len()]).await),
            70..75 => {
                log.take_changed_hit_in_both(|hit| hit.reported(), rng.u64(1..20)).await;
            }
            75..80 => log.refund_in_both(rng.u64(1..30)).await,
            80..88 => log.revert_tenths_in_both(log.receipts.len() - 1, rng.u64(1..=10)).await,
            88..93 => {
                log.revert_tenths_in_both(rng.usize(log.receipts.len() / 2..log.receipts.len()), 10)
                    .await
            }
            93..95 => {
                log.revert_tenths_in_both(rng.usize(log.receipts.len() / 2..log.receipts.len()), 5)
                    .await
            }
            _ => log.assert_both_return_same_peeks(&mut rng).await,
        }
    }
    log.assert_both_return_same_peeks(&mut rng).await;
    for _ in 0..30 {
        log.refund_in_both(MAX_UNITS_PER_WINDOW / 25).await;
        log.assert_both_return_same_peeks(&mut rng).await;
    }
}

#[tokio::test]
async fn sliding_log_of_single_units_matches_memory_store() {
    assert_redis_sliding_log_matches_memory(MINUTE, SINGLE_UNIT_COSTS, 1).await;
}

#[tokio::test]
async fn sliding_log_of_small_costs_matches_memory_store() {
    assert_redis_sliding_log_matches_memory(MINUTE, COSTS_OF_TWO_AND_ONE_UNITS, 3).await;
}

#[tokio::test]
async fn sliding_log_of_mixed_costs_matches_memory_store() {
    assert_redis_sliding_log_matches_memory(MINUTE, MIXED_COSTS, 4).await;
    assert_redis_sliding_log_matches_memory(HOUR, MIXED_COSTS, 5).await;
    assert_redis_sliding_log_matches_memory(MINUTE, COSTS_OF_THREE_UNITS, 6).await;
}

#[tokio::test]
async fn sliding_log_with_one_high_cost_matches_memory() {
    let mut rare = COSTS_OF_500_SINGLE_UNITS.to_vec();
    rare[300] = 7;
    assert_redis_sliding_log_matches_memory(MINUTE, &rare, 7).await;
}

/// Maximum number of Redis commands in a script call. A call reads the head of the log, one range of bytes in each step
/// of two binary searches, and one block of charges.
const MAX_COMMANDS_PER_CALL: usize = 25;
const MAX_BYTES_READ_PER_CALL: i64 = 25 * 264;

fn assert_script_work_is_bounded(work: &ScriptWork, context: &str) {
    assert!((1..=MAX_COMMANDS_PER_CALL).contains(&work.calls), "{context}: {work:?}");
    assert!(
        work.bytes_read <= MAX_BYTES_READ_PER_CALL && work.whole_value_reads == 0,
        "{context}: {work:?}"
    );
}

#[tokio::test]
async fn script_work_on_full_sliding_log_is_bounded() {
    for costs in [SINGLE_UNIT_COSTS, COSTS_OF_TWO_AND_ONE_UNITS, MIXED_COSTS, COSTS_OF_THREE_UNITS]
    {
        let mut log = SlidingLogPair::open_empty_pair(MINUTE);
        log.fill_sliding_log(costs).await;
        let mut monitor = RedisCommandMonitor::connect_to(&log.redis);
        let mut rng = fastrand::Rng::with_seed(8);
        // While all charges are in the window, and when half of them have left.
        for share in ["all", "half"] {
            for _ in 0..50 {
                let cost = rng.u64(MAX_UNITS_PER_WINDOW * 3 / 4..=MAX_UNITS_PER_WINDOW);
                assert!(!log.take_in_both(cost).await.fits());
                let work = monitor.script_work_since_last_call(&log.redis);
                assert_script_work_is_bounded(
                    &work,
                    &format!("{costs:?}, {share} left, denied {cost}"),
                );
            }
            for ago in 1..20 {
                log.revert_tenths_in_both(log.receipts.len() - ago, 10).await;
                assert_script_work_is_bounded(
                    &monitor.script_work_since_last_call(&log.redis),
                    &format!("{costs:?}, reverted"),
                );
            }
            log.clock.advance(MINUTE * 3 / 4);
        }
        for units in [1, 77, MAX_UNITS_PER_WINDOW / 4] {
            log.clock.advance(log.step);
            log.refund_in_both(units).await;
            let work = monitor.script_work_since_last_call(&log.redis);
            assert_script_work_is_bounded(&work, &format!("{costs:?}, {units} refunded"));
        }
        // A charge that resizes the ring copies it, without a loop: one in as many charges as an eighth of the ring.
        let mut resized = 0;
        for _ in 0..50 {
            log.clock.advance(log.step * 20);
            assert!(log.take_in_both(1).await.fits());
            let work = monitor.script_work_since_last_call(&log.redis);
            match work.whole_value_reads {
                0 => assert_script_work_is_bounded(&work, &format!("{costs:?}, charged")),
                _ => resized += 1,
            }
        }
        assert!(resized <= 3, "{costs:?}: {resized} of 50 charges resized the ring");
    }
}

/// The largest size of the Redis value of one sliding window with the default resolution: 203 entries, which
/// `docs/explanation/algorithms.md` derives.
const MAX_SLIDING_WINDOW_BYTES: usize = 37 + 8 * 203;

#[tokio::test]
async fn work_and_size_of_sliding_window_are_bounded() {
    let mut pair = SlidingLogPair::open_empty_pair(MINUTE);
    let algorithm = Algorithm::SlidingWindow { resolution: None };
    pair.limit = Limit::new(pair.limit.quota(), algorithm).unwrap();
    let mut monitor = RedisCommandMonitor::connect_to(&pair.redis);
    let mut rng = fastrand::Rng::with_seed(9);
    let mut largest_bytes = 0;
    for step in 0..3_000 {
        pair.clock.advance(pair.step.mul_f64(rng.f64() * 8.0));
        match rng.u32(..100) {
            0..60 => drop(pair.take_in_both(rng.u64(1..=40)).await),
            60..90 if !pair.receipts.is_empty() => {
                pair.revert_tenths_in_both(rng.usize(..pair.receipts.len()), 10).await;
            }
            90..95 => drop(pair.take_changed_hit_in_both(|hit| hit.reported(), 20).await),
            _ => pair.refund_in_both(rng.u64(1..30)).await,
        }
        let work = monitor.script_work_since_last_call(&pair.redis);
        assert!(work.calls <= 2, "step {step}: {work:?}");
        let key = pair.redis.keys().remove(0);
        let bytes: usize =
            redis::cmd("STRLEN").arg(key).query(&mut pair.redis.connection()).unwrap();
        largest_bytes = largest_bytes.max(bytes);
    }
    assert!(largest_bytes <= MAX_SLIDING_WINDOW_BYTES, "{largest_bytes} bytes");
}

impl SlidingLogPair {
    /// Creates two empty sliding windows, one in Redis and one in memory.
    fn open_sliding_windows(max: u64, window: Duration, resolution: u16) -> Self {
        let mut pair = Self::open_empty_pair(window);
        let algorithm = Algorithm::SlidingWindow { resolution: Some(resolution) };
        pair.limit = Limit::new(Quota::new(max, window).unwrap(), algorithm).unwrap();
        pair
    }

    /// Returns the number of entries of the sliding window in Redis, whose entries have at most 65,535 units.
    fn count_entries(&self) -> usize {
        let key = self.redis.keys().remove(0);
        let bytes: usize =
            redis::cmd("STRLEN").arg(key).query(&mut self.redis.connection()).unwrap();
        // The state of the newest entry has 6 bytes less than a head without it.
        (bytes - 31) / 6
    }
}

/// Tests that memory and Redis merge the same entries. Partial reverts leave entries with few units, until there are more
/// than three times the resolution. The windows have the most ticks that a window can have, or few.
#[tokio::test]
async fn both_stores_merge_same_entries_of_sliding_window() {
    for (max, window, resolution) in [
        (64, Duration::from_secs(8), 8),
        (1_000, Duration::from_secs(33), 8),
        (900, Duration::from_secs(9 * 3_600), 8),
        (600, MINUTE, 10),
    ] {
        let mut pair = SlidingLogPair::open_sliding_windows(max, window, resolution);
        let mut rng = fastrand::Rng::with_seed(max);
        let (mut most, mut merges, mut before) = (0, 0, 0);
        for step in 0..2_500 {
            // Some windows are nearly empty before the next charge.
            let part = if rng.u32(..200) == 0 { 1.2 } else { 0.006 };
            pair.clock.advance(window.mul_f64(rng.f64() * part));
            match rng.u32(..20) {
                0..10 => {
                    let largest = max.div_ceil(resolution.into());
                    pair.take_in_both(rng.u64(1..=largest)).await;
                    let nth = pair.receipts.len().saturating_sub(1);
                    if rng.u32(..4) > 0 && !pair.receipts.is_empty() {
                        pair.revert_tenths_in_both(nth, 9).await;
                    }
                }
                10..14 if !pair.receipts.is_empty() => {
                    let nth = pair.receipts.len().saturating_sub(1 + rng.usize(..12));
                    pair.revert_tenths_in_both(nth, 10).await;
                }
                14 => pair.refund_in_both(rng.u64(1..=max / 16)).await,
                15 => drop(pair.take_changed_hit_in_both(|hit| hit.reported(), max / 4).await),
                _ => {}
            }
            for cost in [1, max / 2, max] {
                pair.peek_in_both(cost).await;
            }
            let entries = if pair.redis.keys().is_empty() { 0 } else { pair.count_entries() };
            assert!(entries <= 6 * usize::from(resolution) + 6, "step {step}: {entries} entries");
            merges += usize::from(before > 3 * usize::from(resolution) && entries + 2 < before);
            (most, before) = (most.max(entries), entries);
        }
        let limit = pair.limit;
        assert!(most > 3 * usize::from(resolution), "{limit}: at most {most} entries");
        assert!(merges > 0, "{limit}: no entries were merged");
    }
}

/// Tests that both stores know the first charge of an entry that remains alone after a revert, so that both merge it with
/// the next entry.
#[tokio::test]
async fn entry_left_alone_by_revert_is_merged_in_both_stores() {
    let micros = Duration::from_micros;
    let mut pair = SlidingLogPair::open_sliding_windows(64, Duration::from_secs(8), 8);
    pair.take_in_both(8).await;
    pair.clock.advance(micros(900_000));
    pair.take_in_both(8).await;
    pair.revert_tenths_in_both(0, 10).await;
    pair.clock.advance(micros(200_000));
    pair.take_in_both(8).await;
    for _ in 0..2 {
        pair.revert_tenths_in_both(0, 9).await;
    }
    assert_eq!(pair.count_entries(), 2);
    let mut most = 0;
    while most <= pair.count_entries() {
        most = pair.count_entries();
        pair.clock.advance(micros(1));
        pair.take_in_both(8).await;
        pair.revert_tenths_in_both(0, 9).await;
    }
    assert!(most >= 24, "{most} entries before the merge");
    pair.clock.advance(micros(8_950_000 - 1_100_000));
    pair.peek_in_both(64).await;
}

/// Returns the head of a full sliding log: a changed copy of the head of another log. In the copy, the log has `words`
/// words (charges) and `total` units, and its oldest charge is `oldest_age` ticks older.
fn build_full_sliding_log_head(head: &[u8], words: u32, total: f64, oldest_age: u32) -> Vec<u8> {
    let mut head = head.to_vec();
    let oldest = u32::from_le_bytes(head[36..40].try_into().unwrap());
    head[8..16].copy_from_slice(&total.to_le_bytes());
    head[28..32].copy_from_slice(&words.to_le_bytes());
    head[32..36].copy_from_slice(&words.to_le_bytes());
    head[36..40].copy_from_slice(&(oldest.wrapping_sub(oldest_age) & !(1 << 31)).to_le_bytes());
    head
}

/// Tests Redis values with a valid head and invalid data behind it: with words (charges) and marks (partial sums) that
/// no sliding log has, or with fewer words than the head says.
#[tokio::test]
async fn invalid_sliding_log_body_is_not_scanned() {
    let log = SlidingLogPair::open_empty_pair(MINUTE);
    let hit = |cost| log.new_hit(cost);
    let receipt = log.store.charge_async(&[hit(3)]).await.unwrap().receipt;
    let key = log.redis.keys().remove(0);
    let mut connection = log.redis.connection();
    let head: Vec<u8> =
        redis::cmd("GETRANGE").arg(&key).arg(0).arg(47).query(&mut connection).unwrap();
    let mut monitor = RedisCommandMonitor::connect_to(&log.redis);
    let mut values = Vec::new();
    for total in [1e4, 2e4, 2e9, 1e15, f64::INFINITY] {
        for oldest_age in [0, MINUTE.as_micros() as u32 * 2] {
            for words in [16_384, 4_194_304] {
                let head = build_full_sliding_log_head(&head, words, total, oldest_age);
                for fill in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut value = head.clone();
                    value.resize(48 + 16_384 * 4 + 16_384 / 8, fill);
                    values.push(value);
                }
            }
        }
    }
    for value in values {
        // A store of its own: the failures of several values would open the circuit breaker.
        let store = open_store(&log.redis, &log.clock);
        for call in ["take", "peek", "refund", "revert"] {
            redis::cmd("SET").arg(&key).arg(&value[..]).exec(&mut connection).unwrap();
            monitor.script_work_since_last_call(&log.redis);
            // It may fail.
            match call {
                "take" => drop(store.charge_async(&[hit(MAX_UNITS_PER_WINDOW)]).await),
                "peek" => drop(store.peek_async(&[hit(MAX_UNITS_PER_WINDOW / 2)]).await),
                "refund" => {
                    drop(store.edit_async(&[hit(MAX_UNITS_PER_WINDOW / 2)], Edit::Refund).await)
                }
                _ => drop(store.adjust_async(&receipt, Adjustment::Revert).await),
            }
            let work = monitor.script_work_since_last_call(&log.redis);
            let context = format!("{call}, head {:?}, then {:?}", &value[..48], value.last());
            assert!((1..=2 * MAX_COMMANDS_PER_CALL).contains(&work.calls), "{context}: {work:?}");
            let length: i64 = redis::cmd("STRLEN").arg(&key).query(&mut connection).unwrap();
            assert!(length <= 2 * value.len() as i64, "{context}: grew to {length} bytes");
        }
    }
}

/// Returns the time in microseconds that scripts took since the last call of this function.
fn script_time_us_since_last_call(redis: &Redis) -> u64 {
    let stats: String = redis.try_command(&["INFO", "commandstats"]).unwrap();
    redis.command(&["CONFIG", "RESETSTAT"]);
    let stats = stats.lines().filter(|line| line.starts_with("cmdstat_eval"));
    stats
        .map(|line| line.split("usec=").nth(1).unwrap().split(',').next().unwrap())
        .map(|us| us.parse::<u64>().unwrap())
        .sum()
}

/// Tests that a script writes the buckets of a counter only once. The script calls no command for each bucket, so only
/// its duration shows the number of written buckets. A charge after a gap used to take 500 times as long.
#[tokio::test]
async fn charge_after_idle_gap_writes_buckets_once() {
    let redis = Redis::start();
    let clock = ManualClock::at(Timestamp::from_secs(1_750_000_000));
    let settings = RedisSettings {
        timeout: LONG,
        expiry_margin: LONG_EXPIRY_MARGIN,
        ..RedisSettings::default()
    };
    let store = RedisStore::open(&redis.address(), settings).unwrap().with_clock(clock.clone());
    let buckets = Algorithm::SlidingBuckets { precision: Some(MINUTE) };
    let quota = Quota::new(MAX_UNITS_PER_WINDOW, 24 * HOUR).unwrap();
    let limit = Limit::new(quota, buckets).unwrap();
    let scope = Scope::new("buckets", "rule", "limit", &["client"]);
    let mut us = [0, 0];
    for nth in 0..20 {
        for (us, gap) in us.iter_mut().zip([MINUTE, 1_400 * MINUTE]) {
            let client = format!("{nth} after {gap:?}");
            let values = [Value::Text(&client)];
            let key = Key::new(&scope, &values);
            let hit = Hit::new(key, &limit, 1);
            store.charge_async(&[hit]).await.unwrap();
            clock.advance(gap);
            script_time_us_since_last_call(&redis);
            store.charge_async(&[hit]).await.unwrap();
            *us += script_time_us_since_last_call(&redis);
        }
    }
    let [next, after_gap] = us;
    assert!(after_gap < 30 * next, "{after_gap} us after a gap, {next} us in the next bucket");
}
