//! An HTTP service of axum that always sends the same response.

use std::error::Error;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use axum::routing::{any, post};
use axum::serve::ListenerExt;
use tokio::net::TcpListener;

use crate::connection::RecordedResponse;
use crate::request::{AUTH, CHECK};

/// Serves the response from [`RecordedResponse::to_bytes`] on a free port.
pub async fn serve(response: &[u8]) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    super::log_address(listener.local_addr()?);
    // With Nagle's algorithm, responses would wait for the client to acknowledge the previous ones. A failure to
    // disable it is ignored.
    let listener = listener.tap_io(|client| drop(client.set_nodelay(true)));
    let router = Router::new().route(CHECK, post(check)).route(AUTH, any(auth));
    let fixed_response = Arc::new(build_response(&RecordedResponse::from_bytes(response)?)?);
    Ok(axum::serve(listener, router.with_state(fixed_response)).await?)
}

struct FixedResponse {
    headers: HeaderMap,
    body: Bytes,
}

fn build_response(response: &RecordedResponse) -> Result<FixedResponse, Box<dyn Error>> {
    let mut headers = HeaderMap::new();
    for (name, value) in &response.headers {
        headers.append(HeaderName::try_from(name)?, HeaderValue::try_from(value)?);
    }
    Ok(FixedResponse { headers, body: response.body.clone().into() })
}

impl FixedResponse {
    fn response(&self) -> Response {
        let mut response = Response::new(Body::from(self.body.clone()));
        *response.headers_mut() = self.headers.clone();
        response
    }
}

/// Reads the whole request body, as slidegate must.
async fn check(State(fixed_response): State<Arc<FixedResponse>>, _: Bytes) -> Response {
    fixed_response.response()
}

async fn auth(State(fixed_response): State<Arc<FixedResponse>>, _: HeaderMap) -> Response {
    fixed_response.response()
}
