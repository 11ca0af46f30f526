//! The other side: a client that comes back when it was told to, and not together with everybody else.
//!
//! A [`RetryLayer`] goes over any service of `http::Request`s. On 429 (too many requests) and 503 (service
//! unavailable) it waits, and asks again:
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
//!     let answer = match Instant::now() < opens_at {
//!         true => Response::builder().status(429).header("retry-after", 5),
//!         false => Response::builder(),
//!     };
//!     answer.body(Bytes::new())
//! });
//! let client = ServiceBuilder::new().layer(RetryLayer::new()).service(server);
//! let answer = client.oneshot(Request::get("/").body(Bytes::new())?).await?;
//! assert_eq!(answer.status(), 200);
//! # Ok(())
//! # }
//! ```
//!
//! # How long it waits
//!
//! As long as it was told ([`told_wait`]) and up to a tenth longer, drawn by chance: those who were denied
//! together do not come back together. If it was told nothing, or to wait for no time at all, it backs off
//! exponentially with full jitter: anything from nothing up to a span that doubles with every attempt.
//!
//! # When it does not ask again
//!
//! - After [`attempts`](RetryLayer::attempts), or if the wait would end beyond the
//!   [total time](RetryLayer::total_time), the answer that it has is returned at once and as it is: to wait
//!   in vain helps nobody.
//! - If to ask twice may not be the same as to ask once: it repeats GET, HEAD, OPTIONS, TRACE, PUT and
//!   DELETE, which RFC 9110 calls idempotent, and requests with an `Idempotency-Key`; others if
//!   [told so](RetryLayer::also_repeat).
//! - On an error of the service below. An error says neither how long to wait nor whether the request was
//!   carried out; whether a broken connection is worth another try is for a layer below this one that knows
//!   connections, and which of the two waits for how long would be nobody's choice if both tried.
//!
//! # What it costs
//!
//! A request that may be repeated is cloned for each attempt, so its body must be `Clone`, which `Bytes` is at
//! no cost. The body of an answer that is not returned is dropped unread; an HTTP/1 client may then close
//! the connection. Nothing is boxed.

mod future;
mod layer;
mod repeatable;
mod service;
mod told;
mod wait;

pub use future::RetryFuture;
pub use layer::RetryLayer;
pub use service::Retry;
pub use told::told_wait;
