//! How often the client asks, and for how long in all.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use slidegate::Jitter;
use slidegate_tower::client::RetryLayer;
use tower::{Layer, Service, ServiceExt};

use crate::scripted::{Answer, Scripted, denied, run, seconds};

fn unjittered() -> RetryLayer {
    RetryLayer::new().jitter(Jitter::NONE)
}

/// Denials that can be told apart.
fn denials(n: usize, wait: u64) -> Vec<Answer> {
    (1..=n).map(|nth| denied(wait).with("x-nth", nth.to_string())).collect()
}

#[tokio::test(start_paused = true)]
async fn attempts_are_bounded_and_the_last_answer_is_returned_as_it_is() {
    for (layer, attempts) in [
        (unjittered(), 4),
        (unjittered().attempts(0), 1),
        (unjittered().attempts(1), 1),
        (unjittered().attempts(2), 2),
        (unjittered().attempts(9), 9),
    ] {
        let ran = run(&layer, denials(20, 2)).await;
        let asked_at: Vec<_> = (0..attempts).map(|nth| seconds(nth * 2)).collect();
        assert_eq!((ran.status(), &ran.asked_at), (429, &asked_at));
        // It does not wait after the last.
        assert_eq!(Some(&ran.took), asked_at.last());
        let headers = ran.answer.unwrap().headers().clone();
        assert_eq!(headers["x-nth"], attempts.to_string());
        assert_eq!(headers["retry-after"], "2");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_would_end_too_late_is_not_begun() {
    let layer = unjittered().attempts(20);
    // The first wait, a wait in the middle, the longest there is.
    for (wait, asked) in [(31, 1), (20, 2), (10, 4), (30, 2), (u64::MAX, 1)] {
        let ran = run(&layer, denials(20, wait)).await;
        assert_eq!((ran.status(), ran.asked_at.len()), (429, asked), "{wait}");
        assert_eq!(ran.took, seconds(wait.saturating_mul(asked as u64 - 1)), "{wait}");
        assert_eq!(ran.answer.unwrap().headers()["x-nth"], asked.to_string());
    }
    let long = Answer::of(503).with("retry-after", "99999999999999999999999");
    assert_eq!(run(&layer.clone().total_time(Duration::MAX), [denied(5)]).await.took, seconds(5));
    let ran = run(&layer.clone().total_time(seconds(1 << 40)), [long]).await;
    assert_eq!((ran.status(), ran.took), (503, Duration::ZERO));
    let ran = run(&layer.total_time(Duration::ZERO), denials(1, 1)).await;
    assert_eq!((ran.status(), ran.took), (429, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn the_jitter_counts_as_part_of_the_wait() {
    fastrand::seed(4);
    let layer = RetryLayer::new().jitter(Jitter::up_to(seconds(100)));
    let mut ended = [0, 0];
    for _ in 0..100 {
        let ran = run(&layer, [denied(1)]).await;
        assert!(ran.took <= seconds(30) + Duration::from_millis(1));
        ended[usize::from(ran.status() == 200)] += 1;
    }
    assert!(ended.iter().all(|n| *n > 10), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn time_that_attempts_take_counts() {
    // Each attempt takes 7 s.
    let slow = tower::service_fn(|_: Request<Bytes>| async {
        tokio::time::sleep(seconds(7)).await;
        Response::builder().status(429).header("retry-after", 5).body(())
    });
    let began = tokio::time::Instant::now();
    let answer = unjittered().attempts(20).layer(slow).oneshot(Request::default()).await.unwrap();
    // 7, 5, 7, 5, and 7 more are 31; another wait would end at 36.
    assert_eq!((answer.status().as_u16(), began.elapsed()), (429, seconds(31)));
}

#[tokio::test(start_paused = true)]
async fn anything_but_429_and_503_passes_at_once() {
    for status in [200, 204, 301, 400, 401, 403, 404, 408, 425, 500, 502, 504] {
        let answer =
            Answer::of(status).with("retry-after", "5").with("ratelimit", r#""a";r=0;t=5"#);
        let ran = run(&unjittered(), [answer]).await;
        assert_eq!((ran.status(), ran.took, ran.asked_at.len()), (status, Duration::ZERO, 1));
        assert_eq!(ran.answer.unwrap().headers().len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_is_not_repeated() {
    let ran = run(&unjittered(), [Answer::error("reset")]).await;
    assert_eq!((ran.answer.unwrap_err(), ran.asked_at.len()), ("reset", 1));
    let ran = run(&unjittered(), [denied(3), Answer::error("reset")]).await;
    assert_eq!((ran.answer.unwrap_err(), ran.took), ("reset", seconds(3)));
}

#[tokio::test(start_paused = true)]
async fn the_answer_that_is_not_returned_is_dropped_before_the_wait() {
    let service = Scripted::new(denials(2, 5));
    let answer = unjittered().layer(service.clone()).oneshot(Request::default()).await.unwrap();
    let held: Vec<_> = service.asked().iter().map(|asked| asked.bodies_held).collect();
    assert_eq!(held, [0, 0, 0]);
    assert_eq!(Arc::strong_count(answer.body()), 2);
}

#[tokio::test(start_paused = true)]
async fn clones_of_the_client_wait_each_for_itself() {
    let service = Scripted::new(denials(2, 5));
    let client = unjittered().layer(service.clone());
    let [one, other] = [client.clone(), client].map(|client| client.oneshot(Request::default()));
    let (one, other) = tokio::join!(one, other);
    assert_eq!([one.unwrap().status(), other.unwrap().status()], [200, 200]);
    let asked_at: Vec<_> = service.asked().iter().map(|asked| asked.at).collect();
    assert_eq!(asked_at, [0, 0, 5, 5].map(seconds));
}

/// Takes a second to be ready, each time. That only who was polled is called, every other test checks, too.
struct Slow {
    inner: Scripted,
    readying: Option<std::pin::Pin<Box<tokio::time::Sleep>>>,
}

impl Clone for Slow {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), readying: None }
    }
}

impl Service<Request<Bytes>> for Slow {
    type Response = Response<Arc<()>>;
    type Error = &'static str;
    type Future = <Scripted as Service<Request<Bytes>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let readying =
            self.readying.get_or_insert_with(|| Box::pin(tokio::time::sleep(seconds(1))));
        std::task::ready!(readying.as_mut().poll(cx));
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        assert!(self.readying.take().is_some());
        self.inner.call(request)
    }
}

#[tokio::test(start_paused = true)]
async fn every_attempt_waits_until_the_service_is_ready() {
    let inner = Scripted::new(denials(2, 5));
    let client = unjittered().layer(Slow { inner: inner.clone(), readying: None });
    assert_eq!(client.oneshot(Request::default()).await.unwrap().status(), 200);
    let asked_at: Vec<_> = inner.asked().iter().map(|asked| asked.at).collect();
    assert_eq!(asked_at, [1, 7, 13].map(seconds));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_fails_to_become_ready_ends_it() {
    #[derive(Clone)]
    struct Once(bool);
    impl Service<Request<Bytes>> for Once {
        type Response = Response<()>;
        type Error = &'static str;
        type Future = std::future::Ready<Result<Response<()>, &'static str>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(if self.0 { Ok(()) } else { Err("closed") })
        }
        fn call(&mut self, _: Request<Bytes>) -> Self::Future {
            self.0 = false;
            let answer = Response::builder().status(503).header("retry-after", 1);
            std::future::ready(Ok(answer.body(()).unwrap()))
        }
    }
    let ended = unjittered().layer(Once(true)).oneshot(Request::default()).await;
    assert_eq!(ended.unwrap_err(), "closed");
}

#[test]
fn the_client_can_be_sent_and_shared() {
    fn check<T: Clone + Send + Sync + 'static>(_: &T) {}
    fn sent<F: Future + Send>(_: &F) {}
    let layer = RetryLayer::new().also_repeat(|head| head.uri.path() == "/");
    check(&layer);
    let service =
        tower::service_fn(|_: Request<Bytes>| async { Ok::<_, Infallible>(Response::new(())) });
    let client = layer.layer(service);
    check(&client);
    sent(&client.oneshot(Request::default()));
}
