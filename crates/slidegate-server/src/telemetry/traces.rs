//! Creates trace spans of decisions, and exports them over OTLP in the background.
//!
//! A span is created only if the decision is sampled. Spans that the collector does not accept in time are dropped:
//! tracing never delays or fails a decision.
//!
//! The recorder of a listener begins the span of a request and makes it the current span of the task. The service finds
//! it there and records the decision, and the store adds its own span as a child.

mod collector;
mod parent;

use std::pin::Pin;
use std::time::Duration;

use axum::http::HeaderMap;
use opentelemetry::trace::{
    FutureExt, Span as _, SpanKind, Status, TraceContextExt, Tracer, TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider, Span};
use slidegate::{Decision, StoreError};
use thiserror::Error;
use tokio::task;
use tracing::warn;

use self::collector::CollectorClient;
use self::parent::TraceParent;
use super::results::RequestResult;
use super::trace_settings::TraceSettings;
use crate::client_text::excerpt;

/// The error if tracing cannot start.
#[derive(Debug, Error)]
pub enum TracerError {
    #[error(
        "cannot export traces: the system has no trusted certificates ({0}); install them, or set SSL_CERT_FILE"
    )]
    Certificates(std::io::Error),
    #[error("cannot export traces: {0}")]
    Exporter(#[from] ExporterBuildError),
}

/// A tracer that creates spans of decisions, and exports them.
pub struct DecisionTracer {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    trust_forwarded: bool,
}

/// The trace span of a request. It is the current span of the task while the request is decided.
pub struct DecisionSpan(Context);

/// A tracer that creates spans of calls to the store.
pub struct StoreTracer {
    tracer: SdkTracer,
    /// The name of the kind of store, an attribute of each span.
    kind: &'static str,
}

/// The trace span of a call to the store. Empty if the decision is not traced.
pub struct StoreSpan(Option<Span>);

impl DecisionTracer {
    /// Starts tracing. Must be called within a Tokio runtime, on which the spans are sent.
    pub fn start(settings: TraceSettings) -> Result<Self, TracerError> {
        let TraceSettings { collector, sample, trust_forwarded } = settings;
        let client = CollectorClient::new(&collector).map_err(TracerError::Certificates)?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(collector.to_string())
            .build()?;
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(sample)));
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(sampler)
            .with_resource(describe_process_as_resource())
            .build();
        let tracer = provider.tracer("slidegate");
        Ok(Self { provider, tracer, trust_forwarded })
    }

    /// Returns `true` if the header `traceparent` of a forwarded request decides whether the decision is traced.
    pub fn trusts_forwarded_traceparent(&self) -> bool {
        self.trust_forwarded
    }

    /// Begins the span of a decision. Returns `None` if the decision is not sampled. The headers determine sampling
    /// only if `is_trusted` is `true`.
    pub fn begin_decision_span(
        &self,
        name: &'static str,
        headers: &HeaderMap,
        is_trusted: bool,
    ) -> Option<DecisionSpan> {
        let parent = if is_trusted {
            TraceParent::trusted(headers)
        } else {
            TraceParent::untrusted(headers)
        };
        let builder = self.tracer.span_builder(name).with_kind(SpanKind::Server);
        let mut span = self.tracer.build_with_context(builder, &parent.context);
        if !span.is_recording() {
            return None;
        }
        if let Some(link) = parent.link {
            span.add_link(link, Vec::new());
        }
        Some(DecisionSpan(parent.context.with_span(span)))
    }

    /// Creates a tracer for calls to the store. `kind` is the name of the kind of store.
    pub fn store_tracer(&self, kind: &'static str) -> StoreTracer {
        StoreTracer { tracer: self.tracer.clone(), kind }
    }

    /// Exports the remaining spans within `timeout`, and stops tracing. No spans are created afterwards.
    pub async fn flush(&self, timeout: Duration) {
        let provider = self.provider.clone();
        let flushed = task::spawn_blocking(move || provider.shutdown_with_timeout(timeout)).await;
        if !matches!(flushed, Ok(Ok(()))) {
            warn!(
                ?timeout,
                "remaining traces lost, because the export did not finish in time; check the collector, \
                 or raise --shutdown-grace"
            );
        }
    }
}

impl DecisionSpan {
    /// Runs `work` with this span as the current span.
    pub async fn run<R>(&self, work: Pin<&mut impl Future<Output = R>>) -> R {
        work.with_context(self.0.clone()).await
    }

    /// Records the result of the request and the status of its response, and ends the span.
    pub fn finish(self, result: RequestResult, (status_name, status): (&'static str, i64)) {
        let span = self.0.span();
        span.set_attribute(KeyValue::new("slidegate.outcome", result.name()));
        span.set_attribute(KeyValue::new(status_name, status));
        if matches!(result, RequestResult::StoreUnavailable | RequestResult::Error) {
            span.set_status(Status::error(result.name()));
        }
        span.end();
    }
}

/// Records a decision as attributes of the current span. Does nothing if the request is not traced.
pub fn record_decision_in_current_span(domain: &str, decision: &Decision<'_>) {
    let context = Context::current();
    let span = context.span();
    if !span.is_recording() {
        return;
    }
    span.set_attribute(KeyValue::new("slidegate.domain", excerpt(domain)));
    span.set_attribute(KeyValue::new("slidegate.degraded", decision.is_degraded()));
    if let Some(binding) = decision.binding() {
        let remaining = i64::try_from(decision.remaining()).unwrap_or(i64::MAX);
        span.set_attribute(KeyValue::new("slidegate.rule", binding.rule_name().to_owned()));
        span.set_attribute(KeyValue::new("slidegate.limit", binding.id().to_owned()));
        span.set_attribute(KeyValue::new("slidegate.remaining", remaining));
    }
}

impl StoreTracer {
    /// Begins the span of a store call, as a child of the current decision's span. The returned span is empty if no
    /// decision is being traced.
    pub fn begin(&self) -> StoreSpan {
        StoreSpan::begin_as_child_of_decision(&self.tracer, self.kind)
    }
}

impl StoreSpan {
    fn begin_as_child_of_decision(tracer: &SdkTracer, kind: &'static str) -> Self {
        Self(Context::map_current(|decision| {
            decision.span().is_recording().then(|| {
                let builder = tracer.span_builder("slidegate.store").with_kind(SpanKind::Client);
                let mut span = tracer.build_with_context(builder, decision);
                span.set_attribute(KeyValue::new("slidegate.store", kind));
                span
            })
        }))
    }

    /// Records the error of the store call if it failed, and ends the span.
    pub fn finish(self, error: Option<&StoreError>) {
        let Some(mut span) = self.0 else { return };
        if let Some(error) = error {
            span.set_attribute(KeyValue::new("error.type", error.class()));
            // An error about the value of a key contains values of clients, so only its remedy is recorded.
            span.set_status(Status::error(match error.keys_with_foreign_values() {
                Some(_) => error.remedy().to_owned(),
                None => error.to_string(),
            }));
        }
        span.end();
    }
}

/// Returns the attributes that describe this process in exported spans. The standard variables `OTEL_SERVICE_NAME` and
/// `OTEL_RESOURCE_ATTRIBUTES` override or extend them.
fn describe_process_as_resource() -> Resource {
    let has_service_name =
        std::env::var_os("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty());
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder().with_attribute(version);
    if has_service_name {
        resource.build()
    } else {
        resource.with_service_name("slidegate").build()
    }
}
