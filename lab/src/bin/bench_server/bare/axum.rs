//! An HTTP server with axum that always sends the same response.

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

use crate::http::RecordedResponse;
use crate::requests::{AUTH_PATH, CHECK_PATH};

/// Serves on a free port, and sends this response, a serialized [`RecordedResponse`], to every request.
pub async fn serve(response: &[u8]) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    super::print_listen_address(listener.local_addr()?);
    // With Nagle's algorithm, responses would wait for the client to acknowledge the previous ones. A failure to
    // disable it is ignored.
    let listener = listener.tap_io(|client| drop(client.set_nodelay(true)));
    let router = Router::new()
        .route(CHECK_PATH, post(respond_to_check))
        .route(AUTH_PATH, any(respond_to_auth));
    let fixed_response = Arc::new(new_fixed_response(&serde_json::from_slice(response)?)?);
    Ok(axum::serve(listener, router.with_state(fixed_response)).await?)
}

/// The response that the server sends to every request.
struct FixedResponse {
    headers: HeaderMap,
    body: Bytes,
}

fn new_fixed_response(response: &RecordedResponse) -> Result<FixedResponse, Box<dyn Error>> {
    let mut headers = HeaderMap::new();
    for (name, value) in &response.headers {
        headers.append(HeaderName::try_from(name)?, HeaderValue::try_from(value)?);
    }
    Ok(FixedResponse { headers, body: response.body.clone().into() })
}

impl FixedResponse {
    fn to_response(&self) -> Response {
        let mut response = Response::new(Body::from(self.body.clone()));
        *response.headers_mut() = self.headers.clone();
        response
    }
}

/// Sends the fixed response to a check request. Reads the whole request body, because slidegate must also read it.
async fn respond_to_check(State(fixed_response): State<Arc<FixedResponse>>, _: Bytes) -> Response {
    fixed_response.to_response()
}

async fn respond_to_auth(
    State(fixed_response): State<Arc<FixedResponse>>,
    _: HeaderMap,
) -> Response {
    fixed_response.to_response()
}
