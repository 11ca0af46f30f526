//! What was told, held against what stands in Redis and what it admits to have lost.

use std::sync::Arc;

use slidegate::Timestamp;

use super::crowd::{CallOutcome, CallRecord, Person};

/// All that callers were told, and how much of each limit of each person was used up in the end.
pub struct Record {
    pub people: Arc<[Person]>,
    pub records: Vec<CallRecord>,
    pub charged: Vec<Vec<u64>>,
}

/// What became of charges.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// Charges that do not stand any more.
    pub lost: u64,
    /// How many more than max were allowed, for they stood no more.
    pub above_max: u64,
}

impl Record {
    fn times(&self, person: usize, is: impl Fn(CallOutcome) -> bool) -> u64 {
        self.records.iter().filter(|records| records.person == person && is(records.outcome)).count()
            as u64
    }

    /// Of these people, Redis admits to have lost so many charges at most.
    ///
    /// - No more was allowed than max, and what was lost.
    /// - No more was lost than it admits.
    /// - Nothing was charged twice: what stands was allowed, or nobody knows of it.
    pub fn assert_counts(&self, person: &[usize], admitted: u64) -> Loss {
        let (mut lost, mut above_max) = (0, 0);
        for &person in person {
            let allowed = self.times(person, |answer| answer == CallOutcome::Allowed);
            let unknown = self.times(person, |answer| answer == CallOutcome::TimedOut);
            assert!(allowed > 0, "a test that allows nothing shows nothing");
            let limits = &self.people[person].limits;
            for (limit, &charged) in limits.iter().zip(&self.charged[person]) {
                assert!(
                    charged <= allowed + unknown,
                    "{charged} stand, {allowed} + {unknown} allowed"
                );
                above_max += allowed.saturating_sub(limit.capacity());
            }
            let least = self.charged[person].iter().min().unwrap();
            lost += allowed.saturating_sub(*least);
        }
        println!("{lost} charges lost, {above_max} more allowed than max, {admitted} admitted");
        assert!(lost <= admitted, "{lost} charges lost, {admitted} admitted");
        assert!(above_max <= admitted, "{above_max} more allowed than max, {admitted} admitted");
        Loss { lost, above_max }
    }

    /// These people's asks of a time were answered by the store, but for what a busy machine is to blame for.
    pub fn assert_answered(&self, person: &[usize], from: Timestamp, to: Timestamp) {
        let asked = |records: &&CallRecord| {
            person.contains(&records.person) && (from..to).contains(&records.began)
        };
        let (mut asks, mut errors) = (0_usize, Vec::new());
        for records in self.records.iter().filter(asked) {
            asks += 1;
            errors.extend(records.outcome.is_error().then_some(records.outcome));
        }
        assert!(asks > 0, "nobody asked");
        let some = &errors[..errors.len().min(10)];
        assert!(errors.len() <= asks / 100, "of {asks} asks {}: {some:?}…", errors.len());
    }

    /// All people, by their numbers.
    pub fn all(&self) -> Vec<usize> {
        (0..self.people.len()).collect()
    }
}
