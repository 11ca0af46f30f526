//! The layer: what is asked of each request, and how the answer is told.

use std::fmt;
use std::sync::Arc;

use http::{HeaderName, header::InvalidHeaderName};
use slidegate::headers::Style;
use slidegate::policy::{OnStoreError, WhenMissing};
use slidegate::{Gate, Jitter, Limiter, Ruling, Store};
use tower_layer::Layer;

use crate::decide::{ByGate, ByLimiter, Decide, decider};
use crate::extract::{Attributes, Extract, Head};
use crate::question::{Cost, NamedCost, Question};
use crate::respond::ProblemJson;
use crate::service::RateLimit;
use crate::settle::{Answer, OnDrop, Settle};
use crate::tell::Tell;

/// Asks a [`Gate`] or a [`Limiter`] whether each request may pass, and tells in headers how its limits stand.
///
/// ```
/// use slidegate::{Gate, MemoryStore, Policy};
/// use slidegate_tower::{Attributes, RateLimitLayer, TrustedProxies, extract};
///
/// let policy = Policy::from_yaml("
/// rules:
///   - { name: per-key, per: [api_key], when_missing: deny, limits: [10/s, 300/min] }
///   - { name: per-address, per: [ip], limits: [100/s] }
/// ")?;
/// let attributes = Attributes::new()
///     .with("api_key", extract::api_key())
///     .with("ip", extract::client_ip(TrustedProxies::none()));
/// let layer = RateLimitLayer::new(Gate::new(policy, MemoryStore::new()), attributes);
/// # let _ = layer;
/// # Ok::<(), slidegate::PolicyErrors>(())
/// ```
///
/// A store that answers without waiting is asked in `call`, and the service that was polled ready is called at
/// once. Any other is awaited; then the service is called that was ready, and a clone of it takes its place. No
/// future is boxed.
pub struct RateLimitLayer<D, R = ProblemJson> {
    terms: Arc<Terms<D, R>>,
}

/// What the services of one layer share.
pub(crate) struct Terms<D, R> {
    pub(crate) decider: D,
    pub(crate) question: Arc<Question>,
    pub(crate) tell: Tell,
    pub(crate) respond: Arc<R>,
    pub(crate) settle: Option<SettleBy>,
    pub(crate) on_drop: OnDrop,
    pub(crate) inspect: Option<Inspect>,
}

/// What a request has cost, seen by its answer.
type SettleBy = Arc<dyn Fn(&Answer<'_>) -> Settle + Send + Sync>;

/// Who is told of each ruling.
type Inspect = Arc<dyn Fn(Head<'_>, &Ruling) + Send + Sync>;

impl RateLimitLayer<()> {
    /// Over a gate: the policy's rules see these attributes.
    ///
    /// An attribute that a request lacks is absent; what is then done is said by the rule, by its `when_missing`
    /// and by alternatives such as `per: [api_key|ip]`.
    pub fn new<S: Store>(
        gate: impl Into<Arc<Gate<S>>>,
        attributes: Attributes,
    ) -> RateLimitLayer<impl Decide> {
        RateLimitLayer::of(decider(ByGate::new(gate.into(), attributes)))
    }

    /// Over a limiter: each value of `key` is counted apart. What becomes of a request that has none, says
    /// `when_missing`: it passes uncounted, or it is denied like one that never fits.
    ///
    /// ```
    /// use slidegate::{Limiter, policy::WhenMissing};
    /// use slidegate_tower::{RateLimitLayer, extract};
    ///
    /// let limiter = Limiter::new(["10/s", "300/min"])?.named("per-key");
    /// let layer = RateLimitLayer::keyed_by(limiter, extract::api_key(), WhenMissing::Deny);
    /// # let _ = layer;
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn keyed_by<S: Store>(
        limiter: impl Into<Arc<Limiter<S>>>,
        key: impl Extract,
        when_missing: WhenMissing,
    ) -> RateLimitLayer<impl Decide> {
        RateLimitLayer::of(decider(ByLimiter::new(limiter.into(), key, when_missing)))
    }
}

impl<D: Decide> RateLimitLayer<D> {
    fn of(decider: D) -> Self {
        let terms = Terms {
            decider,
            question: Arc::default(),
            tell: Tell::default(),
            respond: Arc::new(ProblemJson),
            settle: None,
            on_drop: OnDrop::default(),
            inspect: None,
        };
        Self { terms: Arc::new(terms) }
    }
}

impl<D: Decide, R> RateLimitLayer<D, R> {
    /// Whose rules apply, if the policy has several domains; `default` if this is not said.
    pub fn domain(self, domain: &str) -> Self {
        self.asking(|question| question.domain = domain.into())
    }

    /// Units that a request costs; 1 if this is not said. 0 asks whether one unit would fit, and takes nothing.
    pub fn cost(self, cost: impl Fn(Head<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.asking(|question| question.cost = Cost::Of(Arc::new(cost)))
    }

    /// Units that a request costs, as a header says that somebody sets who is trusted to: who may write it, may
    /// write 0. Without it a request costs 1; if it is no whole number, the answer is 400.
    ///
    /// # Errors
    /// If it cannot be a header's name.
    pub fn cost_header(self, name: &str) -> Result<Self, InvalidHeaderName> {
        let name: HeaderName = name.parse()?;
        Ok(self.asking(|question| question.cost = Cost::Header(name)))
    }

    /// Adds a named cost, for rules that charge it: `cost: tokens` in the policy. `None` means that the request does not
    /// have the cost; the rules are then checked, not charged. Limiters ignore it.
    ///
    /// ```
    /// use slidegate::{Gate, MemoryStore, Policy};
    /// use slidegate_tower::{Attributes, RateLimitLayer, Settle, extract};
    ///
    /// /// Tokens that a response has used; the handler adds it to the response's extensions.
    /// #[derive(Clone)]
    /// struct Tokens(u64);
    ///
    /// let policy = Policy::from_yaml("
    /// rules: [{ name: tokens, per: [user], limits: [90000/h], cost: tokens }]
    /// ")?;
    /// let attributes = Attributes::new().with("user", extract::header("x-user"));
    /// let layer = RateLimitLayer::new(Gate::new(policy, MemoryStore::new()), attributes)
    ///     .named_cost("tokens", |head| head.headers.get("x-max-tokens")?.to_str().ok()?.parse().ok());
    /// // If it is known only afterwards: the request is checked, and the tokens are reported.
    /// let layer = layer.settle(|answer| match answer.extensions.get::<Tokens>() {
    ///     Some(Tokens(units)) => Settle::Report { cost: "tokens", units: *units },
    ///     None => Settle::Keep,
    /// });
    /// # let _ = layer;
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    pub fn named_cost(
        self,
        name: &str,
        units: impl Fn(Head<'_>) -> Option<u64> + Send + Sync + 'static,
    ) -> Self {
        let cost = NamedCost { name: name.into(), units: Arc::new(units) };
        self.asking(|question| question.named_costs.push(cost))
    }

    /// Sets what a limiter does while its store is unavailable. By default it enforces its
    /// [share](Limiter::local_share) in memory. In a policy each rule has its own setting.
    pub fn on_store_error(self, on_store_error: OnStoreError) -> Self {
        self.asking(|question| question.on_store_error = on_store_error)
    }

    /// Which headers tell how the limits stand, on what is allowed and on what is denied.
    pub fn headers(self, style: Style) -> Self {
        self.with(|terms| terms.tell.style(style))
    }

    /// What the wait of a denial is lengthened by, so that those who were denied at once do not return at once.
    pub fn retry_jitter(self, jitter: Jitter) -> Self {
        self.with(|terms| terms.tell.retry_jitter(jitter))
    }

    /// What answers a request that may not pass, in place of [`ProblemJson`]; headers are added to it.
    ///
    /// ```
    /// use http::Response;
    /// use slidegate_tower::{Denial, RateLimitLayer, extract};
    /// # use slidegate::{Limiter, policy::WhenMissing};
    ///
    /// # let limiter = Limiter::new(["10/min"])?;
    /// let layer = RateLimitLayer::keyed_by(limiter, extract::api_key(), WhenMissing::Skip)
    ///     .respond_with(|denial: &Denial<'_>| {
    ///         let mut response = Response::new("come back later".to_owned());
    ///         *response.status_mut() = denial.status();
    ///         response
    ///     });
    /// # let _ = layer;
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn respond_with<Q>(self, respond: Q) -> RateLimitLayer<D, Q> {
        let Terms { decider, question, tell, settle, on_drop, inspect, .. } =
            Arc::unwrap_or_clone(self.terms);
        let respond = Arc::new(respond);
        let terms = Terms { decider, question, tell, respond, settle, on_drop, inspect };
        RateLimitLayer { terms: Arc::new(terms) }
    }

    /// What an allowed request has cost, said when its answer is there: see [`Settle`]. The answer waits until the
    /// store knows. If the store does not answer, the charge stays as it is; and so it does if the service fails
    /// without an answer, or panics. Of a client that hangs up while a store that is waited for is told, no more may be
    /// known than what was charged at first.
    ///
    /// ```
    /// use http::StatusCode;
    /// use slidegate_tower::{RateLimitLayer, Settle, extract};
    /// # use slidegate::{Limiter, policy::WhenMissing};
    ///
    /// // Five failed logins a minute; who logs in has no need to be counted.
    /// let limiter = Limiter::new(["5/min"])?.named("login");
    /// let layer = RateLimitLayer::keyed_by(limiter, extract::header("x-user"), WhenMissing::Deny)
    ///     .settle(|answer| match answer.status {
    ///         StatusCode::UNAUTHORIZED => Settle::Keep,
    ///         _ => Settle::Revert,
    ///     });
    /// # let _ = layer;
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn settle(self, by: impl Fn(&Answer<'_>) -> Settle + Send + Sync + 'static) -> Self {
        let layer = self.asking(|question| question.is_kept = true);
        layer.with(|terms| terms.settle = Some(Arc::new(by)))
    }

    /// What becomes of the charge of a call that is dropped before its answer is there.
    pub fn on_drop(self, on_drop: OnDrop) -> Self {
        self.with(|terms| terms.on_drop = on_drop)
    }

    /// Sees each ruling before the request passes or is denied: for metrics and logs, and to see what a rule that
    /// observes would have denied. It should not take long.
    pub fn inspect(self, see: impl Fn(Head<'_>, &Ruling) + Send + Sync + 'static) -> Self {
        self.with(|terms| terms.inspect = Some(Arc::new(see)))
    }

    fn with(self, set: impl FnOnce(&mut Terms<D, R>)) -> Self {
        let mut terms = Arc::unwrap_or_clone(self.terms);
        set(&mut terms);
        Self { terms: Arc::new(terms) }
    }

    fn asking(self, set: impl FnOnce(&mut Question)) -> Self {
        self.with(|terms| set(Arc::make_mut(&mut terms.question)))
    }
}

impl<D, R> fmt::Debug for RateLimitLayer<D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").finish_non_exhaustive()
    }
}

impl<D, R> Clone for RateLimitLayer<D, R> {
    fn clone(&self) -> Self {
        Self { terms: self.terms.clone() }
    }
}

impl<D: Clone, R> Clone for Terms<D, R> {
    fn clone(&self) -> Self {
        let Self { decider, question, tell, respond, settle, on_drop, inspect } = self;
        Self {
            decider: decider.clone(),
            question: question.clone(),
            tell: tell.clone(),
            respond: respond.clone(),
            settle: settle.clone(),
            on_drop: *on_drop,
            inspect: inspect.clone(),
        }
    }
}

impl<I, D, R> Layer<I> for RateLimitLayer<D, R> {
    type Service = RateLimit<I, D, R>;

    fn layer(&self, inner: I) -> Self::Service {
        RateLimit::new(inner, self.terms.clone())
    }
}
