//! axum.

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

use crate::caller::Answer;
use crate::question::{AUTH, CHECK};

/// `answer` is what [`Answer::to_bytes`] made.
pub async fn serve(answer: &[u8]) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    super::listens(listener.local_addr()?);
    // Were it not so, answers would wait for the client to acknowledge those before. Were it to fail, they would.
    let listener = listener.tap_io(|client| drop(client.set_nodelay(true)));
    let router = Router::new().route(CHECK, post(check)).route(AUTH, any(auth));
    let always = Arc::new(always(&Answer::from_bytes(answer)?)?);
    Ok(axum::serve(listener, router.with_state(always)).await?)
}

struct Always {
    headers: HeaderMap,
    body: Bytes,
}

fn always(answer: &Answer) -> Result<Always, Box<dyn Error>> {
    let mut headers = HeaderMap::new();
    for (name, value) in &answer.headers {
        headers.append(HeaderName::try_from(name)?, HeaderValue::try_from(value)?);
    }
    Ok(Always { headers, body: answer.body.clone().into() })
}

impl Always {
    fn response(&self) -> Response {
        let mut response = Response::new(Body::from(self.body.clone()));
        *response.headers_mut() = self.headers.clone();
        response
    }
}

/// Takes the question whole, as slidegate has to.
async fn check(State(always): State<Arc<Always>>, _: Bytes) -> Response {
    always.response()
}

async fn auth(State(always): State<Arc<Always>>, _: HeaderMap) -> Response {
    always.response()
}
