//! The HTTP client of the commands that call a server.

use std::error::Error;
use std::io;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::time::timeout;

/// The reason why a server gave no usable response.
#[derive(Debug, Error)]
pub enum RequestError {
    #[error("the URL is not of the form http://HOST:PORT")]
    InvalidUrl,
    #[error(transparent)]
    Connection(#[from] io::Error),
    #[error(transparent)]
    Protocol(#[from] hyper::Error),
    #[error("no response within {0:?}")]
    TimedOut(Duration),
    #[error("status {0}")]
    Status(StatusCode),
    #[error(transparent)]
    Body(Box<dyn Error + Send + Sync>),
}

/// Bounds of a response.
#[derive(Clone, Copy, Debug)]
pub struct ResponseBounds {
    pub timeout: Duration,
    pub max_body_bytes: usize,
}

/// Returns the body of the response to a GET request. Every status except 200 is an error.
pub fn get(url: &str, bounds: ResponseBounds) -> Result<Bytes, RequestError> {
    let response = send(Method::GET, url, Bytes::new(), bounds)?;
    match response.status() {
        StatusCode::OK => Ok(response.into_body()),
        status => Err(RequestError::Status(status)),
    }
}

/// Returns the response to a POST request with a JSON body.
pub fn post_json(
    url: &str,
    body: &impl Serialize,
    bounds: ResponseBounds,
) -> Result<Response<Bytes>, RequestError> {
    let json = serde_json::to_vec(body).map_err(|error| RequestError::Body(error.into()))?;
    send(Method::POST, url, json.into(), bounds)
}

fn send(
    method: Method,
    url: &str,
    body: Bytes,
    bounds: ResponseBounds,
) -> Result<Response<Bytes>, RequestError> {
    let uri: Uri = url.parse().map_err(|_| RequestError::InvalidUrl)?;
    let (Some("http"), Some(host), Some(path)) =
        (uri.scheme_str(), uri.host(), uri.path_and_query())
    else {
        return Err(RequestError::InvalidUrl);
    };
    let address = format!("{host}:{}", uri.port_u16().unwrap_or(80));
    let request = Request::builder()
        .method(method)
        .uri(path.as_str())
        .header(HOST, &address)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(body))
        .map_err(|_| RequestError::InvalidUrl)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let exchange = exchange(&address, request, bounds.max_body_bytes);
        timeout(bounds.timeout, exchange)
            .await
            .map_err(|_| RequestError::TimedOut(bounds.timeout))?
    })
}

async fn exchange(
    address: &str,
    request: Request<Full<Bytes>>,
    max_body_bytes: usize,
) -> Result<Response<Bytes>, RequestError> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = Limited::new(body, max_body_bytes).collect().await.map_err(RequestError::Body)?;
    Ok(Response::from_parts(head, body.to_bytes()))
}
