//! The rate-limit layer, with one method for each setting.

mod names;

use std::fmt;
use std::sync::Arc;

use http::{HeaderName, StatusCode, header::InvalidHeaderName};
use slidegate::headers::Style;
use slidegate::policy::WhenMissing;
use slidegate::{Decision, Gate, Jitter, Limiter, Store};
use tower_layer::Layer;

use crate::backend::{Backend, GateBackend, LimiterBackend};
use crate::checked_names::NameCheckState;
use crate::config::{LayerConfig, SettleTime};
use crate::costs::CostSource;
use crate::extract::{Attributes, Extract, RequestHead};
use crate::header_writer::HeaderWriter;
use crate::hold_permits::HoldPermitsLayer;
use crate::request_options::RequestOptions;
use crate::respond::ProblemJson;
use crate::service::RateLimit;
use crate::settlement::{OnDrop, ResponseHead, Settlement};

/// A layer that checks each request against a [`Gate`] or a [`Limiter`], denies requests above the limits, and reports
/// the limits in response headers.
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
/// With a synchronous store, `call` makes the decision and immediately calls the inner service that was polled ready.
/// With an asynchronous store, the response future first awaits the decision, and then calls the inner service that was
/// polled ready; a clone of that service serves the next request.
pub struct RateLimitLayer<R = ProblemJson> {
    pub(crate) config: Arc<LayerConfig<R>>,
}

impl RateLimitLayer {
    /// Creates a layer that decides with a gate. `attributes` defines the attributes of each request, by which the
    /// policy of the gate selects and counts requests.
    ///
    /// A request may lack an attribute. A rule of the policy can define an alternative attribute, as in
    /// `per: [api_key|ip]`. Otherwise the `when_missing` of the rule determines whether the rule is skipped or denies
    /// the request.
    ///
    /// When the layer is added to a service, and when the policy is replaced, the layer compares its names with the
    /// names of the policy, and logs a warning for each problem of [`check_names`](Self::check_names).
    pub fn new<S: Store>(gate: impl Into<Arc<Gate<S>>>, attributes: Attributes) -> Self {
        Self::with_backend(GateBackend::new(gate.into(), attributes))
    }

    /// Creates a layer that decides with a limiter, which has one counter for each value of `key`. If a request has no
    /// value, `when_missing` applies: the request is allowed without a charge, or denied for the reason
    /// `missing_attribute`. A function is a key with [`extract::from_fn`](crate::extract::from_fn).
    ///
    /// ```
    /// use slidegate::Limiter;
    /// use slidegate_tower::{RateLimitLayer, WhenMissing, extract};
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
    ) -> Self {
        Self::with_backend(LimiterBackend::new(limiter.into(), key, when_missing))
    }

    fn with_backend(backend: impl Backend) -> Self {
        let config = LayerConfig {
            backend: Arc::new(backend),
            options: Arc::default(),
            header_writer: HeaderWriter::default(),
            respond: Arc::new(ProblemJson),
            settle: SettleTime::Never,
            on_drop: OnDrop::default(),
            inspect: None,
            missing_extension_status: None,
        };
        Self { config: Arc::new(config) }
    }
}

impl<R> RateLimitLayer<R> {
    /// Sets the function that returns the cost of a request in units. Without a function, each request costs 1. A
    /// request of cost 0 is allowed if one unit is available, and charges nothing.
    pub fn cost(self, cost: impl Fn(RequestHead<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.with_modified_options(|options| options.cost = CostSource::Function(Arc::new(cost)))
    }

    /// Reads the cost of a request in units from a header. Only a trusted component may set this header: a client that
    /// can set the header can send a cost of 0. Without the header, a request costs 1. A request with a value that is
    /// not a whole number is denied with status 400.
    ///
    /// # Errors
    /// Returns an error if `name` is not a valid header name.
    pub fn cost_header(self, name: &str) -> Result<Self, InvalidHeaderName> {
        let name: HeaderName = name.parse()?;
        Ok(self.with_modified_options(|options| options.cost = CostSource::Header(name)))
    }

    /// Sets the style of the headers that report the limits, for allowed and denied requests.
    pub fn headers(self, style: Style) -> Self {
        self.with_modified_config(|config| config.header_writer.set_style(style))
    }

    /// Sets the jitter that is added to the wait of each denial, so that clients denied at the same time do not all
    /// return at the same time.
    pub fn retry_jitter(self, jitter: Jitter) -> Self {
        self.with_modified_config(|config| config.header_writer.set_retry_jitter(jitter))
    }

    /// Sets the [`Respond`](crate::Respond) implementation that creates the responses to denied requests, instead of
    /// [`ProblemJson`]. The layer adds its rate-limit headers to these responses.
    ///
    /// ```
    /// use http::Response;
    /// use slidegate_tower::{Denial, RateLimitLayer, extract};
    /// # use slidegate::Limiter;
    /// # use slidegate_tower::WhenMissing;
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
    pub fn respond_with<Q>(self, respond: Q) -> RateLimitLayer<Q> {
        let LayerConfig {
            backend,
            options,
            header_writer,
            settle,
            on_drop,
            inspect,
            missing_extension_status,
            ..
        } = Arc::unwrap_or_clone(self.config);
        let config = LayerConfig {
            backend,
            options,
            header_writer,
            respond: Arc::new(respond),
            settle,
            on_drop,
            inspect,
            missing_extension_status,
        };
        RateLimitLayer { config: Arc::new(config) }
    }

    /// Sets the status of denials for which the server is the reason: a limit needs a value of an extension, such as
    /// the address of the peer or the user, and the server has not added the extension to any request so far. By
    /// default, such requests are denied as if the client had not sent the value.
    ///
    /// ```
    /// use http::StatusCode;
    /// use slidegate_tower::{RateLimitLayer, TrustedProxies, extract};
    /// # use slidegate::Limiter;
    /// # use slidegate_tower::WhenMissing;
    ///
    /// # let limiter = Limiter::new(["10/min"])?;
    /// let ip = extract::client_ip(TrustedProxies::none());
    /// let layer = RateLimitLayer::keyed_by(limiter, ip, WhenMissing::Deny)
    ///     .missing_extension_status(StatusCode::INTERNAL_SERVER_ERROR);
    /// # let _ = layer;
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn missing_extension_status(self, status: StatusCode) -> Self {
        self.with_modified_config(|config| config.missing_extension_status = Some(status))
    }

    /// Sets the function that determines the final cost of an allowed request from its response: see [`Settlement`].
    /// The response waits until the store has settled the charge. Of `settle` and [`reserve`](Self::reserve), the last
    /// call applies.
    ///
    /// The initial charge stays if the store is unavailable when the charge is settled, and if the service fails
    /// without a response or panics. The initial charge may also stay if the client disconnects while an asynchronous
    /// store settles it.
    ///
    /// ```
    /// use http::StatusCode;
    /// use slidegate_tower::{RateLimitLayer, Settlement, extract};
    /// # use slidegate::Limiter;
    /// # use slidegate_tower::WhenMissing;
    ///
    /// // Five failed logins a minute; successful logins are not counted.
    /// let limiter = Limiter::new(["5/min"])?.named("login");
    /// let layer = RateLimitLayer::keyed_by(limiter, extract::header("x-user"), WhenMissing::Deny)
    ///     .settle(|response| match response.status {
    ///         StatusCode::UNAUTHORIZED => Settlement::Keep,
    ///         _ => Settlement::Revert,
    ///     });
    /// # let _ = layer;
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn settle(
        self,
        settle: impl Fn(&ResponseHead<'_>) -> Settlement + Send + Sync + 'static,
    ) -> Self {
        self.with_settle_time(SettleTime::Response(Arc::new(settle)))
    }

    /// Adds a [`RequestReservation`](crate::RequestReservation) to the extensions of each allowed request. The charge
    /// of the request is then an estimate, and is settled when the response body has ended, also a streamed one. Of
    /// `reserve` and [`settle`](Self::settle), the last call applies.
    ///
    /// If several layers of a service reserve, a handler gets the reservation of the innermost one.
    ///
    /// ```
    /// use slidegate::{Gate, MemoryStore, Policy};
    /// use slidegate_tower::{Attributes, RateLimitLayer, RequestReservation, Settlement, extract};
    ///
    /// let policy = Policy::from_yaml("
    /// rules: [{ name: tokens, per: [user], limits: [90000/h], cost: tokens }]
    /// ")?;
    /// let attributes = Attributes::new()
    ///     .with("user", extract::header("x-user"))
    ///     .named_cost("tokens", |head| head.headers.get("x-max-tokens")?.to_str().ok()?.parse().ok());
    /// let layer = RateLimitLayer::new(Gate::new(policy, MemoryStore::new()), attributes).reserve();
    ///
    /// /// Moves the reservation into the body of the response.
    /// fn stream_tokens(reservation: RequestReservation) -> impl Iterator<Item = String> {
    ///     (1..).zip(["Hello", "world"]).map(move |(units, token)| {
    ///         reservation.set(Settlement::NamedCost { cost: "tokens", units });
    ///         token.to_owned()
    ///     })
    /// }
    /// # let _ = (layer, stream_tokens);
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    pub fn reserve(self) -> Self {
        self.with_settle_time(SettleTime::EndOfBody)
    }

    fn with_settle_time(self, settle: SettleTime) -> Self {
        let layer = self.with_modified_options(|options| options.has_settle_context = true);
        layer.with_modified_config(|config| config.settle = settle)
    }

    /// Sets whether the charge of a request stays or is reverted if the response future is dropped before the response.
    pub fn on_drop(self, on_drop: OnDrop) -> Self {
        self.with_modified_config(|config| config.on_drop = on_drop)
    }

    /// Returns a layer that also holds the permit of each request until its response body has ended, for policies that
    /// bound the [requests in flight](slidegate::Limit::concurrent). Without this layer, the permit is released with
    /// the head of the response.
    ///
    /// ```
    /// use slidegate::{Gate, MemoryStore, Policy};
    /// use slidegate_tower::{Attributes, RateLimitLayer, extract};
    ///
    /// let policy = Policy::from_yaml("
    /// rules: [{ name: streams, per: [user], limits: [100/min, { concurrent: 2, permit_ttl: 60s }] }]
    /// ")?;
    /// let attributes = Attributes::new().with("user", extract::header("x-user"));
    /// let layer = RateLimitLayer::new(Gate::new(policy, MemoryStore::new()), attributes).hold_permits();
    /// # let _ = layer;
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    pub fn hold_permits(self) -> HoldPermitsLayer<R> {
        HoldPermitsLayer::new(self)
    }

    /// Sets a function that receives each decision before the request is allowed or denied. The function can update
    /// metrics and logs, or find requests that a rule in observe mode would have denied. It runs in the request path
    /// and must be fast. There is no decision on a request with an invalid [cost header](Self::cost_header), which gets
    /// status 400, nor on a request that a layer over a limiter does not count.
    pub fn inspect(
        self,
        inspect: impl Fn(RequestHead<'_>, &Decision<'_>) + Send + Sync + 'static,
    ) -> Self {
        self.with_modified_config(|config| config.inspect = Some(Arc::new(inspect)))
    }

    fn with_modified_config(self, set: impl FnOnce(&mut LayerConfig<R>)) -> Self {
        let mut config = Arc::unwrap_or_clone(self.config);
        set(&mut config);
        Self { config: Arc::new(config) }
    }

    fn with_modified_options(self, set: impl FnOnce(&mut RequestOptions)) -> Self {
        self.with_modified_config(|config| {
            let options = Arc::make_mut(&mut config.options);
            set(options);
            options.names = NameCheckState::default();
        })
    }
}

impl<R> fmt::Debug for RateLimitLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").finish_non_exhaustive()
    }
}

impl<R> Clone for RateLimitLayer<R> {
    fn clone(&self) -> Self {
        Self { config: self.config.clone() }
    }
}

impl<I, R> Layer<I> for RateLimitLayer<R> {
    type Service = RateLimit<I, R>;

    fn layer(&self, inner: I) -> Self::Service {
        let LayerConfig { backend, options, .. } = &*self.config;
        backend.warn_about_names(options);
        RateLimit::new(inner, self.config.clone())
    }
}
