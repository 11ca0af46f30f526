//! A cluster.

use std::time::Duration;

use slidegate::Timestamp;

use super::crowd::{
    AFTER_A_PROMOTION, Crowd, DENIED_LATER, Person, bytes_of_a_charge, calls, fall_behind, person,
    room,
};
use super::ledger::Loss;
use crate::server::Redis;
use crate::server::cluster::{Cluster, Shard};
use crate::server::node::field;
use crate::server::wait_until;

const EVER: (Timestamp, Timestamp) = (Timestamp::from_micros(0), Timestamp::from_micros(u64::MAX));

/// Who comes back at the place where nobody was any more is found by the next probe of a breaker, which may come five
/// seconds later, and then takes what a promotion takes.
const AFTER_A_RESTART: Duration = AFTER_A_PROMOTION.saturating_add(Duration::from_secs(5));

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

impl Trial {
    /// Of each shard the same number of people, first those of the first. The stores know one node at first.
    async fn begin() -> Self {
        let cluster = Cluster::start();
        let shards = cluster.shards();
        let (address, first) = (cluster.address_of(&[shards[0].master]), shards[0].master);
        let mut people = Vec::new();
        for &shard in &shards {
            let names = names(&cluster, shard, EACH).into_iter().enumerate();
            people.extend(names.map(|(nth, name)| person(name, nth)));
        }
        // Somebody of the first shard for whom nobody asks later.
        let other = names(&cluster, shards[0], EACH + 1).pop().unwrap();
        let other = Person::new(other, 1_000_000);
        let bytes_of_a_charge = bytes_of_a_charge(&address, &cluster.nodes[first], &other).await;
        let crowd = Crowd::begin(&address, people).await;
        for shard in shards {
            assert_eq!(calls(&cluster.nodes[shard.replica]), 0, "replicas are not asked");
        }
        Self { cluster, crowd, bytes_of_a_charge }
    }

    /// Waits until a replica is promoted and asked. All must be well when this is over.
    async fn fails_over_to(&self, replica: usize, calls_before: u64) -> Timestamp {
        let promoted = self.cluster.promoted(replica, &self.crowd.clock);
        let replica = &self.cluster.nodes[replica];
        self.crowd.resumes(replica, calls_before, promoted, AFTER_A_PROMOTION).await
    }

    /// Bytes that one who lives on as a replica had written as a master and the new master did not have.
    fn written_off(&self, old: Shard) -> u64 {
        let [old, new] = [old.master, old.replica].map(|nth| &self.cluster.nodes[nth]);
        old.offset_at_demotion() - new.offset_at_promotion()
    }

    /// Ends, once all replicas are in sync. The first shard has lost bytes and was well again at a moment; the
    /// others have lost nothing and were always well.
    async fn end(self, well: Timestamp, lost_bytes: u64) -> Loss {
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
        record.assert_answered(&others, EVER.0, EVER.1);
        record.assert_counts(&others, 0);
        record.assert_counts(&first, lost_bytes / self.bytes_of_a_charge)
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
    trial.crowd.is_denied(DENIED_LATER).await;
    let end = trial.cluster.nodes[master].kill_at_an_offset();
    trial.cluster.nodes[replica].resume();
    let well = trial.fails_over_to(replica, 0).await;
    let lost_bytes = end - trial.cluster.nodes[replica].offset_at_promotion() - much;
    trial.crowd.is_denied(DENIED_LATER).await;
    trial.cluster.nodes[master].restart();
    let loss = trial.end(well, lost_bytes).await;
    assert!(
        loss.lost > 100 && loss.above > 10,
        "a test that loses nothing shows nothing: {loss:?}"
    );
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
    trial.cluster.nodes[shard.replica].kill();
    let lost_bytes = trial.cluster.nodes[shard.master].kill_at_an_offset();
    wait_until("the others miss it", || {
        let known = trial.cluster.nodes[other].try_command(&["CLUSTER", "NODES"]);
        known.is_ok_and(|known: String| known.contains("master,fail "))
    });
    trial.cluster.nodes[shard.master].restart();
    let back = trial.cluster.promoted(shard.master, &trial.crowd.clock);
    let master = &trial.cluster.nodes[shard.master];
    let well = trial.crowd.resumes(master, 0, back, AFTER_A_RESTART).await;
    trial.cluster.nodes[shard.replica].restart();
    trial.end(well, lost_bytes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_and_back() {
    let _room = room().await;
    let cluster = Cluster::start();
    let mut names = names_of_a_slot(&cluster, EACH + 2).into_iter();
    let slot = cluster.slot_of(&identity(&names.as_slice()[0]));
    let with_one_key = names.by_ref().take(EACH).enumerate();
    let mut people: Vec<Person> = with_one_key.map(|(nth, name)| person(name, nth)).collect();
    // With two keys, of which one may be here and one there: these may have to wait until both are.
    people.extend(names.map(|name| Person::new(name, 1_000_000).with_a_log(1_000_000)));
    let crowd = Crowd::begin(&cluster.address(), people).await;
    let here = cluster.shard_of(slot).master;
    let masters = cluster.shards().into_iter().map(|shard| shard.master);
    let there = masters.into_iter().find(|&nth| nth != here).unwrap();
    for (from, to) in [(here, there), (there, here)].repeat(2) {
        let sent_away = |why| errors_of(&cluster.nodes[from], why);
        let before = [sent_away("ASK"), sent_away("MOVED")];
        cluster.begin_to_move(slot, from, to);
        crowd.goes_on().await;
        while cluster.move_keys(slot, from, to, 1) > 0 {
            crowd.a_few_asks().await;
        }
        assert!(sent_away("ASK") > before[0], "asks are sent after the keys");
        cluster.end_to_move(slot, from, to);
        crowd.goes_on().await;
        let told = sent_away("MOVED") - before[1];
        assert!((1..100).contains(&told), "they have been told {told} times");
    }
    cluster.wait_until_settled();
    let record = crowd.end().await;
    let with_one_key: Vec<usize> = (0..EACH).collect();
    record.assert_answered(&with_one_key, EVER.0, EVER.1);
    record.assert_counts(&record.all(), 0);
}

/// How often a node has answered with an error of this kind.
fn errors_of(node: &Redis, kind: &str) -> u64 {
    let info: String = node.try_command(&["INFO", "errorstats"]).unwrap();
    let count = field(&info, &format!("errorstat_{kind}"));
    count.map_or(0, |count| count.trim_start_matches("count=").parse().unwrap())
}
