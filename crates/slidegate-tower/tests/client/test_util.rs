//! A service that answers as it is written, and notes what it was asked.

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

/// What may come instead of an answer.
pub type Answered = Result<StatusCode, &'static str>;

/// What a service was asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// Since it was made.
    pub at: Duration,
    pub body: Bytes,
    /// Bodies of earlier answers that somebody still has.
    pub bodies_held: usize,
}

#[derive(Clone)]
pub struct Answer {
    answered: Answered,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Answer {
    pub fn of(status: u16) -> Self {
        Self { answered: Ok(StatusCode::from_u16(status).unwrap()), headers: Vec::new() }
    }

    pub fn error(message: &'static str) -> Self {
        Self { answered: Err(message), headers: Vec::new() }
    }

    pub fn with(mut self, name: &'static str, value: impl AsRef<[u8]>) -> Self {
        let value = HeaderValue::from_bytes(value.as_ref()).unwrap();
        self.headers.push((HeaderName::from_static(name), value));
        self
    }
}

/// A 429 that tells to wait.
pub fn denied(seconds: u64) -> Answer {
    Answer::of(429).with("retry-after", seconds.to_string())
}

struct Script {
    began: Instant,
    answers: Mutex<VecDeque<Answer>>,
    asked: Mutex<Vec<Asked>>,
    body: Arc<()>,
}

/// The service. Each call must be preceded by its own `poll_ready`, of the same clone.
pub struct Scripted {
    script: Arc<Script>,
    is_ready: bool,
}

impl Scripted {
    /// Gives these answers, one after the other, and 200 after them.
    pub fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        let script = Script {
            began: Instant::now(),
            answers: Mutex::new(answers.into_iter().collect()),
            asked: Mutex::default(),
            body: Arc::default(),
        };
        Self { script: Arc::new(script), is_ready: false }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.script.asked.lock().unwrap().clone()
    }
}

/// A clone has not been polled.
impl Clone for Scripted {
    fn clone(&self) -> Self {
        Self { script: Arc::clone(&self.script), is_ready: false }
    }
}

impl Service<Request<Bytes>> for Scripted {
    type Response = Response<Arc<()>>;
    type Error = &'static str;
    type Future = Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called without being polled");
        let script = &self.script;
        script.asked.lock().unwrap().push(Asked {
            at: script.began.elapsed(),
            body: request.into_body(),
            bodies_held: Arc::strong_count(&script.body) - 1,
        });
        let next = script.answers.lock().unwrap().pop_front();
        let Answer { answered, headers } = next.unwrap_or_else(|| Answer::of(200));
        ready(answered.map(|status| {
            let mut response = Response::new(Arc::clone(&script.body));
            *response.status_mut() = status;
            response.headers_mut().extend(headers);
            response
        }))
    }
}

/// What became of a request.
pub struct Ran {
    pub answer: Result<Response<Arc<()>>, &'static str>,
    /// When the service was asked.
    pub asked_at: Vec<Duration>,
    pub took: Duration,
}

impl Ran {
    pub fn status(&self) -> u16 {
        self.answer.as_ref().unwrap().status().as_u16()
    }

    /// The waits between the attempts.
    pub fn waits(&self) -> Vec<Duration> {
        self.asked_at.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }
}

/// Sends a GET through the layer to a service with these answers.
pub async fn run(layer: &RetryLayer, answers: impl IntoIterator<Item = Answer>) -> Ran {
    run_request(layer, Request::get("/"), answers).await
}

/// The same with another method.
pub async fn run_method(layer: &RetryLayer, method: Method, answers: Vec<Answer>) -> Ran {
    run_request(layer, Request::builder().method(method), answers).await
}

/// The same with any request.
pub async fn run_request(
    layer: &RetryLayer,
    request: http::request::Builder,
    answers: impl IntoIterator<Item = Answer>,
) -> Ran {
    let service = Scripted::new(answers);
    let request = request.body(Bytes::from_static(b"body")).unwrap();
    let answer = layer.layer(service.clone()).oneshot(request).await;
    let asked_at = service.asked().into_iter().map(|asked| asked.at).collect();
    Ran { answer, asked_at, took: service.script.began.elapsed() }
}

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
