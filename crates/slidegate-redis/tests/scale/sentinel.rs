//! A service that Sentinel guards.

use slidegate::Timestamp;

use super::crowd::{
    AFTER_A_PROMOTION, Crowd, DENIED_LATER, Person, bytes_of_a_charge, calls, fall_behind, person,
    room,
};
use super::ledger::Loss;
use crate::server::sentinel::Service;

const FOREVER: Timestamp = Timestamp::from_micros(u64::MAX);

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
        let people = (0..12).map(|nth| person(format!("{nth:05}"), nth)).collect();
        let crowd = Crowd::begin(&address, people).await;
        assert_eq!(calls(service.replica()), 0, "replicas are not asked");
        Self { service, crowd, bytes_of_a_charge }
    }

    /// Waits until the replica is promoted and asked. All must be well when this is over.
    async fn fails_over(&self) -> Timestamp {
        let replica = self.service.replica();
        let promoted = replica.promoted(&self.crowd.clock);
        self.crowd.resumes(replica, 0, promoted, AFTER_A_PROMOTION).await
    }

    /// Ends, once the old master is a replica. Of its bytes so many were lost.
    async fn end(mut self, well: Timestamp, lost_bytes: impl FnOnce(&Service) -> u64) -> Loss {
        self.service.change_places();
        let calls_of_replica = calls(self.service.replica());
        self.crowd.goes_on().await;
        assert_eq!(calls(self.service.replica()), calls_of_replica, "replicas are not asked");
        let record = self.crowd.end().await;
        record.assert_answered(&record.all(), well, FOREVER);
        let bytes = lost_bytes(&self.service);
        record.assert_counts(&record.all(), bytes / self.bytes_of_a_charge)
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
async fn a_master_that_is_paused_and_a_sentinel_with_it() {
    let _room = room().await;
    let trial = Trial::begin().await;
    trial.service.master().forget_log();
    trial.service.sentinels[0].pause();
    trial.service.master().pause();
    let well = trial.fails_over().await;
    trial.service.sentinels[0].resume();
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
    let [master, replica] = [trial.service.master(), trial.service.replica()];
    let much = fall_behind(master, replica, "much");
    trial.crowd.is_denied(DENIED_LATER).await;
    let end = trial.service.master_mut().kill_at_an_offset();
    trial.service.replica().resume();
    let well = trial.fails_over().await;
    let lost_bytes = end - trial.service.replica().offset_at_promotion() - much;
    trial.crowd.is_denied(DENIED_LATER).await;
    trial.service.master_mut().restart();
    let loss = trial.end(well, |_| lost_bytes).await;
    assert!(
        loss.lost > 100 && loss.above > 10,
        "a test that loses nothing shows nothing: {loss:?}"
    );
}
