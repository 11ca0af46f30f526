//! Tests of the fixtures that other tests use: Sentinel services and Redis Clusters.

use std::net::TcpListener;

use crate::server::cluster::Cluster;
use crate::server::node::Node;
use crate::server::sentinel::{Service, master_named_by};
use crate::server::{Redis, free_port, wait_until};
use redis::{ErrorKind, RedisResult, ServerErrorKind};
use slidegate::clock::SystemClock;

/// Length of a value that does not fit into the socket buffers of a connection.
const LARGE_VALUE_BYTES: usize = 32 << 20;

fn set_redis_key(node: &Redis, key: &str) -> RedisResult<()> {
    node.try_command(&["SET", key, "x"])
}

fn has_redis_key(node: &Redis, key: &str) -> bool {
    node.try_command::<bool>(&["EXISTS", key]).unwrap()
}

/// Waits until a replica has received all writes of its master. A new replica receives no further writes until it has
/// acknowledged the initial copy.
fn wait_until_replicated(master: &Node, replica: &Node) {
    wait_until("the replica is in sync", || replica.offset() == master.offset());
}

/// Redis accepts connections, and ends some milliseconds later.
#[test]
fn server_starts_again_if_port_of_cluster_bus_is_taken() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut ports = vec![free_port(), taken.local_addr().unwrap().port()];
    let redis = Redis::with_config(None, || {
        let port = ports.pop().unwrap().to_string();
        ["--cluster-enabled", "yes", "--cluster-port", &port].map(str::to_owned).to_vec()
    });
    assert!(ports.is_empty());
    redis.command(&["PING"]);
}

#[test]
fn sentinel_service_performs_two_requested_failovers() {
    let mut service = Service::start();
    let clock = SystemClock::new();
    for round in 0..2 {
        set_redis_key(service.master(), &format!("before {round}")).unwrap();
        set_redis_key(service.replica(), "no").unwrap_err();
        wait_until_replicated(service.master(), service.replica());
        service.master().clear_log();
        service.request_failover();
        service.replica().wait_until_promoted(&clock);
        let promotion_offset = service.replica().offset_at_promotion();
        service.swap_roles();
        assert!(service.replica().offset_at_demotion() >= promotion_offset);
        for sentinel in &service.sentinels {
            assert_eq!(master_named_by(sentinel), Some(service.master().port()));
        }
        assert!(has_redis_key(service.master(), &format!("before {round}")));
        set_redis_key(service.replica(), "no").unwrap_err();
    }
}

#[test]
fn sentinel_service_fails_over_after_master_kill() {
    let mut service = Service::start();
    set_redis_key(service.master(), "key").unwrap();
    wait_until_replicated(service.master(), service.replica());
    let offset = service.master_mut().kill_at_known_offset();
    service.replica().wait_until_promoted(&SystemClock::new());
    assert_eq!(service.replica().offset_at_promotion(), offset, "the replica had everything");
    service.master_mut().restart();
    service.swap_roles();
    assert!(has_redis_key(service.master(), "key"));
}

#[test]
fn sentinel_service_fails_over_after_master_pause() {
    let mut service = Service::start();
    service.master().clear_log();
    service.master().pause();
    service.replica().wait_until_promoted(&SystemClock::new());
    service.master().resume();
    set_redis_key(service.master(), "lost").unwrap();
    let promotion_offset = service.replica().offset_at_promotion();
    service.swap_roles();
    assert!(service.replica().offset_at_demotion() > promotion_offset, "no other server had it");
    assert!(!has_redis_key(service.master(), "lost"));
}

/// Pauses a replica while its master writes, and kills the master. Asserts that the bytes that the replica has not read
/// are lost, and that the replication offsets show their number.
fn assert_unreplicated_writes_are_lost(master: &mut Node, replica: &Node, key: &str) {
    set_redis_key(master, key).unwrap();
    wait_until_replicated(master, replica);
    let before = master.offset();
    replica.pause();
    master.command(&["SET", &format!("{{{key}}}large"), &"x".repeat(LARGE_VALUE_BYTES)]);
    set_redis_key(master, &format!("{{{key}}}lost")).unwrap();
    let end = master.kill_at_known_offset();
    assert!(end > before + LARGE_VALUE_BYTES as u64);
    replica.resume();
    replica.wait_until_promoted(&SystemClock::new());
    let promotion_offset = replica.offset_at_promotion();
    assert!(
        (before..end - LARGE_VALUE_BYTES as u64).contains(&promotion_offset),
        "{before} {promotion_offset} {end}"
    );
    assert!(has_redis_key(replica, key));
    assert!(!has_redis_key(replica, &format!("{{{key}}}lost")));
}

#[test]
fn sentinel_failover_loses_unreplicated_writes() {
    let mut service = Service::start();
    let (master, replica) = service.both_mut();
    assert_unreplicated_writes_are_lost(master, replica, "key");
}

/// Returns one key for each shard.
fn one_key_per_shard(cluster: &Cluster) -> Vec<String> {
    let key_of = |nth: usize| {
        let shard = cluster.shards()[nth];
        let mut keys = (0..).map(|turn| format!("key-{turn}"));
        keys.find(|key| cluster.shard_of(cluster.slot_of(key)) == shard).unwrap()
    };
    (0..crate::server::cluster::SHARDS).map(key_of).collect()
}

#[test]
fn cluster_performs_two_requested_failovers() {
    let cluster = Cluster::start();
    let keys = one_key_per_shard(&cluster);
    let clock = SystemClock::new();
    let old = cluster.shards();
    for shard in &old {
        cluster.nodes[shard.master].clear_log();
    }
    for (shard, key) in old.iter().zip(&keys) {
        set_redis_key(&cluster.nodes[shard.master], key).unwrap();
        set_redis_key(&cluster.nodes[shard.replica], key).unwrap_err();
        cluster.request_failover(shard.replica);
        cluster.wait_until_promoted(shard.replica, &clock);
        let promotion_offset = cluster.nodes[shard.replica].offset_at_promotion();
        assert_eq!(
            cluster.nodes[shard.master].offset_at_demotion(),
            promotion_offset,
            "nothing is lost"
        );
    }
    cluster.wait_until_settled();
    for ((old, new), key) in old.iter().zip(cluster.shards()).zip(&keys) {
        assert_eq!((old.master, old.replica), (new.replica, new.master));
        assert!(has_redis_key(&cluster.nodes[new.master], key));
        cluster.request_failover(old.master);
        cluster.wait_until_promoted(old.master, &clock);
    }
    cluster.wait_until_settled();
    assert_eq!(cluster.shards(), old);
}

#[test]
fn cluster_fails_over_after_master_kill() {
    let mut cluster = Cluster::start();
    let (keys, shards) = (one_key_per_shard(&cluster), cluster.shards());
    set_redis_key(&cluster.nodes[shards[0].master], &keys[0]).unwrap();
    wait_until_replicated(&cluster.nodes[shards[0].master], &cluster.nodes[shards[0].replica]);
    let offset = cluster.nodes[shards[0].master].kill_at_known_offset();
    set_redis_key(&cluster.nodes[shards[1].master], &keys[1]).unwrap();
    cluster.wait_until_promoted(shards[0].replica, &SystemClock::new());
    assert_eq!(
        cluster.nodes[shards[0].replica].offset_at_promotion(),
        offset,
        "the replica had everything"
    );
    assert!(has_redis_key(&cluster.nodes[shards[0].replica], &keys[0]));
    cluster.nodes[shards[0].master].restart();
    cluster.wait_until_settled();
    assert_eq!(cluster.shards()[0].master, shards[0].replica);
}

#[test]
fn cluster_fails_over_after_master_pause() {
    let cluster = Cluster::start();
    let shard = cluster.shards()[0];
    cluster.nodes[shard.master].clear_log();
    cluster.nodes[shard.master].pause();
    cluster.wait_until_promoted(shard.replica, &SystemClock::new());
    cluster.nodes[shard.master].resume();
    cluster.wait_until_settled();
    assert_eq!(cluster.shards()[0].master, shard.replica);
    let promotion_offset = cluster.nodes[shard.replica].offset_at_promotion();
    assert!(cluster.nodes[shard.master].offset_at_demotion() >= promotion_offset);
}

#[test]
fn cluster_failover_loses_unreplicated_writes() {
    let mut cluster = Cluster::start();
    let (key, shard) = (one_key_per_shard(&cluster).swap_remove(0), cluster.shards()[0]);
    let (masters, replicas) = cluster.nodes.split_at_mut(crate::server::cluster::SHARDS);
    let replica = &replicas[shard.replica - masters.len()];
    assert_unreplicated_writes_are_lost(&mut masters[shard.master], replica, &key);
}

/// Returns the kind and the address of the redirection with which a node responds to a read of a key.
fn query_redirection(node: &Redis, key: &str) -> (ServerErrorKind, String) {
    let error = node.try_command::<Option<String>>(&["GET", key]).unwrap_err();
    let (address, _) = error.redirect_node().unwrap();
    match error.kind() {
        ErrorKind::Server(kind) => (kind, address.to_owned()),
        kind => panic!("{kind:?}"),
    }
}

#[test]
fn cluster_slot_migrates_to_other_master_and_back() {
    let cluster = Cluster::start();
    let keys = one_key_per_shard(&cluster);
    let (shards, slot) = (cluster.shards(), cluster.slot_of(&keys[0]));
    let [old_master, new_master] = [shards[0].master, shards[1].master];
    let (moves, stays) = (format!("{{{}}}moves", keys[0]), &keys[0]);
    for (from, to) in [(old_master, new_master), (new_master, old_master)] {
        let [old, new] = [&cluster.nodes[from], &cluster.nodes[to]];
        let address = format!("127.0.0.1:{}", new.port());
        set_redis_key(old, stays).unwrap();
        cluster.begin_slot_migration(slot, from, to);
        // The node serves existing keys, and redirects calls for missing ones.
        set_redis_key(old, stays).unwrap();
        assert_eq!(query_redirection(old, &moves), (ServerErrorKind::Ask, address.clone()));
        assert_eq!(cluster.move_keys(slot, from, to, 1), 1);
        assert_eq!(query_redirection(old, stays), (ServerErrorKind::Ask, address.clone()));
        assert_eq!(query_redirection(new, stays).0, ServerErrorKind::Moved, "without ASKING");
        cluster.end_slot_migration(slot, from, to);
        assert_eq!(query_redirection(old, stays), (ServerErrorKind::Moved, address));
        assert!(has_redis_key(new, stays));
        wait_until("all nodes know the new master", || cluster.shard_of(slot).master == to);
        cluster.wait_until_settled();
    }
}

#[test]
fn replica_restart_causes_no_failover() {
    let mut cluster = Cluster::start();
    let shard = cluster.shards()[0];
    cluster.nodes[shard.replica].kill();
    let is_noticed = |cluster: &Cluster| {
        let nodes: String = cluster.nodes[shard.master].try_command(&["CLUSTER", "NODES"]).unwrap();
        nodes.contains("slave,fail ")
    };
    wait_until("the failure is noticed", || is_noticed(&cluster));
    assert!(cluster.is_ok(shard.master).unwrap());
    cluster.nodes[shard.replica].restart();
    cluster.wait_until_settled();
    assert_eq!(cluster.shards()[0], shard);
}
