//! Where the caller is in a trace.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use crate::decisions::{Caller, Decisions};

impl FromRequestParts<Arc<Decisions>> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(
        head: &mut Parts,
        face: &Arc<Decisions>,
    ) -> Result<Self, Infallible> {
        Ok(face.caller(&head.headers))
    }
}
