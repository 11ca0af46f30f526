//! A test service that returns scripted responses and records its calls.

use std::collections::VecDeque;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use slidegate_tower::client::RetryLayer;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};

/// The status of a scripted response, or an error that the service returns.
pub type ScriptedResult = Result<StatusCode, &'static str>;

/// A call that the scripted service received.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedCall {
    /// The moment of the call, as the time elapsed since the creation of the service.
    pub at: Duration,
    pub body: Bytes,
    /// The number of bodies of earlier responses that the client had not yet dropped when it made the call.
    pub retained_bodies: usize,
}

/// The response or error that the scripted service returns for one call.
#[derive(Clone)]
pub struct ScriptedResponse {
    result: ScriptedResult,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl ScriptedResponse {
    pub fn with_status(status: u16) -> Self {
        Self { result: Ok(StatusCode::from_u16(status).unwrap()), headers: Vec::new() }
    }

    pub fn error(message: &'static str) -> Self {
        Self { result: Err(message), headers: Vec::new() }
    }

    pub fn with_header(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Self {
        let value = HeaderValue::from_bytes(value.as_ref()).unwrap();
        self.headers.push((HeaderName::from_static(name), value));
        self
    }
}

/// Returns a response with status 429 and `Retry-After`.
pub fn denial_with_wait(seconds: u64) -> ScriptedResponse {
    ScriptedResponse::with_status(429).with_header("retry-after", seconds.to_string())
}

/// The state that all clones of a [`ScriptedService`] share.
struct ScriptedServiceState {
    started: Instant,
    responses: Mutex<VecDeque<ScriptedResponse>>,
    calls: Mutex<Vec<RecordedCall>>,
    body: Arc<()>,
}

/// A service that returns scripted responses. Each clone must be polled ready before each call.
pub struct ScriptedService {
    script: Arc<ScriptedServiceState>,
    is_ready: bool,
}

impl ScriptedService {
    /// Creates a service that returns these responses in order, and then a response with status 200 for each further
    /// call.
    pub fn new(responses: impl IntoIterator<Item = ScriptedResponse>) -> Self {
        let script = ScriptedServiceState {
            started: Instant::now(),
            responses: Mutex::new(responses.into_iter().collect()),
            calls: Mutex::default(),
            body: Arc::default(),
        };
        Self { script: Arc::new(script), is_ready: false }
    }

    pub fn calls(&self) -> Vec<RecordedCall> {
        self.script.calls.lock().unwrap().clone()
    }
}

/// A clone must be polled ready before it is called.
impl Clone for ScriptedService {
    fn clone(&self) -> Self {
        Self { script: Arc::clone(&self.script), is_ready: false }
    }
}

impl Service<Request<Bytes>> for ScriptedService {
    type Response = Response<Arc<()>>;
    type Error = &'static str;
    type Future = Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called without being polled ready");
        let script = &self.script;
        script.calls.lock().unwrap().push(RecordedCall {
            at: script.started.elapsed(),
            body: request.into_body(),
            retained_bodies: Arc::strong_count(&script.body) - 1,
        });
        let next = script.responses.lock().unwrap().pop_front();
        let ScriptedResponse { result, headers } =
            next.unwrap_or_else(|| ScriptedResponse::with_status(200));
        ready(result.map(|status| {
            let mut response = Response::new(Arc::clone(&script.body));
            *response.status_mut() = status;
            response.headers_mut().extend(headers);
            response
        }))
    }
}

/// The result of a request through the layer, and the calls that the layer made.
pub struct RunResult {
    pub response: Result<Response<Arc<()>>, &'static str>,
    /// The moments at which the service was called, each as the time elapsed since the creation of the service.
    pub call_times: Vec<Duration>,
    pub elapsed: Duration,
}

impl RunResult {
    pub fn status(&self) -> u16 {
        self.response.as_ref().unwrap().status().as_u16()
    }

    /// Returns the waits between successive attempts.
    pub fn waits(&self) -> Vec<Duration> {
        self.call_times.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

/// Sends a GET request through the layer to a service that returns these responses.
pub async fn run_get(
    layer: &RetryLayer,
    responses: impl IntoIterator<Item = ScriptedResponse>,
) -> RunResult {
    run_request(layer, Request::get("/"), responses).await
}

/// Sends a request with this method through the layer to a service that returns these responses.
pub async fn run_method(
    layer: &RetryLayer,
    method: Method,
    responses: Vec<ScriptedResponse>,
) -> RunResult {
    run_request(layer, Request::builder().method(method), responses).await
}

/// Sends this request through the layer to a service that returns these responses.
pub async fn run_request(
    layer: &RetryLayer,
    request: http::request::Builder,
    responses: impl IntoIterator<Item = ScriptedResponse>,
) -> RunResult {
    let service = ScriptedService::new(responses);
    let request = request.body(Bytes::from_static(b"body")).unwrap();
    let response = layer.layer(service.clone()).oneshot(request).await;
    let call_times = service.calls().into_iter().map(|call| call.at).collect();
    RunResult { response, call_times, elapsed: service.script.started.elapsed() }
}

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
