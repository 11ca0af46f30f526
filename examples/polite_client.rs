//! A client that respects retry delays: reqwest behind `RetryLayer`. The client requests a page repeatedly. After
//! each denial it waits as long as the server requires.
//!
//! ```sh
//! cargo run -p slidegate-tower --features client --example polite_client -- http://127.0.0.1:3000/ 20
//! ```

use std::env;
use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use slidegate_tower::client::RetryLayer;
use tokio::time::Instant;
use tower::{Service, ServiceBuilder, ServiceExt};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args().nth(1).unwrap_or_else(|| "http://127.0.0.1:3000/".to_owned());
    let times = env::args().nth(2).map_or(Ok(20), |times| times.parse())?;

    // Wraps reqwest as a tower service for `http::Request`. This converts each request and each response.
    let http = reqwest::Client::builder().timeout(Duration::from_secs(10)).build()?;
    let http = tower::service_fn(move |request: Request<Bytes>| {
        let response = reqwest::Request::try_from(request).map(|request| http.execute(request));
        async move { Ok::<_, reqwest::Error>(Response::<reqwest::Body>::from(response?.await?)) }
    });
    // Retries denied requests after the required delay: at most 4 attempts within 90 seconds.
    let polite = RetryLayer::new().total_time(Duration::from_secs(90));
    let mut client = ServiceBuilder::new().layer(polite).service(http);

    let began = Instant::now();
    for nth in 1..=times {
        let request = Request::get(&url).body(Bytes::new())?;
        let response = client.ready().await?.call(request).await?;
        println!("{:6.2} s: {nth}: {}", began.elapsed().as_secs_f64(), response.status());
    }
    Ok(())
}
