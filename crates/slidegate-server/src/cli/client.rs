//! The HTTP client of the commands that call a server.

use std::error::Error;
use std::io;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::http::request;
use hyper::{Request, Response, StatusCode, Uri};
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
    let response = send(Request::get(url), Bytes::new(), bounds)?;
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
    let request = Request::post(url).header(CONTENT_TYPE, "application/json");
    send(request, json.into(), bounds)
}

fn send(
    request: request::Builder,
    body: Bytes,
    bounds: ResponseBounds,
) -> Result<Response<Bytes>, RequestError> {
    let mut request = request.body(Full::new(body)).map_err(|_| RequestError::InvalidUrl)?;
    let url = request.uri();
    let (Some("http"), Some(host), Some(path)) =
        (url.scheme_str(), url.host(), url.path_and_query())
    else {
        return Err(RequestError::InvalidUrl);
    };
    let address = format!("{host}:{}", url.port_u16().unwrap_or(80));
    let host = HeaderValue::from_str(&address).map_err(|_| RequestError::InvalidUrl)?;
    *request.uri_mut() = Uri::from(path.clone());
    request.headers_mut().insert(HOST, host);
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    const BOUNDS: ResponseBounds =
        ResponseBounds { timeout: Duration::from_secs(30), max_body_bytes: 4 };

    /// Starts a server that responds with this text to its first request, and then waits until the client leaves.
    fn start_server(response: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/path?query", listener.local_addr().unwrap());
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut received = [0; 1024];
            assert!(stream.read(&mut received).unwrap() > 0);
            stream.write_all(response.as_bytes()).unwrap();
            let _ = stream.read(&mut received);
        });
        url
    }

    fn error(url: &str, bounds: ResponseBounds) -> String {
        get(url, bounds).unwrap_err().to_string()
    }

    #[test]
    fn unusable_response_is_error() {
        let url = start_server("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbody");
        assert_eq!(get(&url, BOUNDS).unwrap(), "body");
        let url = start_server("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nlarge");
        assert_eq!(error(&url, BOUNDS), "length limit exceeded");
        let url = start_server("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n");
        assert_eq!(error(&url, BOUNDS), "status 503 Service Unavailable");
        let bounds = ResponseBounds { timeout: Duration::from_millis(50), ..BOUNDS };
        assert_eq!(error(&start_server(""), bounds), "no response within 50ms");
        assert!(matches!(
            get(&start_server("hello\r\n\r\n"), BOUNDS),
            Err(RequestError::Protocol(_))
        ));
    }

    #[test]
    fn url_without_http_or_host_is_error() {
        for url in ["https://localhost", "localhost:6070", "/healthz", "http://a b", ""] {
            assert!(matches!(get(url, BOUNDS), Err(RequestError::InvalidUrl)), "{url}");
        }
    }
}
