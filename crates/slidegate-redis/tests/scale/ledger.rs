//! What was told, held against what stands in Redis and what it admits to have lost.

use std::sync::Arc;

use slidegate::Timestamp;

use super::crowd::{Answer, Person, Told};

/// All that callers were told, and how much of each limit of each person was used up in the end.
pub struct Record {
    pub people: Arc<[Person]>,
    pub told: Vec<Told>,
    pub stands: Vec<Vec<u64>>,
}

/// What became of charges.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// Charges that do not stand any more.
    pub lost: u64,
    /// How many more than max were allowed, for they stood no more.
    pub above: u64,
}

impl Record {
    fn times(&self, who: usize, is: impl Fn(Answer) -> bool) -> u64 {
        self.told.iter().filter(|told| told.who == who && is(told.answer)).count() as u64
    }

    /// Of these people, Redis admits to have lost so many charges at most.
    ///
    /// - No more was allowed than max, and what was lost.
    /// - No more was lost than it admits.
    /// - Nothing was charged twice: what stands was allowed, or nobody knows of it.
    pub fn assert_counts(&self, who: &[usize], admitted: u64) -> Loss {
        let (mut lost, mut above) = (0, 0);
        for &who in who {
            let allowed = self.times(who, |answer| answer == Answer::Allowed);
            let unknown = self.times(who, |answer| answer == Answer::TimedOut);
            assert!(allowed > 0, "a test that allows nothing shows nothing");
            let limits = &self.people[who].limits;
            for (limit, &stands) in limits.iter().zip(&self.stands[who]) {
                assert!(
                    stands <= allowed + unknown,
                    "{stands} stand, {allowed} + {unknown} allowed"
                );
                above += allowed.saturating_sub(limit.capacity());
            }
            let least = self.stands[who].iter().min().unwrap();
            lost += allowed.saturating_sub(*least);
        }
        println!("{lost} charges lost, {above} more allowed than max, {admitted} admitted");
        assert!(lost <= admitted, "{lost} charges lost, {admitted} admitted");
        assert!(above <= admitted, "{above} more allowed than max, {admitted} admitted");
        Loss { lost, above }
    }

    /// These people's asks of a time were answered by the store, but for what a busy machine is to blame for.
    pub fn assert_answered(&self, who: &[usize], from: Timestamp, to: Timestamp) {
        let asked = |told: &&Told| who.contains(&told.who) && (from..to).contains(&told.began);
        let (mut asks, mut errors) = (0_usize, Vec::new());
        for told in self.told.iter().filter(asked) {
            asks += 1;
            errors.extend(told.answer.is_error().then_some(told.answer));
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
