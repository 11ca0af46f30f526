//! Who decides: a gate by what its attributes say, or a limiter by one key.

mod by_gate;
mod by_limiter;
mod decider;
mod deciding;

use std::sync::Arc;

use http::request::Parts;
use slidegate::{Ruling, StoreKind};

use crate::extract::Head;
use crate::question::{Kept, Malformed, Question};
use crate::settle::Settle;

pub use by_gate::ByGate;
pub use by_limiter::ByLimiter;
pub use decider::decider;
pub use deciding::Deciding;

/// What decides for a [`RateLimitLayer`](crate::RateLimitLayer): a gate or a limiter, with what it reads of a
/// request. Only this crate implements it.
pub trait Decide: Decides {}

impl<D: Decides> Decide for D {}

/// What became of a question.
#[expect(clippy::large_enum_variant, reason = "a box would cost each request an allocation")]
pub enum Decided {
    /// Nobody is counted.
    Uncounted,
    Ruled(Ruling, Option<Kept>),
    Malformed(Malformed),
}

/// A ruling that let a request pass, and who had asked.
#[derive(Debug)]
pub struct Charge {
    pub ruling: Ruling,
    pub kept: Option<Kept>,
}

/// A gate or a limiter.
pub trait Judge: Send + Sync + 'static {
    type Kind: StoreKind;

    /// None if it has to be waited for.
    #[inline]
    fn judge_now(&self, question: &Question, head: Head<'_>) -> Option<Decided> {
        Self::Kind::begin(self.judge(question, head)).ok()
    }

    fn judge(&self, question: &Question, head: Head<'_>) -> impl Future<Output = Decided> + Send;

    /// What fails is not repeated: the charge stays.
    fn settle(
        &self,
        question: &Question,
        charge: &Charge,
        settle: Settle,
    ) -> impl Future<Output = ()> + Send;
}

/// A judge whose futures have names, so that they can be part of others without a box. What a store answers at once
/// has none.
pub trait Decides: Clone + Send + Sync + 'static {
    type Deciding: Future<Output = (Parts, Decided)> + Send + 'static;
    type Settling: Future<Output = ()> + Send + 'static;

    /// None if it has to be waited for.
    fn decide_now(&self, question: &Question, head: Head<'_>) -> Option<Decided>;

    fn decide(
        &self,
        question: Arc<Question>,
        parts: Parts,
    ) -> Result<(Parts, Decided), Self::Deciding>;

    fn settle(
        &self,
        question: Arc<Question>,
        charge: Charge,
        settle: Settle,
    ) -> Result<(), Self::Settling>;
}
