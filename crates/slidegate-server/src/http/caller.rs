//! Where the caller is in a trace.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use opentelemetry::Context;

use super::Decisions;
use crate::watch::traces;

/// Where the caller is in a trace; not looked for if there are no traces.
pub struct Caller(pub Option<Context>);

impl FromRequestParts<Arc<Decisions>> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(
        head: &mut Parts,
        face: &Arc<Decisions>,
    ) -> Result<Self, Infallible> {
        let traced = face.service.watch().traces().is_some();
        Ok(Self(traced.then(|| {
            traces::parent(
                values(&head.headers, "traceparent"),
                values(&head.headers, "tracestate"),
            )
        })))
    }
}

fn values<'h>(headers: &'h HeaderMap, name: &str) -> impl Iterator<Item = &'h str> {
    headers.get_all(name).into_iter().map(|value| value.to_str().unwrap_or_default())
}
