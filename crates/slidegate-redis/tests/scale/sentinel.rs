//! A service that Sentinel guards.

use slidegate::Timestamp;

use super::crowd::{Crowd, Person, bytes_of_a_charge, calls, room};
use super::ledger::Record;
use crate::server::node::Node;
use crate::server::sentinel::Service;

const FOREVER: Timestamp = Timestamp::from_micros(u64::MAX);

/// More than fits into what the system keeps of a connection.
const MUCH: usize = 32 << 20;

/// Some are soon denied, some later, and some never.
fn people() -> Vec<Person> {
    let person = |nth: usize| Person::new(format!("{nth:05}"), [150, 1_500, 1_000_000][nth % 3]);
    (0..12).map(person).collect()
}

/// A service under load.
struct Trial {
    service: Service,
    crowd: Crowd,
    bytes_of_a_charge: u64,
}

impl Trial {
    async fn begin() -> Self {
        let service = Service::start();
        let address = service.address();
        let other = Person::new("other".to_owned(), 1_000_000);
        let bytes_of_a_charge = bytes_of_a_charge(&address, service.master(), &other).await;
        let crowd = Crowd::begin(&address, people()).await;
        assert_eq!(calls(service.replica()), 0, "replicas are not asked");
        Self { service, crowd, bytes_of_a_charge }
    }

    /// Waits until the replica is promoted and asked. All must be well when this is over.
    async fn fails_over(&self) -> Timestamp {
        let promoted = self.service.replica().promoted(&self.crowd.clock);
        self.crowd.resumes_at(self.service.replica(), 0, promoted).await;
        self.crowd.is_well_after(promoted).await
    }

    /// Ends, once the old master is a replica. Of its bytes so many were lost.
    async fn end(
        mut self,
        well: Timestamp,
        lost_bytes: impl FnOnce(&Service) -> u64,
    ) -> (Record, u64) {
        self.service.change_places();
        let calls_of_replica = calls(self.service.replica());
        self.crowd.goes_on().await;
        assert_eq!(calls(self.service.replica()), calls_of_replica, "replicas are not asked");
        let record = self.crowd.end().await;
        record.assert_answered(&record.all(), well, FOREVER);
        let bytes = lost_bytes(&self.service);
        let lost = record.assert_counts(&record.all(), bytes / self.bytes_of_a_charge);
        (record, lost)
    }
}

/// Bytes that one who lives on as a replica had written as a master and the new master did not have.
fn written_off(service: &Service) -> u64 {
    service.replica().offset_at_demotion() - service.master().offset_at_promotion()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_that_was_asked_for() {
    let _room = room().await;
    let trial = Trial::begin().await;
    trial.service.master().forget_log();
    trial.service.ask_for_failover();
    let well = trial.fails_over().await;
    // Sentinel lets the old master be one for a while, and whatever it is asked is lost.
    let calls_of_old = calls(trial.service.master());
    trial.crowd.goes_on().await;
    assert_eq!(calls(trial.service.master()), calls_of_old, "the old master is asked no more");
    trial.end(well, written_off).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_killed_and_a_sentinel_with_it() {
    let _room = room().await;
    let mut trial = Trial::begin().await;
    trial.service.sentinels[0].kill();
    let end = trial.service.master_mut().kill_at_an_offset();
    let well = trial.fails_over().await;
    let lost = end - trial.service.replica().offset_at_promotion();
    trial.crowd.goes_on().await;
    trial.service.sentinels[0].restart();
    trial.service.master_mut().restart();
    trial.end(well, |_| lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_paused() {
    let _room = room().await;
    let trial = Trial::begin().await;
    trial.service.master().forget_log();
    trial.service.master().pause();
    let well = trial.fails_over().await;
    trial.service.master().resume();
    trial.crowd.goes_on().await;
    // It is a master again for a while, and has done what it was asked before.
    let calls_of_old = calls(trial.service.master());
    trial.crowd.goes_on().await;
    assert_eq!(calls(trial.service.master()), calls_of_old, "the old master is asked no more");
    trial.end(well, written_off).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_killed_before_its_replica_has_read_all() {
    let _room = room().await;
    let mut trial = Trial::begin().await;
    let much = fall_behind(trial.service.master(), trial.service.replica(), "much");
    trial.crowd.goes_on().await;
    let end = trial.service.master_mut().kill_at_an_offset();
    trial.service.replica().resume();
    let well = trial.fails_over().await;
    let lost_bytes = end - trial.service.replica().offset_at_promotion() - much;
    trial.crowd.goes_on().await;
    trial.service.master_mut().restart();
    let (_, lost) = trial.end(well, |_| lost_bytes).await;
    assert!(lost > 100, "{lost}: a test that loses nothing shows nothing");
}

/// Pauses a replica, and has its master write so much that nothing later reaches it. Bytes of that.
pub fn fall_behind(master: &Node, replica: &Node, key: &str) -> u64 {
    replica.pause();
    let much = "x".repeat(MUCH);
    let set = redis::cmd("SET").arg(key).arg(&much).to_owned();
    set.exec(&mut master.connection()).unwrap();
    set.get_packed_command().len() as u64
}
