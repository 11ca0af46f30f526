//! The store: what is known here is answered here, all else is asked, each slot by one script call.

mod sampled;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{join_all, poll_immediate};
use slidegate::store::Outcomes;
use slidegate::{ChargeResult, ChargeWhen, Clock, Hit, Outcome, Receipt, Store, StoreError, Veto};
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::address::{Address, Target};
use crate::ask::{Ask, Counted, Mode, Wording};
use crate::call::key_and_tag;
use crate::clocks::Clocks;
use crate::cluster::Cluster;
use crate::connect::{ConnectError, Settings, Trust, without_password};
use crate::deny_cache::{DenyCache, Heard, Known, Mark, units_changed};
use crate::errand;
use crate::failure::Failure;
use crate::over_slots::{self, parts};
use crate::reply::{Answer, Said};
use crate::server::{Manner, Server};
use crate::servers::Servers;

/// Counts in Redis: in one server, in the master that Sentinels name, or in a Cluster.
pub struct RedisStore {
    inner: Arc<Inner>,
    settings: Settings,
}

struct Inner {
    wording: Wording,
    servers: Servers,
    deny_cache: DenyCache,
    deny_cache_hits: AtomicU64,
    clocks: Arc<Clocks>,
    timeout: Duration,
    runtime: Handle,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl RedisStore {
    /// A store at an [`Address`]. Connects in the background, within a tokio runtime.
    ///
    /// # Errors
    /// If this is no address, or the file of certificates is none. That nobody answers there is none: the
    /// store says so when it is asked.
    pub fn open(address: &str, settings: Settings) -> Result<Self, ConnectError> {
        let address: Address = address.parse().map_err(|source| ConnectError::Address {
            address: without_password(address),
            source,
        })?;
        Self::at(&address, settings)
    }

    pub(crate) fn at(address: &Address, settings: Settings) -> Result<Self, ConnectError> {
        let clocks = Arc::new(Clocks::new());
        let wording = Wording::of(&settings);
        let manner =
            Manner { timeout: settings.timeout, keep_s: wording.keep_s, clocks: clocks.clone() };
        let trust = Trust::read(settings.ca_file.as_deref())?;
        let servers = match address.target() {
            Target::One(info) => trust.one(&info).map(|source| one(source, manner)),
            Target::Sentinel(target) => trust.sentinel(&target).map(|source| one(source, manner)),
            Target::Cluster(seeds) => Cluster::open(seeds, trust, manner).map(Servers::Cluster),
        };
        let servers = servers.map_err(|error| match &settings.ca_file {
            Some(path) => ConnectError::Ca { path: path.clone(), message: error.to_string() },
            None => {
                ConnectError::Client { address: address.to_string(), message: error.to_string() }
            }
        })?;
        let inner = Inner {
            wording,
            servers,
            deny_cache: DenyCache::new(settings.deny_cache_ttl),
            deny_cache_hits: AtomicU64::new(0),
            clocks,
            timeout: settings.timeout,
            runtime: Handle::current(),
        };
        Ok(Self { inner: Arc::new(inner), settings })
    }

    /// Tells Redis the time, instead of asking it: cheaper for Redis, and good where clocks agree.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock) -> Self {
        self.inner.clocks.count_by(clock);
        self
    }

    /// Denials that were known here, without asking Redis.
    pub fn deny_cache_hits(&self) -> u64 {
        self.inner.deny_cache_hits.load(Ordering::Relaxed)
    }

    /// Whether Redis is not asked, since it has failed too often of late. Of a Cluster: no node of it,
    /// also while none is known.
    pub fn is_breaker_open(&self) -> bool {
        self.inner.servers.is_breaker_open()
    }

    /// Returns whether there has been a connection and the breaker allows a call: it is closed, or it is time to try again.
    /// In a Cluster, one such master is enough.
    pub fn answers(&self) -> bool {
        self.inner.servers.answers()
    }
}

fn one(source: crate::connect::Source, manner: Manner) -> Servers {
    Servers::One(Arc::new(Server::open("", source, manner)))
}

/// The answer to no hits.
fn nothing() -> ChargeResult {
    ChargeResult { allowed: true, outcomes: Outcomes::new(), receipt: Receipt::default() }
}

/// Hits that a call may have at most: its format has 16 bits for their number.
const MAX_HITS: usize = u16::MAX as usize;

/// Refuses a request with too many hits. A policy that could cause so many with one descriptor is refused when it is
/// loaded.
fn numbered(hits: &[Hit<'_>]) -> Result<(), StoreError> {
    match hits.len() {
        0..=MAX_HITS => Ok(()),
        number => Err(StoreError::Unsupported(format!(
            "a request of {number} limits is too large: at most {MAX_HITS}"
        ))),
    }
}

/// Hits as they are counted.
type Hits = SmallVec<[Counted; 1]>;

impl Inner {
    fn until(&self) -> Instant {
        Instant::now() + self.timeout
    }

    fn counted(&self, hits: &[Hit<'_>]) -> Hits {
        hits.iter().map(|hit| self.wording.counted(hit)).collect()
    }

    /// Takes several requests, of which those of one slot are decided in their order.
    async fn take_each(
        self: &Arc<Self>,
        asks: impl Iterator<Item = Hits>,
    ) -> Vec<Result<ChargeResult, StoreError>> {
        let (mut done, mut under_way) = (Vec::new(), Vec::new());
        let mut held = None;
        for (nth, hits) in asks.enumerate() {
            if !hits.is_empty() && self.only_slot(&hits).is_none() {
                // Its slots are asked twice, so nobody else may be under way in them.
                drop(held.take());
                done.extend(join_all(under_way.drain(..)).await);
                done.push((nth, self.take(hits).await));
                continue;
            }
            held = held.or_else(|| self.servers.hold());
            let mut taking = Box::pin(async move { (nth, self.take(hits).await) });
            // To the place where it waits.
            match poll_immediate(&mut taking).await {
                Some(taken) => done.push(taken),
                None => under_way.push(taking),
            }
        }
        drop(held);
        done.extend(join_all(under_way).await);
        done.sort_unstable_by_key(|(nth, _)| *nth);
        done.into_iter().map(|(_, taken)| taken).collect()
    }

    async fn take(self: &Arc<Self>, hits: Hits) -> Result<ChargeResult, StoreError> {
        if hits.is_empty() {
            return Ok(nothing());
        }
        // What would have to be asked, and cannot, is not for us to answer.
        if hits.iter().any(|hit| self.servers.is_open_at(&hit.key)) {
            return self.charge(hits).await;
        }
        if let Some(denied) = self.denied(&hits) {
            self.deny_cache_hits.fetch_add(1, Ordering::Relaxed);
            return Ok(denied);
        }
        if hits.iter().any(|hit| hit.sample > 1) {
            return self.charge_sampled(hits).await;
        }
        self.charge(hits).await
    }

    /// Returns a denial from the [`deny_cache`](crate::deny_cache). Returns `None` if a hit is charged also when the
    /// request is denied, or is joint.
    fn denied(&self, hits: &Hits) -> Option<ChargeResult> {
        let is_charged = |hit: &Counted| hit.charge == ChargeWhen::Always && hit.cost > 0;
        // Whether joint hits deny depends on all of them.
        if hits.iter().any(|hit| is_charged(hit) || hit.veto == Veto::Jointly) {
            return None;
        }
        let now = self.clocks.here();
        let mut allowed = true;
        let mut outcome = |(nth, hit): (usize, &Counted)| {
            // It never denies, so its figures are not needed.
            if hit.veto == Veto::Never {
                return Some(Outcome::unknown());
            }
            if !is_first(hits, nth) {
                return None;
            }
            match self.deny_cache.know(hit, now) {
                Known::Denied(outcome) => {
                    allowed = false;
                    Some(outcome)
                }
                Known::Fits => Some(Outcome::unknown()),
                // Figures of sampled rules are estimates in any case.
                Known::Stale | Known::Nothing if hit.sample > 1 => Some(Outcome::unknown()),
                Known::Stale | Known::Nothing => None,
            }
        };
        let outcomes: Outcomes =
            hits.iter().enumerate().map(&mut outcome).collect::<Option<_>>()?;
        (!allowed).then(|| ChargeResult { allowed, outcomes, receipt: Receipt::default() })
    }

    async fn charge(self: &Arc<Self>, hits: Hits) -> Result<ChargeResult, StoreError> {
        let ask = Ask { mode: Mode::Take, hits };
        match self.only_slot(&ask.hits) {
            Some(slot) => self.charge_one_slot(slot, ask).await.map_err(Failure::into_error),
            None => {
                // To its end, even if nobody waits for it any more: what is charged in vain is given back.
                let this = self.clone();
                let charging = async move {
                    let doubts = this.doubts(&ask.hits);
                    let charging = this.deny_cache.charging(&ask.hits);
                    let parts = parts(&this.servers, ask);
                    let until = this.until();
                    let taken =
                        over_slots::take(&this.servers, &parts, until, || this.until()).await;
                    // Also after a denial: hits may have been charged and reverted.
                    drop(charging);
                    let taken = taken?;
                    this.remember_doubts(&doubts, &taken);
                    Ok(taken)
                };
                let charging = self.runtime.spawn(charging).await;
                charging.unwrap_or_else(|error| Err(StoreError::TimedOut(error.to_string())))
            }
        }
    }

    /// The slot of these hits; none if there are several.
    fn only_slot(&self, hits: &Hits) -> Option<u16> {
        let (first, others) = hits.split_first()?;
        let slot = self.servers.slot(&first.key);
        others.iter().all(|hit| self.servers.slot(&hit.key) == slot).then_some(slot)
    }

    async fn charge_one_slot(&self, slot: u16, ask: Ask) -> Result<ChargeResult, Failure> {
        let charging = self.deny_cache.charging(&ask.hits);
        let ask = Arc::new(ask);
        let (answer, asked_at) = self.servers.decide(slot, &ask, self.until()).await?;
        let marks = charging.answered(answer.said().iter().map(Said::is_charged));
        self.remember(&ask.hits, &answer, asked_at, &marks);
        Ok(ChargeResult {
            allowed: answer.admits(&ask.hits),
            outcomes: answer.outcomes(),
            receipt: answer.receipt(&ask.hits),
        })
    }

    /// Stores denials in the cache, with the figures of the other counters of the request.
    fn remember(
        &self,
        hits: &Hits,
        answer: &Answer,
        asked_at: slidegate::Timestamp,
        marks: &[Mark],
    ) {
        let denies = |said: &Said| said.spent.is_some() || !said.outcome.fits();
        let some_denies = answer.said().iter().any(denies);
        if !some_denies && hits.iter().all(|hit| hit.sample == 1) {
            return;
        }
        let heard_at = self.clocks.here();
        for (nth, ((hit, said), mark)) in hits.iter().zip(answer.said()).zip(marks).enumerate() {
            if hit.sample > 1 && said.outcome.fits() {
                self.deny_cache.fits(hit, said.is_charged());
                continue;
            }
            if !some_denies || !is_first(hits, nth) {
                continue;
            }
            let (denied, retry_after) = match said.spent {
                Some(wait) => (Some(1), wait),
                None if said.outcome.fits() || said.is_charged() => (None, None),
                None => (Some(hit.required), said.outcome.retry_after()),
            };
            let (reset_after, remaining) = (said.outcome.reset_after(), said.outcome.remaining());
            let heard = Heard { asked_at, heard_at, retry_after, reset_after, remaining };
            let charged = if said.is_charged() { units_changed(hit.cost) } else { 0 };
            self.deny_cache.remember(hit, denied, &heard, *mark, charged);
        }
    }

    async fn peek(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        let ask = self.wording.ask(Mode::Peek, hits);
        match self.only_slot(&ask.hits) {
            Some(slot) => {
                let answer = self.servers.decide(slot, &Arc::new(ask), self.until()).await;
                answer.map(|(answer, _)| answer.outcomes()).map_err(Failure::into_error)
            }
            None if ask.hits.is_empty() => Ok(Outcomes::new()),
            None => over_slots::peek(&self.servers, &parts(&self.servers, ask), self.until()).await,
        }
    }

    async fn revert(&self, receipt: &Receipt) -> Result<(), StoreError> {
        let given = errand::revert(&self.servers, &receipt.charges, self.until()).await;
        // Whether or not it is known to be done.
        for (key, tag) in receipt.charges.iter().filter_map(|charge| key_and_tag(&charge.counter)) {
            self.deny_cache.forget(key, tag);
        }
        given
    }

    /// Of a sampled rule one request in so many gives back, and so many times as much: as it was charged.
    async fn refund(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        let hits = self.counted(hits);
        let drawn = fastrand::u32(..);
        let asks = |hit: &Counted| drawn.is_multiple_of(hit.sample) || hit.cost == 0;
        let asked: Hits = hits.iter().filter(|hit| asks(hit)).cloned().collect();
        let refunded = errand::refund(&self.servers, &asked, self.until()).await;
        // Whether or not it is known to be done.
        for hit in &asked {
            self.deny_cache.forget(&hit.key, hit.tag);
        }
        let mut outcomes = refunded?.into_iter();
        let outcome = |hit: &Counted| match asks(hit) {
            true => outcomes.next().unwrap_or_else(Outcome::unknown),
            false => Outcome::unknown(),
        };
        Ok(hits.iter().map(outcome).collect())
    }

    async fn reset(&self, hits: &[Hit<'_>]) -> Result<(), StoreError> {
        let hits: Hits = hits.iter().flat_map(|hit| self.wording.counted_everywhere(hit)).collect();
        let reset = errand::reset(&self.servers, &hits, self.until()).await;
        for hit in &hits {
            self.deny_cache.forget(&hit.key, hit.tag);
        }
        reset
    }
}

/// Whether a hit is the first of its counter. Those behind it are judged as if it had been charged.
fn is_first(hits: &Hits, nth: usize) -> bool {
    !hits[..nth].iter().any(|other| other.is_counted_with(&hits[nth]))
}

impl Store for RedisStore {
    type Kind = slidegate::Asynchronous;

    async fn take(&self, hits: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        numbered(hits)?;
        self.inner.take(self.inner.counted(hits)).await
    }

    async fn take_many(&self, asks: &[&[Hit<'_>]]) -> Result<Vec<ChargeResult>, StoreError> {
        asks.iter().try_for_each(|hits| numbered(hits))?;
        let asks = asks.iter().map(|hits| self.inner.counted(hits));
        let taken = self.inner.take_each(asks).await;
        let some_taken = taken.iter().any(Result::is_ok);
        taken.into_iter().collect::<Result<_, _>>().map_err(|error: StoreError| match some_taken {
            true => StoreError::TimedOut(error.to_string()),
            false => error,
        })
    }

    async fn peek(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        numbered(hits)?;
        self.inner.peek(hits).await
    }

    async fn revert(&self, receipt: &Receipt) -> Result<(), StoreError> {
        self.inner.revert(receipt).await
    }

    async fn refund(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        numbered(hits)?;
        self.inner.refund(hits).await
    }

    async fn reset(&self, hits: &[Hit<'_>]) -> Result<(), StoreError> {
        numbered(hits)?;
        self.inner.reset(hits).await
    }
}
