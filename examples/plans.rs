//! An axum API with plans: the limits depend on the plan of the user.
//!
//! ```sh
//! cargo run -p slidegate-tower --features axum --example plans
//! curl -i -H 'authorization: Bearer key-of-ann' http://127.0.0.1:3000/v1/items/7
//! ```

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::{Path, Request};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use slidegate::{Gate, MemoryStore, Policy, PolicyErrors};
use slidegate_tower::extract::{self, Extract};
use slidegate_tower::{Attributes, RateLimitLayer, TrustedProxies};
use tokio::net::TcpListener;

const POLICY: &str = "
routes: ['/v1/items/{id}', /v1/exports]
rules:
  - name: per-user
    per: [user|ip]                    # requests without an API key are counted by address
    limits: [5/min]                   # the free plan
    overrides:
      - { name: pro, when: { plan: pro }, limits: [20/min] }
      - { name: enterprise, when: { plan: enterprise }, limits: unlimited }
  - name: exports                     # exports are expensive: the same limit for all plans
    when: { method: POST, route: /v1/exports }
    per: [user]
    when_missing: deny                # requests without an API key are denied
    limits: [2/min]
";

/// The authenticated user, with the plan that determines the limits.
#[derive(Clone)]
struct User {
    name: &'static str,
    plan: &'static str,
}

/// Adds the user of the API key to the request, or responds with 401. A real service would use a database.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let key = extract::api_key().extract((&request).into());
    let user = match key.as_deref() {
        Some("key-of-ann") => User { name: "ann", plan: "free" },
        Some("key-of-bob") => User { name: "bob", plan: "pro" },
        Some("key-of-acme") => User { name: "acme", plan: "enterprise" },
        Some(_) => return (StatusCode::UNAUTHORIZED, "unknown API key\n").into_response(),
        None => return next.run(request).await,
    };
    request.extensions_mut().insert(user);
    next.run(request).await
}

pub(crate) fn app() -> Result<Router, PolicyErrors> {
    let gate = Gate::new(Policy::from_yaml(POLICY)?, MemoryStore::new());
    let attributes = Attributes::new()
        .with("method", extract::method())
        .with("route", extract::matched_route())
        .with("user", extract::extension(|user: &User| Some(user.name)))
        .with("plan", extract::extension(|user: &User| Some(user.plan)))
        .with("ip", extract::client_ip(TrustedProxies::none()));
    Ok(Router::new()
        .route("/v1/items/{id}", get(async |Path(id): Path<u64>| format!("item {id}\n")))
        .route("/v1/exports", post(async || "it will be sent\n"))
        .layer(RateLimitLayer::new(gate, attributes))
        .layer(middleware::from_fn(authenticate))) // the last layer is the outermost
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    let app = app()?.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, app).await?)
}
