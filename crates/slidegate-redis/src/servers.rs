//! Who is asked: one server, or those of a Cluster, each for its slots.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::ask::Ask;
use crate::cluster::{Cluster, slot_of};
use crate::errand::Errand;
use crate::failure::{Elsewhere, Failure};
use crate::reply::Answer;
use crate::server::{Lane, Server, Told};

/// How often an ask is sent on from one node to another.
const MAX_MOVES: usize = 5;

/// How long to wait while only some keys of an ask have been moved.
const MOVING: Duration = Duration::from_millis(1);

/// Who is asked.
pub enum Servers {
    One(Arc<Server>),
    Cluster(Cluster),
}

/// Where an ask is sent.
struct Aim {
    server: Arc<Server>,
    lane: Lane,
}

impl Servers {
    /// The slot of a key. All that is in one slot can be decided together.
    pub fn slot(&self, key: &str) -> u16 {
        match self {
            Self::One(_) => 0,
            Self::Cluster(_) => slot_of(key),
        }
    }

    /// Whether nobody is asked, since all have failed of late.
    pub fn is_breaker_open(&self) -> bool {
        match self {
            Self::One(server) => server.is_breaker_open(),
            Self::Cluster(cluster) => cluster.is_breaker_open(),
        }
    }

    /// Returns whether Redis has been reached and a breaker allows a call.
    pub fn answers(&self) -> bool {
        match self {
            Self::One(server) => server.answers(),
            Self::Cluster(cluster) => cluster.answers(),
        }
    }

    /// Whether whoever has a key is not asked.
    pub fn is_open_at(&self, key: &str) -> bool {
        match self {
            Self::One(server) => server.is_breaker_open(),
            Self::Cluster(cluster) => cluster.is_open_at(slot_of(key)),
        }
    }

    /// Decides an ask whose keys are in one slot, until a moment at the latest.
    pub async fn decide(&self, slot: u16, ask: &Arc<Ask>, until: Instant) -> Told {
        self.send(slot, until, |aim| async move { aim.server.decide(aim.lane, ask, until).await })
            .await
    }

    /// Runs an errand in a slot.
    pub async fn run(
        &self,
        slot: u16,
        errand: &Errand<'_>,
        until: Instant,
    ) -> Result<Answer, Failure> {
        self.send(
            slot,
            until,
            |aim| async move { aim.server.run(errand, aim.lane.asking, until).await },
        )
        .await
    }

    /// Those who wait for the lane of a single server go together once what is returned is dropped.
    pub fn hold(&self) -> Option<impl Drop> {
        match self {
            Self::One(server) => server.hold(Lane::default()),
            Self::Cluster(_) => None,
        }
    }

    /// Sends something to whoever has the slot, and on to whom that one names: nothing was charged then.
    async fn send<T, F>(
        &self,
        slot: u16,
        until: Instant,
        send: impl Fn(Aim) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let cluster = match self {
            Self::One(server) => {
                return send(Aim { server: server.clone(), lane: Lane::default() }).await;
            }
            Self::Cluster(cluster) => cluster,
        };
        let mut lane = Lane { slot, ..Lane::default() };
        let mut server = cluster.master(slot, until).await?;
        let mut moves = 0;
        loop {
            let failure = match send(Aim { server: server.clone(), lane }).await {
                Err(Failure::Elsewhere(elsewhere)) => elsewhere,
                Err(failure) => {
                    if matches!(failure, Failure::Down(_)) {
                        cluster.is_wrong();
                    }
                    return Err(failure);
                }
                done => return done,
            };
            match &failure {
                Elsewhere::Moved(_) | Elsewhere::Asking(_) if moves == MAX_MOVES => {
                    return Err(Failure::Elsewhere(failure));
                }
                Elsewhere::Moved(address) => {
                    cluster.is_wrong();
                    server = cluster.named_by(&server, address)?;
                    (lane.asking, moves) = (false, moves + 1);
                }
                Elsewhere::Asking(address) => {
                    server = cluster.named_by(&server, address)?;
                    (lane.asking, moves) = (true, moves + 1);
                }
                Elsewhere::Again if Instant::now() + MOVING >= until => {
                    return Err(Failure::Elsewhere(failure));
                }
                Elsewhere::Again => {
                    // It may be only in company that its keys are not all in one place.
                    if lane.alone {
                        sleep(MOVING).await;
                    }
                    server = cluster.master(slot, until).await?;
                    (lane.asking, lane.alone) = (false, true);
                }
            }
        }
    }
}
