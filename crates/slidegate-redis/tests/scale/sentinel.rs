//! Load tests of a Sentinel service that fails over.

use std::ops::Range;
use std::time::Duration;

use slidegate::Timestamp;
use slidegate::clock::Clock;

use super::load::{
    CallerLoad, Client, LATE_DENIED_CLIENT, acquire_load_permit, bytes_per_charge,
    make_replica_lag, new_client, script_calls_at,
};
use super::load_result::Loss;
use crate::server::sentinel::{Service, master_named_by};
use crate::server::wait_until;

/// Maximum time from the report of a new master until the stores call it: the interval at which they poll the Sentinels,
/// a query to a Sentinel that hangs, and connecting.
const MAX_RECOVERY_AFTER_REPORT: Duration = Duration::from_millis(1_500);

const MAX_TIMESTAMP: Timestamp = Timestamp::from_micros(u64::MAX);

/// A Sentinel service under load.
struct SentinelLoadTest {
    service: Service,
    load: CallerLoad,
    bytes_per_charge: u64,
}

impl SentinelLoadTest {
    async fn start_under_load() -> Self {
        let service = Service::start();
        let address = service.address();
        let other = Client::new("other".to_owned(), 1_000_000);
        let bytes_per_charge = bytes_per_charge(&address, service.master(), &other).await;
        let clients = (0..12).map(|nth| new_client(format!("{nth:05}"), nth)).collect();
        let load = CallerLoad::begin(&address, clients).await;
        assert_eq!(script_calls_at(service.replica()), 0, "replicas are not called");
        Self { service, load, bytes_per_charge }
    }

    /// Waits until one of these Sentinels reports the replica as the master, and the stores have called it. Returns the
    /// time from which all requests must succeed. A Sentinel reports the new master up to a second after the promotion.
    async fn wait_for_failover(&self, sentinels: Range<usize>) -> Timestamp {
        let replica = self.service.replica();
        wait_until("a Sentinel reports the new master", || {
            self.service.sentinels[sentinels.clone()]
                .iter()
                .any(|sentinel| master_named_by(sentinel) == Some(replica.port()))
        });
        let reported_at = self.load.clock.now();
        self.load.wait_for_recovery(replica, 0, reported_at, MAX_RECOVERY_AFTER_REPORT).await
    }

    /// Ends the load once the old master is a replica. Asserts that at most `lost_bytes` of replication data were lost,
    /// and that all requests from `recovered_at` on were decided.
    async fn end_load_and_check_results(
        mut self,
        recovered_at: Timestamp,
        lost_bytes: impl FnOnce(&Service) -> u64,
    ) -> Loss {
        self.service.swap_roles();
        let calls_of_replica = script_calls_at(self.service.replica());
        self.load.wait_for_decisions().await;
        assert_eq!(
            script_calls_at(self.service.replica()),
            calls_of_replica,
            "replicas are not called"
        );
        let record = self.load.end().await;
        record.assert_available(&record.all_clients(), recovered_at, MAX_TIMESTAMP);
        let bytes = lost_bytes(&self.service);
        record.assert_counts(&record.all_clients(), bytes / self.bytes_per_charge)
    }
}

/// Returns the number of bytes that a former master, now a replica, had written but the new master had not received.
fn unreplicated_bytes_of_old_master(service: &Service) -> u64 {
    service.replica().offset_at_demotion() - service.master().offset_at_promotion()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requested_failover_loses_only_unreplicated_charges() {
    let _permit = acquire_load_permit().await;
    let trial = SentinelLoadTest::start_under_load().await;
    trial.service.master().clear_log();
    trial.service.request_failover();
    let recovered_at = trial.wait_for_failover(0..1).await;
    // Sentinel leaves the old master in its role for a while, and everything that is written to it is lost.
    let calls_of_old = script_calls_at(trial.service.master());
    trial.load.wait_for_decisions().await;
    assert_eq!(
        script_calls_at(trial.service.master()),
        calls_of_old,
        "the old master is not called any more"
    );
    trial.end_load_and_check_results(recovered_at, unreplicated_bytes_of_old_master).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_succeeds_after_master_and_sentinel_kill() {
    let _permit = acquire_load_permit().await;
    let mut trial = SentinelLoadTest::start_under_load().await;
    trial.service.sentinels[0].kill();
    let end = trial.service.master_mut().kill_at_known_offset();
    let recovered_at = trial.wait_for_failover(1..3).await;
    let lost = end - trial.service.replica().offset_at_promotion();
    trial.load.wait_for_decisions().await;
    trial.service.sentinels[0].restart();
    trial.service.master_mut().restart();
    trial.end_load_and_check_results(recovered_at, |_| lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_succeeds_after_master_and_sentinel_pause() {
    let _permit = acquire_load_permit().await;
    let trial = SentinelLoadTest::start_under_load().await;
    trial.service.master().clear_log();
    trial.service.sentinels[0].pause();
    trial.service.master().pause();
    let recovered_at = trial.wait_for_failover(1..3).await;
    trial.service.sentinels[0].resume();
    trial.service.master().resume();
    trial.load.wait_for_decisions().await;
    // The old master is a master again for a while, and has run the calls that it had received before.
    let calls_of_old = script_calls_at(trial.service.master());
    trial.load.wait_for_decisions().await;
    assert_eq!(
        script_calls_at(trial.service.master()),
        calls_of_old,
        "the old master is not called any more"
    );
    trial.end_load_and_check_results(recovered_at, unreplicated_bytes_of_old_master).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_master_with_lagging_replica_loses_unreplicated_charges() {
    let _permit = acquire_load_permit().await;
    let mut trial = SentinelLoadTest::start_under_load().await;
    let [master, replica] = [trial.service.master(), trial.service.replica()];
    let skipped_bytes = make_replica_lag(master, replica, "large");
    trial.load.wait_for_denial(LATE_DENIED_CLIENT).await;
    let end = trial.service.master_mut().kill_at_known_offset();
    trial.service.replica().resume();
    let recovered_at = trial.wait_for_failover(0..3).await;
    let lost_bytes = end - trial.service.replica().offset_at_promotion() - skipped_bytes;
    trial.load.wait_for_denial(LATE_DENIED_CLIENT).await;
    trial.service.master_mut().restart();
    let loss = trial.end_load_and_check_results(recovered_at, |_| lost_bytes).await;
    assert!(loss.lost > 100 && loss.above_max > 10, "the test must lose charges: {loss:?}");
}
