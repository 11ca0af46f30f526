//! A judge's futures get names.

use std::sync::Arc;

use http::request::Parts;
use slidegate::StoreKind;

use super::{Charge, Decide, Decided, Decides, Judge};
use crate::extract::Head;
use crate::question::Question;
use crate::settle::Settle;

/// The futures of async functions are named by the functions that make them.
struct Decider<J, A, B> {
    judge: Arc<J>,
    decide: A,
    settle: B,
}

/// What decides by this judge.
pub fn decider<J: Judge>(judge: J) -> impl Decide {
    Decider { judge: Arc::new(judge), decide: decide::<J>, settle: settle::<J> }
}

async fn decide<J: Judge>(
    judge: Arc<J>,
    question: Arc<Question>,
    parts: Parts,
) -> (Parts, Decided) {
    let decided = judge.judge(&question, Head::from(&parts)).await;
    (parts, decided)
}

async fn settle<J: Judge>(judge: Arc<J>, question: Arc<Question>, charge: Charge, settle: Settle) {
    judge.settle(&question, &charge, settle).await;
}

impl<J, A, B, F, G> Decides for Decider<J, A, B>
where
    J: Judge,
    A: Fn(Arc<J>, Arc<Question>, Parts) -> F + Copy + Send + Sync + 'static,
    B: Fn(Arc<J>, Arc<Question>, Charge, Settle) -> G + Copy + Send + Sync + 'static,
    F: Future<Output = (Parts, Decided)> + Send,
    G: Future<Output = ()> + Send,
    <J::Kind as StoreKind>::Pending<F>: 'static,
    <J::Kind as StoreKind>::Pending<G>: 'static,
{
    type Deciding = <J::Kind as StoreKind>::Pending<F>;
    type Settling = <J::Kind as StoreKind>::Pending<G>;

    #[inline]
    fn decide_now(&self, question: &Question, head: Head<'_>) -> Option<Decided> {
        self.judge.judge_now(question, head)
    }

    fn decide(
        &self,
        question: Arc<Question>,
        parts: Parts,
    ) -> Result<(Parts, Decided), Self::Deciding> {
        J::Kind::begin((self.decide)(self.judge.clone(), question, parts))
    }

    fn settle(
        &self,
        question: Arc<Question>,
        charge: Charge,
        settle: Settle,
    ) -> Result<(), Self::Settling> {
        J::Kind::begin((self.settle)(self.judge.clone(), question, charge, settle))
    }
}

impl<J, A: Copy, B: Copy> Clone for Decider<J, A, B> {
    fn clone(&self) -> Self {
        Self { judge: self.judge.clone(), decide: self.decide, settle: self.settle }
    }
}
