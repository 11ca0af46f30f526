//! Spans of decisions, exported over OTLP in the background.
//!
//! A span is created only if it is sampled. Spans that the collector does not accept in time are dropped: tracing never
//! delays or fails a decision.
//!
//! The request handler begins the span of a decision and makes it the current span of the task. The instrumented store
//! finds it there and adds its own span as a child.

mod collector;
mod parent;
mod span;

use std::time::Duration;

use opentelemetry::Context;
use opentelemetry::trace::{Span as _, SpanKind, TraceContextExt, Tracer, TracerProvider};
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use thiserror::Error;
use tokio::task;
use tracing::warn;

pub use self::collector::{CollectorUrl, CollectorUrlError};
pub use self::parent::TraceParent;
pub use self::span::DecisionSpan;

use self::collector::CollectorClient;
use self::span::StoreSpan;

/// Settings of tracing.
#[derive(Debug)]
pub struct TraceSettings {
    pub collector: CollectorUrl,
    /// The share of decisions, from 0 to 1, that is traced if the caller has not made a sampling decision.
    pub sample: f64,
    /// Whether `traceparent` of a forwarded request decides sampling at `/v1/auth`.
    pub trust_forwarded: bool,
}

/// Reason for which tracing cannot start.
#[derive(Debug, Error)]
pub enum TracerError {
    #[error("cannot export traces: no trusted system certificates: {0}")]
    Certificates(std::io::Error),
    #[error("cannot export traces: {0}")]
    Exporter(#[from] ExporterBuildError),
}

/// Creates spans of decisions, and exports them.
pub struct DecisionTracer {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    trust_forwarded: bool,
}

/// Creates spans of store calls.
pub struct StoreTracer {
    tracer: SdkTracer,
    /// The kind of the store.
    kind: &'static str,
}

impl DecisionTracer {
    /// Starts tracing. Must be called within a runtime, which sends the spans.
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
            .with_resource(resource())
            .build();
        let tracer = provider.tracer("slidegate");
        Ok(Self { provider, tracer, trust_forwarded })
    }

    /// Returns whether `traceparent` of a forwarded request decides sampling.
    pub fn trusts_forwarded(&self) -> bool {
        self.trust_forwarded
    }

    /// Begins the span of a decision, if it is sampled.
    fn begin(&self, name: &'static str, parent: TraceParent) -> Option<Context> {
        let builder = self.tracer.span_builder(name).with_kind(SpanKind::Server);
        let mut span = self.tracer.build_with_context(builder, &parent.context);
        if !span.is_recording() {
            return None;
        }
        if let Some(link) = parent.link() {
            span.add_link(link, Vec::new());
        }
        Some(parent.context.with_span(span))
    }

    /// Creates a tracer for a store of this kind.
    pub fn store_tracer(&self, kind: &'static str) -> StoreTracer {
        StoreTracer { tracer: self.tracer.clone(), kind }
    }

    /// Exports the remaining spans within `timeout`, and shuts tracing down. No spans are created afterwards.
    pub async fn flush(&self, timeout: Duration) {
        let provider = self.provider.clone();
        let flushed = task::spawn_blocking(move || provider.shutdown_with_timeout(timeout)).await;
        if !matches!(flushed, Ok(Ok(()))) {
            warn!("remaining traces lost: export did not finish within {timeout:?}");
        }
    }
}

impl StoreTracer {
    /// Begins the span of a store call, as a child of the current decision span. The span is empty if there is none.
    pub fn begin(&self) -> StoreSpan {
        StoreSpan::begin(&self.tracer, self.kind)
    }
}

/// Returns the resource attributes of exported spans. The standard variables `OTEL_SERVICE_NAME` and
/// `OTEL_RESOURCE_ATTRIBUTES` override or extend them.
fn resource() -> Resource {
    let has_service_name =
        std::env::var_os("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty());
    let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder().with_attribute(version);
    match has_service_name {
        true => resource.build(),
        false => resource.with_service_name("slidegate").build(),
    }
}
