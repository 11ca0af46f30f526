//! Whether the server is alive.

/// It is, if it can answer.
pub async fn healthz() -> &'static str {
    "ok"
}
