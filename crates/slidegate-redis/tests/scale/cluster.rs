//! Load tests of a Redis Cluster that fails over or migrates slots.

use std::time::Duration;

use slidegate::Timestamp;

use super::load::{
    CallerLoad, Client, LATE_DENIED_CLIENT, MAX_PROMOTION_RECOVERY, acquire_load_permit,
    bytes_per_charge, make_replica_lag, new_client, script_calls_at,
};
use super::load_result::Loss;
use crate::server::Redis;
use crate::server::cluster::{Cluster, Shard};
use crate::server::node::field;
use crate::server::wait_until;

const UNBOUNDED_TIME_RANGE: (Timestamp, Timestamp) =
    (Timestamp::from_micros(0), Timestamp::from_micros(u64::MAX));

/// Maximum time from the restart of a lost master until the stores call it: up to five seconds until the next probe of
/// the circuit breaker, plus [`MAX_PROMOTION_RECOVERY`].
const MAX_RECOVERY_AFTER_RESTART: Duration =
    MAX_PROMOTION_RECOVERY.saturating_add(Duration::from_secs(5));

/// Number of clients whose keys are in each shard.
const CLIENTS_PER_SHARD: usize = 4;

/// A Cluster under load.
struct ClusterLoadTest {
    cluster: Cluster,
    load: CallerLoad,
    bytes_per_charge: u64,
}

/// Returns the hash tag in the Redis keys of a client.
fn client_hash_tag(name: &str) -> String {
    format!("{{client={name}}}")
}

/// Returns names of equal length for clients whose keys are in a shard.
fn client_names_in_shard(cluster: &Cluster, shard: Shard, many: usize) -> Vec<String> {
    let names = (0..).map(|nth| format!("{nth:05}"));
    let is_there =
        |name: &String| cluster.shard_of(cluster.slot_of(&client_hash_tag(name))) == shard;
    names.filter(is_there).take(many).collect()
}

/// Returns names of clients whose keys are all in one slot.
fn client_names_in_one_slot(cluster: &Cluster, many: usize) -> Vec<String> {
    let names: Vec<String> = (0..100_000).map(|nth| format!("{nth:05}")).collect();
    let mut pipeline = redis::pipe();
    for name in &names {
        pipeline.cmd("CLUSTER").arg("KEYSLOT").arg(client_hash_tag(name));
    }
    let slots: Vec<u16> = pipeline.query(&mut cluster.nodes[0].connection()).unwrap();
    let mut named = names.iter().zip(&slots).filter(|(_, slot)| **slot == slots[0]);
    let names: Vec<String> = named.by_ref().take(many).map(|(name, _)| name.clone()).collect();
    assert_eq!(names.len(), many);
    names
}

impl ClusterLoadTest {
    /// Starts a Cluster and the load. Each shard has the keys of the same number of clients, and the first clients
    /// belong to the first shard. The stores know only one node at first.
    async fn start_under_load() -> Self {
        let cluster = Cluster::start();
        let shards = cluster.shards();
        let (address, first) = (cluster.address_of(&[shards[0].master]), shards[0].master);
        let mut clients = Vec::new();
        for &shard in &shards {
            let names =
                client_names_in_shard(&cluster, shard, CLIENTS_PER_SHARD).into_iter().enumerate();
            clients.extend(names.map(|(nth, name)| new_client(name, nth)));
        }
        // A client of the first shard that takes part in no load.
        let name = client_names_in_shard(&cluster, shards[0], CLIENTS_PER_SHARD + 1).pop().unwrap();
        let other = Client::new(name, 1_000_000);
        let bytes_per_charge = bytes_per_charge(&address, &cluster.nodes[first], &other).await;
        let load = CallerLoad::begin(&address, clients).await;
        for shard in shards {
            assert_eq!(
                script_calls_at(&cluster.nodes[shard.replica]),
                0,
                "replicas are not called"
            );
        }
        Self { cluster, load, bytes_per_charge }
    }

    /// Waits until a replica has become a master and the stores have called it. Returns the time from which all
    /// requests must succeed.
    async fn wait_for_failover_to_replica(&self, replica: usize, calls_before: u64) -> Timestamp {
        let promoted = self.cluster.wait_until_promoted(replica, &self.load.clock);
        let replica = &self.cluster.nodes[replica];
        self.load.wait_for_recovery(replica, calls_before, promoted, MAX_PROMOTION_RECOVERY).await
    }

    /// Returns the number of bytes that a former master, now a replica, had written but the new master had not
    /// received.
    fn unreplicated_bytes_of_old_master(&self, old: Shard) -> u64 {
        let [old, new] = [old.master, old.replica].map(|nth| &self.cluster.nodes[nth]);
        old.offset_at_demotion() - new.offset_at_promotion()
    }

    /// Ends the load once all replicas are in sync. Asserts that the first shard lost at most `lost_bytes` of
    /// replication data, and decided all requests from `recovered_at` on. Asserts that the other shards lost no charge
    /// and decided all requests.
    async fn end_load_and_check_results(self, recovered_at: Timestamp, lost_bytes: u64) -> Loss {
        self.cluster.wait_until_settled();
        let replicas: Vec<usize> =
            self.cluster.shards().iter().map(|shard| shard.replica).collect();
        let calls_of = |&nth: &usize| script_calls_at(&self.cluster.nodes[nth]);
        let calls_before: Vec<u64> = replicas.iter().map(calls_of).collect();
        self.load.wait_for_decisions().await;
        let calls_now: Vec<u64> = replicas.iter().map(calls_of).collect();
        assert_eq!(calls_now, calls_before, "replicas are not called");
        let record = self.load.end().await;
        let (first, others): (Vec<_>, Vec<_>) =
            record.all_clients().into_iter().partition(|&client| client < CLIENTS_PER_SHARD);
        record.assert_available(&first, recovered_at, UNBOUNDED_TIME_RANGE.1);
        record.assert_available(&others, UNBOUNDED_TIME_RANGE.0, UNBOUNDED_TIME_RANGE.1);
        record.assert_counts(&others, 0);
        record.assert_counts(&first, lost_bytes / self.bytes_per_charge)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_requested_failovers_lose_no_charge() {
    let _permit = acquire_load_permit().await;
    let trial = ClusterLoadTest::start_under_load().await;
    let mut shard = trial.cluster.shards()[0];
    let mut recovered_at = UNBOUNDED_TIME_RANGE.0;
    for _ in 0..2 {
        trial.cluster.nodes[shard.master].clear_log();
        let calls_before = script_calls_at(&trial.cluster.nodes[shard.replica]);
        trial.cluster.request_failover(shard.replica);
        recovered_at = trial.wait_for_failover_to_replica(shard.replica, calls_before).await;
        trial.cluster.wait_until_settled();
        assert_eq!(
            trial.unreplicated_bytes_of_old_master(shard),
            0,
            "the replica takes over only when in sync"
        );
        shard = Shard { master: shard.replica, replica: shard.master };
    }
    trial.end_load_and_check_results(recovered_at, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_master_loses_only_unreplicated_charges() {
    let _permit = acquire_load_permit().await;
    let mut trial = ClusterLoadTest::start_under_load().await;
    let shard = trial.cluster.shards()[0];
    let end = trial.cluster.nodes[shard.master].kill_at_known_offset();
    let recovered_at = trial.wait_for_failover_to_replica(shard.replica, 0).await;
    let lost = end - trial.cluster.nodes[shard.replica].offset_at_promotion();
    trial.load.wait_for_decisions().await;
    trial.cluster.nodes[shard.master].restart();
    trial.end_load_and_check_results(recovered_at, lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_master_loses_only_unreplicated_charges() {
    let _permit = acquire_load_permit().await;
    let trial = ClusterLoadTest::start_under_load().await;
    let shard = trial.cluster.shards()[0];
    trial.cluster.nodes[shard.master].clear_log();
    trial.cluster.nodes[shard.master].pause();
    let recovered_at = trial.wait_for_failover_to_replica(shard.replica, 0).await;
    trial.load.wait_for_decisions().await;
    trial.cluster.nodes[shard.master].resume();
    trial.cluster.wait_until_settled();
    let lost = trial.unreplicated_bytes_of_old_master(shard);
    trial.end_load_and_check_results(recovered_at, lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_master_with_lagging_replica_loses_unreplicated_charges() {
    let _permit = acquire_load_permit().await;
    let mut trial = ClusterLoadTest::start_under_load().await;
    let shard = trial.cluster.shards()[0];
    let [master, replica] = [shard.master, shard.replica];
    let key = client_hash_tag(&trial.load.clients[0].name);
    let skipped_bytes =
        make_replica_lag(&trial.cluster.nodes[master], &trial.cluster.nodes[replica], &key);
    trial.load.wait_for_denial(LATE_DENIED_CLIENT).await;
    let end = trial.cluster.nodes[master].kill_at_known_offset();
    trial.cluster.nodes[replica].resume();
    let recovered_at = trial.wait_for_failover_to_replica(replica, 0).await;
    let lost_bytes = end - trial.cluster.nodes[replica].offset_at_promotion() - skipped_bytes;
    trial.load.wait_for_denial(LATE_DENIED_CLIENT).await;
    trial.cluster.nodes[master].restart();
    let loss = trial.end_load_and_check_results(recovered_at, lost_bytes).await;
    assert!(loss.lost > 100 && loss.above_max > 10, "the test must lose charges: {loss:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_restart_fails_no_request() {
    let _permit = acquire_load_permit().await;
    let mut trial = ClusterLoadTest::start_under_load().await;
    let shard = trial.cluster.shards()[0];
    trial.cluster.nodes[shard.replica].kill();
    wait_until("the other nodes notice the failure", || {
        let known = trial.cluster.nodes[shard.master].try_command(&["CLUSTER", "NODES"]);
        known.is_ok_and(|known: String| known.contains("slave,fail "))
    });
    trial.load.wait_for_decisions().await;
    trial.cluster.nodes[shard.replica].restart();
    trial.end_load_and_check_results(UNBOUNDED_TIME_RANGE.0, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shard_recovers_after_restart_without_data() {
    let _permit = acquire_load_permit().await;
    let mut trial = ClusterLoadTest::start_under_load().await;
    let shard = trial.cluster.shards()[0];
    let other = trial.cluster.shards()[1].master;
    trial.cluster.nodes[shard.replica].kill();
    let lost_bytes = trial.cluster.nodes[shard.master].kill_at_known_offset();
    wait_until("the other nodes notice the failure", || {
        let known = trial.cluster.nodes[other].try_command(&["CLUSTER", "NODES"]);
        known.is_ok_and(|known: String| known.contains("master,fail "))
    });
    trial.cluster.nodes[shard.master].restart();
    let back = trial.cluster.wait_until_promoted(shard.master, &trial.load.clock);
    let master = &trial.cluster.nodes[shard.master];
    let recovered_at =
        trial.load.wait_for_recovery(master, 0, back, MAX_RECOVERY_AFTER_RESTART).await;
    trial.cluster.nodes[shard.replica].restart();
    trial.end_load_and_check_results(recovered_at, lost_bytes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_migration_loses_no_charge() {
    let _permit = acquire_load_permit().await;
    let cluster = Cluster::start();
    let mut names = client_names_in_one_slot(&cluster, CLIENTS_PER_SHARD + 2).into_iter();
    let slot = cluster.slot_of(&client_hash_tag(&names.as_slice()[0]));
    let with_one_key = names.by_ref().take(CLIENTS_PER_SHARD).enumerate();
    let mut clients: Vec<Client> = with_one_key.map(|(nth, name)| new_client(name, nth)).collect();
    // People with two keys: their requests may have to wait until both keys are on one node.
    clients.extend(names.map(|name| Client::new(name, 1_000_000).with_sliding_log(1_000_000)));
    let load = CallerLoad::begin(&cluster.address(), clients).await;
    let here = cluster.shard_of(slot).master;
    let masters = cluster.shards().into_iter().map(|shard| shard.master);
    let there = masters.into_iter().find(|&nth| nth != here).unwrap();
    for (from, to) in [(here, there), (there, here)].repeat(2) {
        let redirections = |why| redis_error_count(&cluster.nodes[from], why);
        let before = [redirections("ASK"), redirections("MOVED")];
        cluster.begin_slot_migration(slot, from, to);
        load.wait_for_decisions().await;
        while cluster.move_keys(slot, from, to, 1) > 0 {
            load.wait_for_more_calls().await;
        }
        assert!(redirections("ASK") > before[0], "calls are redirected to the moved keys");
        cluster.end_slot_migration(slot, from, to);
        load.wait_for_decisions().await;
        let moved = redirections("MOVED") - before[1];
        assert!((1..100).contains(&moved), "{moved} MOVED redirections");
    }
    cluster.wait_until_settled();
    let record = load.end().await;
    let with_one_key: Vec<usize> = (0..CLIENTS_PER_SHARD).collect();
    record.assert_available(&with_one_key, UNBOUNDED_TIME_RANGE.0, UNBOUNDED_TIME_RANGE.1);
    record.assert_counts(&record.all_clients(), 0);
}

/// Returns the number of error responses of a kind that a node has sent.
fn redis_error_count(node: &Redis, kind: &str) -> u64 {
    let info: String = node.try_command(&["INFO", "errorstats"]).unwrap();
    let count = field(&info, &format!("errorstat_{kind}"));
    count.map_or(0, |count| count.trim_start_matches("count=").parse().unwrap())
}
