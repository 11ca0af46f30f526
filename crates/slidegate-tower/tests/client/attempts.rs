//! Tests of the number of attempts of the retrying client, and of their total time.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use slidegate::Jitter;
use slidegate_tower::client::RetryLayer;
use tower::{Layer, Service, ServiceExt};

use crate::client::test_util::{
    ScriptedResponse, ScriptedService, denial_with_wait, run_get, seconds,
};

fn layer_without_jitter() -> RetryLayer {
    RetryLayer::new().jitter(Jitter::NONE)
}

/// Returns `n` denials that state a wait of `wait` seconds. The header `x-nth` contains the number of the denial.
fn numbered_denials(n: usize, wait: u64) -> Vec<ScriptedResponse> {
    (1..=n).map(|nth| denial_with_wait(wait).with_header("x-nth", nth.to_string())).collect()
}

#[tokio::test(start_paused = true)]
async fn last_response_is_returned_after_max_attempts() {
    for (layer, attempts) in [
        (layer_without_jitter(), 4),
        (layer_without_jitter().attempts(0), 1),
        (layer_without_jitter().attempts(1), 1),
        (layer_without_jitter().attempts(2), 2),
        (layer_without_jitter().attempts(9), 9),
    ] {
        let result = run_get(&layer, numbered_denials(20, 2)).await;
        let call_times: Vec<_> = (0..attempts).map(|nth| seconds(nth * 2)).collect();
        assert_eq!((result.status(), &result.call_times), (429, &call_times));
        // No wait follows the last attempt.
        assert_eq!(Some(&result.elapsed), call_times.last());
        let headers = result.response.unwrap().headers().clone();
        assert_eq!(headers["x-nth"], attempts.to_string());
        assert_eq!(headers["retry-after"], "2");
    }
}

#[tokio::test(start_paused = true)]
async fn wait_exceeding_total_retry_time_is_not_started() {
    let layer = layer_without_jitter().attempts(20);
    // The first wait, a wait in the middle, the maximum wait.
    for (wait, attempts) in [(31, 1), (20, 2), (10, 4), (30, 2), (u64::MAX, 1)] {
        let result = run_get(&layer, numbered_denials(20, wait)).await;
        assert_eq!((result.status(), result.call_times.len()), (429, attempts), "{wait}");
        assert_eq!(result.elapsed, seconds(wait.saturating_mul(attempts as u64 - 1)), "{wait}");
        assert_eq!(result.response.unwrap().headers()["x-nth"], attempts.to_string());
    }
    let long =
        ScriptedResponse::with_status(503).with_header("retry-after", "99999999999999999999999");
    assert_eq!(
        run_get(&layer.clone().total_time(Duration::MAX), [denial_with_wait(5)]).await.elapsed,
        seconds(5)
    );
    let result = run_get(&layer.clone().total_time(seconds(1 << 40)), [long]).await;
    assert_eq!((result.status(), result.elapsed), (503, Duration::ZERO));
    let result = run_get(&layer.total_time(Duration::ZERO), numbered_denials(1, 1)).await;
    assert_eq!((result.status(), result.elapsed), (429, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn total_retry_time_includes_jitter() {
    fastrand::seed(4);
    let layer = RetryLayer::new().jitter(Jitter::up_to(seconds(100)));
    let mut outcomes = [0, 0];
    for _ in 0..100 {
        let result = run_get(&layer, [denial_with_wait(1)]).await;
        assert!(result.elapsed <= seconds(30) + Duration::from_millis(1));
        outcomes[usize::from(result.status() == 200)] += 1;
    }
    assert!(outcomes.iter().all(|n| *n > 10), "{outcomes:?}");
}

#[tokio::test(start_paused = true)]
async fn total_retry_time_includes_duration_of_attempts() {
    // Each attempt takes 7 s.
    let slow = tower::service_fn(|_: Request<Bytes>| async {
        tokio::time::sleep(seconds(7)).await;
        Response::builder().status(429).header("retry-after", 5).body(())
    });
    let started = tokio::time::Instant::now();
    let response =
        layer_without_jitter().attempts(20).layer(slow).oneshot(Request::default()).await.unwrap();
    // Attempts and waits of 7, 5, 7, 5 and 7 s end at 31 s; another wait would end at 36 s.
    assert_eq!((response.status().as_u16(), started.elapsed()), (429, seconds(31)));
}

#[tokio::test(start_paused = true)]
async fn statuses_except_429_and_503_are_not_retried() {
    for status in [200, 204, 301, 400, 401, 403, 404, 408, 425, 500, 502, 504] {
        let response = ScriptedResponse::with_status(status)
            .with_header("retry-after", "5")
            .with_header("ratelimit", r#""a";r=0;t=5"#);
        let result = run_get(&layer_without_jitter(), [response]).await;
        assert_eq!(
            (result.status(), result.elapsed, result.call_times.len()),
            (status, Duration::ZERO, 1)
        );
        assert_eq!(result.response.unwrap().headers().len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn service_error_is_not_retried() {
    let result = run_get(&layer_without_jitter(), [ScriptedResponse::error("reset")]).await;
    assert_eq!((result.response.unwrap_err(), result.call_times.len()), ("reset", 1));
    let result =
        run_get(&layer_without_jitter(), [denial_with_wait(3), ScriptedResponse::error("reset")])
            .await;
    assert_eq!((result.response.unwrap_err(), result.elapsed), ("reset", seconds(3)));
}

#[tokio::test(start_paused = true)]
async fn denial_response_is_dropped_before_retry_wait() {
    let service = ScriptedService::new(numbered_denials(2, 5));
    let response =
        layer_without_jitter().layer(service.clone()).oneshot(Request::default()).await.unwrap();
    let retained: Vec<_> = service.calls().iter().map(|call| call.retained_bodies).collect();
    assert_eq!(retained, [0, 0, 0]);
    assert_eq!(Arc::strong_count(response.body()), 2);
}

#[tokio::test(start_paused = true)]
async fn clones_of_retry_client_wait_independently() {
    let service = ScriptedService::new(numbered_denials(2, 5));
    let client = layer_without_jitter().layer(service.clone());
    let [first, second] = [client.clone(), client].map(|client| client.oneshot(Request::default()));
    let (first, second) = tokio::join!(first, second);
    assert_eq!([first.unwrap().status(), second.unwrap().status()], [200, 200]);
    let call_times: Vec<_> = service.calls().iter().map(|call| call.at).collect();
    assert_eq!(call_times, [0, 0, 5, 5].map(seconds));
}

/// A service that needs one second to become ready before each call.
struct SlowlyReadyService {
    inner: ScriptedService,
    ready_timer: Option<std::pin::Pin<Box<tokio::time::Sleep>>>,
}

impl Clone for SlowlyReadyService {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), ready_timer: None }
    }
}

impl Service<Request<Bytes>> for SlowlyReadyService {
    type Response = Response<Arc<()>>;
    type Error = &'static str;
    type Future = <ScriptedService as Service<Request<Bytes>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let ready_timer =
            self.ready_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(seconds(1))));
        std::task::ready!(ready_timer.as_mut().poll(cx));
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        assert!(self.ready_timer.take().is_some());
        self.inner.call(request)
    }
}

#[tokio::test(start_paused = true)]
async fn every_attempt_waits_until_service_is_ready() {
    let inner = ScriptedService::new(numbered_denials(2, 5));
    let client = layer_without_jitter()
        .layer(SlowlyReadyService { inner: inner.clone(), ready_timer: None });
    assert_eq!(client.oneshot(Request::default()).await.unwrap().status(), 200);
    let call_times: Vec<_> = inner.calls().iter().map(|call| call.at).collect();
    assert_eq!(call_times, [1, 7, 13].map(seconds));
}

#[tokio::test(start_paused = true)]
async fn service_readiness_error_ends_retries() {
    #[derive(Clone)]
    struct ReadyOnceService(bool);
    impl Service<Request<Bytes>> for ReadyOnceService {
        type Response = Response<()>;
        type Error = &'static str;
        type Future = std::future::Ready<Result<Response<()>, &'static str>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(if self.0 { Ok(()) } else { Err("closed") })
        }
        fn call(&mut self, _: Request<Bytes>) -> Self::Future {
            self.0 = false;
            let response = Response::builder().status(503).header("retry-after", 1);
            std::future::ready(Ok(response.body(()).unwrap()))
        }
    }
    let result =
        layer_without_jitter().layer(ReadyOnceService(true)).oneshot(Request::default()).await;
    assert_eq!(result.unwrap_err(), "closed");
}

#[test]
fn retry_client_is_send_and_sync() {
    fn assert_clone_send_sync<T: Clone + Send + Sync + 'static>(_: &T) {}
    fn assert_send<F: Future + Send>(_: &F) {}
    let layer = RetryLayer::new().also_repeat(|head| head.uri.path() == "/");
    assert_clone_send_sync(&layer);
    let service =
        tower::service_fn(|_: Request<Bytes>| async { Ok::<_, Infallible>(Response::new(())) });
    let client = layer.layer(service);
    assert_clone_send_sync(&client);
    assert_send(&client.oneshot(Request::default()));
}
