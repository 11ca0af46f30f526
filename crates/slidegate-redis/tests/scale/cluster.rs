//! A cluster.

use slidegate::Timestamp;

use super::crowd::{Crowd, Person, bytes_of_a_charge, calls, room};
use super::ledger::Record;
use super::sentinel::fall_behind;
use crate::server::cluster::{Cluster, Shard};
use crate::server::wait_until;

const EVER: (Timestamp, Timestamp) = (Timestamp::from_micros(0), Timestamp::from_micros(u64::MAX));

/// How many people each shard counts.
const EACH: usize = 4;

/// A cluster under load.
struct Trial {
    cluster: Cluster,
    crowd: Crowd,
    bytes_of_a_charge: u64,
}

/// The part of a person's keys that is hashed.
fn identity(name: &str) -> String {
    format!("{{who={name}}}")
}

/// So many names whose keys are in a shard, all as long.
fn names(cluster: &Cluster, shard: Shard, many: usize) -> Vec<String> {
    let names = (0..).map(|nth| format!("{nth:05}"));
    let is_there = |name: &String| cluster.shard_of(cluster.slot_of(&identity(name))) == shard;
    names.filter(is_there).take(many).collect()
}

/// So many names whose keys are in one slot.
fn names_of_a_slot(cluster: &Cluster, many: usize) -> Vec<String> {
    let names: Vec<String> = (0..100_000).map(|nth| format!("{nth:05}")).collect();
    let mut pipeline = redis::pipe();
    for name in &names {
        pipeline.cmd("CLUSTER").arg("KEYSLOT").arg(identity(name));
    }
    let slots: Vec<u16> = pipeline.query(&mut cluster.nodes[0].connection()).unwrap();
    let mut named = names.iter().zip(&slots).filter(|(_, slot)| **slot == slots[0]);
    let names: Vec<String> = named.by_ref().take(many).map(|(name, _)| name.clone()).collect();
    assert_eq!(names.len(), many);
    names
}

/// Some are soon denied, some later, and some never.
fn person(name: String, nth: usize) -> Person {
    Person::new(name, [150, 1_500, 1_000_000, 1_000_000][nth % EACH])
}

impl Trial {
    /// Of each shard the same number of people: first those of the first.
    async fn begin() -> Self {
        let cluster = Cluster::start();
        let mut people = Vec::new();
        let mut other = None;
        for shard in cluster.shards() {
            let mut names = names(&cluster, shard, EACH + 1).into_iter();
            people
                .extend(names.by_ref().take(EACH).enumerate().map(|(nth, name)| person(name, nth)));
            other = other.or_else(|| names.next());
        }
        Self::with(cluster, people, Person::new(other.unwrap(), 1_000_000)).await
    }

    /// With a person of the first shard that nobody asks for.
    async fn with(cluster: Cluster, people: Vec<Person>, other: Person) -> Self {
        let (address, first) = (cluster.address(), cluster.shards()[0]);
        let master = &cluster.nodes[first.master];
        let bytes_of_a_charge = bytes_of_a_charge(&address, master, &other).await;
        let crowd = Crowd::begin(&address, people).await;
        let trial = Self { cluster, crowd, bytes_of_a_charge };
        for shard in trial.cluster.shards() {
            assert_eq!(calls(&trial.cluster.nodes[shard.replica]), 0, "replicas are not asked");
        }
        trial
    }

    /// Waits until a replica is promoted and asked. All must be well when this is over.
    async fn fails_over_to(&self, replica: usize, calls_before: u64) -> Timestamp {
        let promoted = self.cluster.promoted(replica, &self.crowd.clock);
        self.crowd.resumes_at(&self.cluster.nodes[replica], calls_before, promoted).await;
        self.crowd.is_well_after(promoted).await
    }

    /// Bytes that one who lives on as a replica had written as a master and the new master did not have.
    fn written_off(&self, old: Shard) -> u64 {
        let [old, new] = [old.master, old.replica].map(|nth| &self.cluster.nodes[nth]);
        old.offset_at_demotion() - new.offset_at_promotion()
    }

    /// Ends, once all replicas are in sync. The first shard has lost bytes and was well again at a moment; the
    /// others have lost nothing and were always well.
    async fn end(self, well: Timestamp, lost_bytes: u64) -> (Record, u64) {
        self.cluster.wait_until_settled();
        let replicas: Vec<usize> =
            self.cluster.shards().iter().map(|shard| shard.replica).collect();
        let calls_of = |&nth: &usize| calls(&self.cluster.nodes[nth]);
        let calls_before: Vec<u64> = replicas.iter().map(calls_of).collect();
        self.crowd.goes_on().await;
        let calls_now: Vec<u64> = replicas.iter().map(calls_of).collect();
        assert_eq!(calls_now, calls_before, "replicas are not asked");
        let record = self.crowd.end().await;
        let (first, others): (Vec<_>, Vec<_>) =
            record.all().into_iter().partition(|&who| who < EACH);
        record.assert_answered(&first, well, EVER.1);
        let lost = record.assert_counts(&first, lost_bytes / self.bytes_of_a_charge);
        record.assert_answered(&others, EVER.0, EVER.1);
        record.assert_counts(&others, 0);
        (record, lost)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_that_was_asked_for_and_back() {
    let _room = room().await;
    let trial = Trial::begin().await;
    let mut shard = trial.cluster.shards()[0];
    let mut well = EVER.0;
    for _ in 0..2 {
        trial.cluster.nodes[shard.master].forget_log();
        let calls_before = calls(&trial.cluster.nodes[shard.replica]);
        trial.cluster.ask_for_failover(shard.replica);
        well = trial.fails_over_to(shard.replica, calls_before).await;
        trial.cluster.wait_until_settled();
        assert_eq!(trial.written_off(shard), 0, "the replica waits until it has all");
        shard = Shard { master: shard.replica, replica: shard.master };
    }
    trial.end(well, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_killed_and_started_again() {
    let _room = room().await;
    let mut trial = Trial::begin().await;
    let shard = trial.cluster.shards()[0];
    let end = trial.cluster.nodes[shard.master].kill_at_an_offset();
    let well = trial.fails_over_to(shard.replica, 0).await;
    let lost = end - trial.cluster.nodes[shard.replica].offset_at_promotion();
    trial.crowd.goes_on().await;
    trial.cluster.nodes[shard.master].restart();
    trial.end(well, lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_paused() {
    let _room = room().await;
    let trial = Trial::begin().await;
    let shard = trial.cluster.shards()[0];
    trial.cluster.nodes[shard.master].forget_log();
    trial.cluster.nodes[shard.master].pause();
    let well = trial.fails_over_to(shard.replica, 0).await;
    trial.crowd.goes_on().await;
    trial.cluster.nodes[shard.master].resume();
    trial.cluster.wait_until_settled();
    let lost = trial.written_off(shard);
    trial.end(well, lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_killed_before_its_replica_has_read_all() {
    let _room = room().await;
    let mut trial = Trial::begin().await;
    let shard = trial.cluster.shards()[0];
    let [master, replica] = [shard.master, shard.replica];
    let key = identity(&trial.crowd.people[0].name);
    let much = fall_behind(&trial.cluster.nodes[master], &trial.cluster.nodes[replica], &key);
    trial.crowd.goes_on().await;
    let end = trial.cluster.nodes[master].kill_at_an_offset();
    trial.cluster.nodes[replica].resume();
    let well = trial.fails_over_to(replica, 0).await;
    let lost_bytes = end - trial.cluster.nodes[replica].offset_at_promotion() - much;
    trial.crowd.goes_on().await;
    trial.cluster.nodes[master].restart();
    let (_, lost) = trial.end(well, lost_bytes).await;
    assert!(lost > 50, "{lost}: a test that loses nothing shows nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_stopped_and_started_is_not_missed() {
    let _room = room().await;
    let mut trial = Trial::begin().await;
    let shard = trial.cluster.shards()[0];
    trial.cluster.nodes[shard.replica].kill();
    wait_until("the others miss it", || {
        let known = trial.cluster.nodes[shard.master].try_command(&["CLUSTER", "NODES"]);
        known.is_ok_and(|known: String| known.contains("slave,fail "))
    });
    trial.crowd.goes_on().await;
    trial.cluster.nodes[shard.replica].restart();
    trial.end(EVER.0, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_lost_whole_and_comes_back_empty() {
    let _room = room().await;
    let mut trial = Trial::begin().await;
    let shard = trial.cluster.shards()[0];
    let other = trial.cluster.shards()[1].master;
    for nth in [shard.replica, shard.master] {
        trial.cluster.nodes[nth].kill();
    }
    wait_until("the others miss it", || {
        let known = trial.cluster.nodes[other].try_command(&["CLUSTER", "NODES"]);
        known.is_ok_and(|known: String| known.contains("master,fail "))
    });
    trial.cluster.nodes[shard.master].restart();
    let well = trial.fails_over_to(shard.master, 0).await;
    trial.cluster.nodes[shard.replica].restart();
    // All that there was.
    trial.end(well, u64::MAX).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_and_back() {
    let _room = room().await;
    let cluster = Cluster::start();
    let mut names = names_of_a_slot(&cluster, 7).into_iter();
    let other = Person::new(names.next().unwrap(), 1_000_000);
    let slot = cluster.slot_of(&identity(&other.name));
    let mut people: Vec<Person> =
        names.by_ref().take(EACH).enumerate().map(|(nth, name)| person(name, nth)).collect();
    // With two keys, of which one may be here and one there: these may have to wait until both are.
    people.extend(names.map(|name| Person::new(name, 1_000_000).with_a_log(1_000_000)));
    let trial = Trial::with(cluster, people, other).await;
    let from = trial.cluster.shard_of(slot).master;
    let to = trial
        .cluster
        .shards()
        .into_iter()
        .map(|shard| shard.master)
        .find(|&nth| nth != from)
        .unwrap();
    for (from, to) in [(from, to), (to, from)] {
        trial.cluster.begin_to_move(slot, from, to);
        trial.crowd.goes_on().await;
        while trial.cluster.move_keys(slot, from, to, 1) > 0 {
            trial.crowd.a_few_asks().await;
        }
        trial.cluster.end_to_move(slot, from, to);
        trial.crowd.goes_on().await;
    }
    trial.cluster.wait_until_settled();
    let record = trial.crowd.end().await;
    let with_one_key: Vec<usize> = (0..EACH).collect();
    record.assert_answered(&with_one_key, EVER.0, EVER.1);
    let lost = record.assert_counts(&record.all(), 0);
    assert_eq!(lost, 0);
}
