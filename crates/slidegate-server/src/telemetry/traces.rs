//! Decisions as spans, which a collector gets over OTLP in the background.
//!
//! A span is made only where it is sampled. What a collector does not take in time is left out: a decision
//! neither waits for it nor fails.

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

/// Where traces go, and how many.
#[derive(Debug)]
pub struct TraceSettings {
    pub collector: CollectorUrl,
    /// The share, from 0 to 1, of decisions that are traced where the caller does not say.
    pub sample: f64,
    /// Whether `traceparent` of a forwarded request decides sampling at `/v1/auth`.
    pub trust_forwarded: bool,
}

/// Why there can be no traces.
#[derive(Debug, Error)]
pub enum TracerError {
    #[error("cannot send traces: the system has no certificates to trust: {0}")]
    Certificates(std::io::Error),
    #[error("cannot send traces: {0}")]
    Exporter(#[from] ExporterBuildError),
}

/// Makes spans.
pub struct DecisionTracer {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    trust_forwarded: bool,
}

/// Makes spans of what a store is asked.
pub struct StoreTracer {
    tracer: SdkTracer,
    /// What kind of store it is.
    kind: &'static str,
}

impl DecisionTracer {
    /// Within a runtime, by which spans are sent.
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

    /// Makes spans of what a store of this kind is asked.
    pub fn store_tracer(&self, kind: &'static str) -> StoreTracer {
        StoreTracer { tracer: self.tracer.clone(), kind }
    }

    /// Sends what has not been sent, if that takes no longer than this. From then on there are no spans.
    pub async fn flush(&self, timeout: Duration) {
        let provider = self.provider.clone();
        let flushed = task::spawn_blocking(move || provider.shutdown_with_timeout(timeout)).await;
        if !matches!(flushed, Ok(Ok(()))) {
            warn!("the last traces could not be sent within {timeout:?}");
        }
    }
}

impl StoreTracer {
    /// Begins the span of a call, below that of the decision which makes it, if there is one.
    pub fn begin(&self) -> StoreSpan {
        StoreSpan::begin(&self.tracer, self.kind)
    }
}

/// Who sends the spans. The standard's own variables may say more: `OTEL_SERVICE_NAME` and
/// `OTEL_RESOURCE_ATTRIBUTES`.
fn resource() -> Resource {
    let named = std::env::var_os("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty());
    let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder().with_attribute(version);
    match named {
        true => resource.build(),
        false => resource.with_service_name("slidegate").build(),
    }
}
