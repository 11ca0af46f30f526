//! An axum service that limits failed logins: 20 per hour for each account, which is in the JSON body of at most 1 KiB,
//! and 5 per minute for each address.
//!
//! ```sh
//! cargo run -p slidegate-tower --features axum --example axum_login
//! curl -i --json '{"account": "ann", "password": "wrong"}' http://127.0.0.1:3000/login
//! ```

use std::{error::Error, net::SocketAddr};

use axum::extract::{DefaultBodyLimit, FromRequest, Request, rejection::JsonRejection};
use axum::middleware::{self, Next};
use axum::{Extension, Json, Router, http::StatusCode, response::Response, routing::post};
use slidegate::{Gate, MemoryStore, Policy, PolicyErrors};
use slidegate_tower::{Attributes, RateLimitLayer, Settlement, TrustedProxies, extract};

const POLICY: &str = "rules:
  - { name: account, per: [account], when_missing: deny, limits: [20/h] }
  - { name: address, per: [ip], when_missing: deny, limits: [5/min] }";

#[derive(Clone, serde::Deserialize)]
struct Login {
    account: String,
    password: String,
}

/// Moves the login from the body to the extensions of the request.
async fn read_login(request: Request, next: Next) -> Result<Response, JsonRejection> {
    let (mut parts, body) = request.into_parts();
    let request = Request::from_parts(parts.clone(), body);
    let Json(mut login) = Json::<Login>::from_request(request, &()).await?;
    login.account = login.account.trim().to_lowercase(); // other spellings are the same account
    parts.extensions.insert(login);
    Ok(next.run(Request::from_parts(parts, Default::default())).await)
}

/// Checks a login. A real service would compare hashes of passwords.
async fn log_in(Extension(login): Extension<Login>) -> StatusCode {
    let is_valid = (&*login.account, &*login.password) == ("ann", "correct horse");
    if is_valid { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
}

pub(crate) fn app() -> Result<Router, PolicyErrors> {
    let attributes = Attributes::new()
        .with("account", extract::extension(|login: &Login| Some(&login.account)))
        .with("ip", extract::client_ip(TrustedProxies::none()));
    let gate = Gate::new(Policy::from_yaml(POLICY)?, MemoryStore::new());
    let limits = RateLimitLayer::new(gate, attributes).settle(|response| match response.status {
        StatusCode::UNAUTHORIZED => Settlement::Keep,
        _ => Settlement::Revert,
    });
    let read_body = (DefaultBodyLimit::max(1024), middleware::from_fn(read_login));
    Ok(Router::new().route("/login", post(log_in).route_layer(limits).route_layer(read_body)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    Ok(axum::serve(listener, app()?.into_make_service_with_connect_info::<SocketAddr>()).await?)
}
