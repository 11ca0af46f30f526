//! Who waits while a call is in flight: they go together with the next.
//!
//! Each lane has at most one call in flight. Who comes while there is none goes at once, alone; who comes
//! meanwhile waits for its end, first come, first served.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Jobs that go together, at most.
pub const MAX_TOGETHER: usize = 128;

/// Jobs that may wait in all lanes of a queue together.
pub const MAX_WAITING: usize = 16_384;

/// Jobs that wait, by lane. A lane without a call in flight is not there.
#[derive(Debug)]
pub struct Queue<L, J, A> {
    state: Mutex<State<L, J, A>>,
}

#[derive(Debug)]
struct State<L, J, A> {
    lanes: HashMap<L, VecDeque<Waiting<J, A>>>,
    waiting: usize,
    next_number: u64,
}

/// A job that waits, and who wants to hear of it.
#[derive(Debug)]
pub struct Waiting<J, A> {
    number: u64,
    pub job: J,
    pub answer: oneshot::Sender<A>,
}

/// How a job goes.
#[derive(Debug)]
pub enum Entered<L: Lane, J, A> {
    /// At once, alone. Whoever makes the call leaves the lane when it has ended.
    Alone(J),
    /// With the next call of its lane.
    Waits(Place<L, J, A>),
    /// Not at all: too many wait.
    Refused,
}

/// What names a lane.
pub trait Lane: Copy + Eq + std::hash::Hash {}
impl<L: Copy + Eq + std::hash::Hash> Lane for L {}

/// The place of a job that waits. Who gives it up before the job is called has never been there.
#[derive(Debug)]
pub struct Place<L: Lane, J, A> {
    queue: Arc<Queue<L, J, A>>,
    lane: L,
    number: u64,
    answer: oneshot::Receiver<A>,
}

impl<L: Lane, J, A> Queue<L, J, A> {
    pub fn new() -> Self {
        let state = State { lanes: HashMap::new(), waiting: 0, next_number: 0 };
        Self { state: Mutex::new(state) }
    }

    /// Enters a lane.
    pub fn enter(self: &Arc<Self>, lane: L, job: J) -> Entered<L, J, A> {
        let mut state = self.state.lock();
        let State { lanes, waiting, next_number } = &mut *state;
        let Some(others) = lanes.get_mut(&lane) else {
            lanes.insert(lane, VecDeque::new());
            return Entered::Alone(job);
        };
        if *waiting >= MAX_WAITING {
            return Entered::Refused;
        }
        let (sender, receiver) = oneshot::channel();
        let number = *next_number;
        others.push_back(Waiting { number, job, answer: sender });
        (*waiting, *next_number) = (*waiting + 1, number + 1);
        Entered::Waits(Place { queue: self.clone(), lane, number, answer: receiver })
    }

    /// Enters a lane without a job, if no call is in flight in it.
    pub fn hold(&self, lane: L) -> bool {
        let lanes = &mut self.state.lock().lanes;
        let is_free = !lanes.contains_key(&lane);
        if is_free {
            lanes.insert(lane, VecDeque::new());
        }
        is_free
    }

    /// A call has ended: those that go together next, the first and the others for as long as each `joins`;
    /// or nobody, and the lane is free.
    pub fn leave(&self, lane: L, mut joins: impl FnMut(&J) -> bool) -> Vec<Waiting<J, A>> {
        let mut state = self.state.lock();
        let State { lanes, waiting, .. } = &mut *state;
        let Some(others) = lanes.get_mut(&lane) else { return Vec::new() };
        let mut next = Vec::with_capacity(others.len().min(MAX_TOGETHER));
        while let Some(first) = others.front()
            && next.len() < MAX_TOGETHER
            && (joins(&first.job) || next.is_empty())
        {
            next.extend(others.pop_front());
        }
        *waiting -= next.len();
        if next.is_empty() {
            lanes.remove(&lane);
        }
        next
    }
}

impl<L: Lane, J, A> Place<L, J, A> {
    /// Waits for the answer; none if nobody will ever give one.
    pub async fn answer(&mut self) -> Option<A> {
        (&mut self.answer).await.ok()
    }

    /// Gives the place up. Whether the job was still waiting, so that it was never called.
    pub fn give_up(&self) -> bool {
        let mut state = self.queue.state.lock();
        let State { lanes, waiting, .. } = &mut *state;
        let Some(others) = lanes.get_mut(&self.lane) else { return false };
        // Numbers grow from the front to the back.
        let found = others.binary_search_by_key(&self.number, |other| other.number);
        let given_up = found.ok().and_then(|at| others.remove(at));
        *waiting -= usize::from(given_up.is_some());
        given_up.is_some()
    }
}

impl<L: Lane, J, A> Drop for Place<L, J, A> {
    fn drop(&mut self) {
        self.give_up();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Jobs = Queue<u16, u32, u32>;

    fn waits(entered: Entered<u16, u32, u32>) -> Place<u16, u32, u32> {
        match entered {
            Entered::Waits(place) => place,
            other => panic!("{other:?}"),
        }
    }

    fn jobs(next: &[Waiting<u32, u32>]) -> Vec<u32> {
        next.iter().map(|waiting| waiting.job).collect()
    }

    #[test]
    fn who_finds_no_call_in_flight_goes_at_once() {
        let queue = Arc::new(Jobs::new());
        assert!(matches!(queue.enter(1, 10), Entered::Alone(10)));
        assert!(matches!(queue.enter(2, 20), Entered::Alone(20)), "another lane");
        let _waits = waits(queue.enter(1, 11));
        assert!(queue.leave(2, |_| true).is_empty());
        assert!(matches!(queue.enter(2, 21), Entered::Alone(21)), "the lane is free again");
    }

    #[test]
    fn who_waits_goes_with_the_next_call_first_come_first_served_and_not_too_many() {
        let queue = Arc::new(Jobs::new());
        assert!(queue.hold(1) && !queue.hold(1));
        let many = MAX_TOGETHER as u32 + 3;
        let _places: Vec<_> = (0..many).map(|job| waits(queue.enter(1, job))).collect();
        assert_eq!(jobs(&queue.leave(1, |_| true)), (0..MAX_TOGETHER as u32).collect::<Vec<_>>());
        let _late = waits(queue.enter(1, many));
        let next = queue.leave(1, |job| *job < many - 1);
        assert_eq!(jobs(&next), [many - 3, many - 2], "for as long as each joins");
        assert_eq!(jobs(&queue.leave(1, |_| false)), [many - 1], "the first goes in any case");
        assert_eq!(jobs(&queue.leave(1, |_| false)), [many]);
        assert!(queue.leave(1, |_| true).is_empty());
        assert!(queue.state.lock().lanes.is_empty());
    }

    #[test]
    fn who_gives_up_is_never_called_unless_he_was_already() {
        let queue = Arc::new(Jobs::new());
        assert!(queue.hold(1));
        let places: Vec<_> = (0..3).map(|job| waits(queue.enter(1, job))).collect();
        assert!(places[1].give_up() && !places[1].give_up());
        let next = queue.leave(1, |_| true);
        assert_eq!(jobs(&next), [0, 2]);
        assert!(!places[0].give_up(), "he is being called");
        drop(places);
        assert_eq!(queue.state.lock().waiting, 0);
    }

    #[test]
    fn a_place_that_is_dropped_is_free_for_others() {
        let queue = Arc::new(Jobs::new());
        assert!(queue.hold(1) && queue.hold(2));
        let mut places: Vec<_> =
            (0..MAX_WAITING).map(|job| waits(queue.enter(1, job as u32))).collect();
        assert!(matches!(queue.enter(2, 0), Entered::Refused), "of all lanes together");
        places.pop();
        drop(waits(queue.enter(2, 0)));
        drop(places);
        assert_eq!(queue.state.lock().waiting, 0);
    }
}
