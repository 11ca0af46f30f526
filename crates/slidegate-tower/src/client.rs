//! Client middleware that retries denied requests after the wait that the denial states, with jitter.
//!
//! A [`RetryLayer`] wraps any service of `http::Request`s. On a response with status 429 (too many requests) or 503
//! (service unavailable), the client waits and sends the request again:
//!
//! ```
//! use std::time::Duration;
//!
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use slidegate_tower::client::RetryLayer;
//! use tokio::time::Instant;
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), http::Error> {
//! let opens_at = Instant::now() + Duration::from_secs(5);
//! let server = tower::service_fn(move |_: Request<Bytes>| async move {
//!     let response = if Instant::now() < opens_at {
//!         Response::builder().status(429).header("retry-after", 5)
//!     } else {
//!         Response::builder()
//!     };
//!     response.body(Bytes::new())
//! });
//! let client = ServiceBuilder::new().layer(RetryLayer::new()).service(server);
//! let response = client.oneshot(Request::get("/").body(Bytes::new())?).await?;
//! assert_eq!(response.status(), 200);
//! # Ok(())
//! # }
//! ```
//!
//! # Wait before a retry
//!
//! The client waits for the time that the response states ([`parse_retry_delay`]), plus a random part of up to a tenth,
//! so that clients that were denied at the same time do not return at the same time. If the response states no wait, or
//! a wait of zero, the client backs off exponentially with full jitter: it waits a random time between zero and a bound
//! that doubles with every attempt.
//!
//! # Requests that are not retried
//!
//! - After [`attempts`](RetryLayer::attempts), or if the wait would end after the
//!   [total time](RetryLayer::total_time), the last response is returned immediately and unchanged.
//! - A request that might have a further effect if it were sent again. The client repeats GET, HEAD, OPTIONS, TRACE,
//!   PUT and DELETE, which RFC 9110 defines as idempotent, requests with an `Idempotency-Key`, and requests selected by
//!   [`also_repeat`](RetryLayer::also_repeat).
//! - A request for which the inner service returns an error. The error states neither a wait nor whether the request
//!   was carried out. Retries of broken connections belong in a layer below this one, which knows the connections; if
//!   both layers retried, neither would control the total wait.
//!
//! # Cost
//!
//! A request that may be repeated is cloned for each attempt, so its body must be `Clone`; cloning `Bytes` copies no
//! data. The body of a response that is not returned is dropped unread; an HTTP/1 client may then close the
//! connection. No future is boxed.

mod future;
mod layer;
mod rate_limit_headers;
mod repeat_policy;
mod retry_schedule;
mod service;

pub use future::RetryFuture;
pub use layer::RetryLayer;
pub use rate_limit_headers::parse_retry_delay;
pub use service::Retry;
