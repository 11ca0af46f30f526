//! Tests of the number of requests that a sampled limit allows above its maximum during a long overload.

use std::time::Duration;

use slidegate::ManualClock;
use slidegate::clock::Clock;

use super::instance::{Instance, is_allowed, new_instance};
use crate::server::Redis;

const MAX_REQUESTS_PER_MINUTE: u64 = 1_000;
const MINUTE_US: u64 = 60_000_000;

/// Sampling factor: one request in `SAMPLING_FACTOR` is sent to Redis.
const SAMPLING_FACTOR: u64 = 10;

/// Number of measured minutes, after a first minute that is not measured.
const MEASURED_MINUTE_COUNT: u64 = 20;

/// Returns the number of allowed requests in each measured minute of an overload. `overload` is the ratio of sent
/// requests to the maximum of the limit.
async fn measure_allowed_per_minute(
    redis: &Redis,
    algorithm: &str,
    overload: u64,
    instances: usize,
) -> Vec<u64> {
    fastrand::seed(overload);
    let mut random = fastrand::Rng::with_seed(overload);
    let clock = ManualClock::default();
    let policy = format!(
        "rules: [{{ name: {algorithm}-{overload}-{instances}, per: [tenant], limits: [{MAX_REQUESTS_PER_MINUTE}/min],
        algorithm: {algorithm}, redis: {{ sample: 10% }} }}]"
    );
    let address = redis.address();
    let instances: Vec<Instance> =
        (0..instances).map(|_| new_instance(&policy, &address, &clock)).collect();
    let mut minutes = vec![0; MEASURED_MINUTE_COUNT as usize + 1];
    let between = Duration::from_micros(MINUTE_US / (MAX_REQUESTS_PER_MINUTE * overload));
    for minute in &mut minutes {
        for _ in 0..MAX_REQUESTS_PER_MINUTE * overload {
            let nth = random.usize(..instances.len());
            *minute += u64::from(is_allowed(&instances[nth], "acme", "").await);
            clock.advance(between);
        }
    }
    assert!(clock.now().as_micros() > MEASURED_MINUTE_COUNT * MINUTE_US);
    minutes.split_off(1)
}

#[tokio::test]
async fn overloaded_sampled_limit_allows_maximum_on_average() {
    let redis = Redis::start();
    // `--nocapture` prints the table.
    println!("| algorithm | overload | instances | mean | sd | most |\n|---|---|---|---|---|---|");
    for algorithm in ["sliding_window", "sliding_log", "fixed_window", "token_bucket"] {
        for overload in [2, 10] {
            for instances in [1, 4] {
                let minutes =
                    measure_allowed_per_minute(&redis, algorithm, overload, instances).await;
                let mean = minutes.iter().sum::<u64>() as f64 / MEASURED_MINUTE_COUNT as f64;
                let variance = minutes.iter().map(|&all| (all as f64 - mean).powi(2)).sum::<f64>();
                let (sd, most) = (
                    (variance / (MEASURED_MINUTE_COUNT - 1) as f64).sqrt(),
                    minutes.iter().max().unwrap(),
                );
                println!(
                    "| {algorithm} | {overload}x | {instances} | {mean:.0} | {sd:.0} | {most} |"
                );
                // On average, each charge covers as many requests as units are charged.
                let sigma = ((MAX_REQUESTS_PER_MINUTE * (SAMPLING_FACTOR - 1)) as f64).sqrt();
                let sigma_of_mean = sigma / (MEASURED_MINUTE_COUNT as f64).sqrt();
                let off = mean - MAX_REQUESTS_PER_MINUTE as f64;
                assert!(off.abs() < 5.0 * sigma_of_mean, "{algorithm}: {mean} on average");
                assert!(sd < 1.5 * sigma, "{algorithm}: {sd}, not about {sigma}");
            }
        }
    }
}

#[tokio::test]
async fn sampled_limit_overshoot_has_documented_mean() {
    const TENANT_COUNT: u64 = 300;
    const MAX_REQUESTS_PER_TENANT: u64 = 100;
    const INSTANCE_COUNT: u64 = 4;
    fastrand::seed(11);
    let (redis, clock) = (Redis::start(), ManualClock::default());
    let policy = format!(
        "rules: [{{ name: a, per: [tenant], limits: [{MAX_REQUESTS_PER_TENANT}/h], redis: {{ sample: 10% }} }}]"
    );
    let instances: Vec<Instance> =
        (0..INSTANCE_COUNT).map(|_| new_instance(&policy, &redis.address(), &clock)).collect();
    let mut passed = 0;
    for tenant in 0..TENANT_COUNT {
        let tenant = tenant.to_string();
        // The instances take turns until each has denied.
        let mut open: Vec<&Instance> = instances.iter().collect();
        while !open.is_empty() {
            let mut still_open = Vec::new();
            for instance in open {
                if is_allowed(instance, &tenant, "").await {
                    passed += 1;
                    still_open.push(instance);
                }
            }
            open = still_open;
        }
    }
    let mean = passed as f64 / TENANT_COUNT as f64;
    let expected = (MAX_REQUESTS_PER_TENANT + INSTANCE_COUNT * (SAMPLING_FACTOR - 1)) as f64;
    let checks = MAX_REQUESTS_PER_TENANT / SAMPLING_FACTOR + INSTANCE_COUNT;
    let sigma =
        ((checks * SAMPLING_FACTOR * (SAMPLING_FACTOR - 1)) as f64 / TENANT_COUNT as f64).sqrt();
    assert!((mean - expected).abs() < 5.0 * sigma, "{mean}, not {expected}");
}
