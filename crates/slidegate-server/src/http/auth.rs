//! `/v1/auth`: may this request pass, of which a proxy tells in headers?

mod forwarded;

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use super::answer::Reply;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, Uri};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use slidegate::{Clock, SystemClock};
use slidegate_tower::TrustedProxies;
use slidegate_tower::extract::client_address;
use tracing::warn;

use self::forwarded::Forwarded;
pub use self::forwarded::RepeatedHeaders;
use super::ask::{Text, default_domain};
use super::problem::Problem;
use crate::decisions::{Caller, Decisions};
use crate::service::NamedHeaders;
use crate::watch::Pace;

/// Charges one unit, if the request may pass.
pub async fn auth(
    face: &Decisions,
    believed: &Believed,
    caller: Caller,
    peer: SocketAddr,
    head: &Parts,
) -> Result<Reply, Problem> {
    let question = face.begin("slidegate.auth", caller);
    let find = pin!(async {
        let terms = Terms::read(&head.uri)?;
        let active = face.active();
        let forwarded = believed.read(&head.headers, peer.ip(), active.headers())?;
        let domain = terms.domain.as_str();
        let ruling = question.check_by(&active, domain, &forwarded.request(domain)).await;
        face.answers().authorize(&ruling, terms.deny_status.map(|DenyStatus(status)| status))
    });
    question.answer(find).await
}

/// Whom to believe, and how often to say that somebody else has asked.
pub struct Believed {
    proxies: TrustedProxies,
    repeated: RepeatedHeaders,
    told: Pace,
    clock: SystemClock,
}

impl Believed {
    /// These proxies only.
    pub fn new(proxies: TrustedProxies, repeated: RepeatedHeaders) -> Self {
        let told = Pace::new(1, Duration::from_secs(60));
        Self { proxies, repeated, told, clock: SystemClock::new() }
    }

    /// What a peer says. Of one that is not believed nothing is decided: to count all of its clients
    /// as one, or each as it says, would be wrong without anybody seeing it.
    fn read<'h>(
        &self,
        headers: &'h HeaderMap,
        peer: IpAddr,
        named: &'h NamedHeaders,
    ) -> Result<Forwarded<'h>, Problem> {
        let peer = peer.to_canonical();
        if self.proxies.contains(peer) {
            let ip = client_address(headers, peer, &self.proxies);
            return Ok(Forwarded::read(headers, ip, named, self.repeated));
        }
        let problem = format!(
            "{peer} is not one of --trusted-proxies ({}), so what it says of its clients is not believed",
            self.proxies
        );
        // Most proxies do not show the answer to anybody.
        if let Some(untold) = self.told.next(self.clock.now()) {
            warn!(untold, "rejected forward-auth request from untrusted address: {problem}");
        }
        Err(Problem::bad_request(problem))
    }
}

/// How the proxy wants it decided and told.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Terms<'q> {
    /// Whose rules apply; `default` if it is not given.
    #[serde(borrow, default = "default_domain")]
    domain: Text<'q>,
    /// The status of a denial. If it is not given, 429; or 503, if only the lack of a store denies.
    #[serde(default)]
    #[schemars(with = "DenyStatus")]
    deny_status: Option<DenyStatus>,
}

impl<'q> Terms<'q> {
    fn read(uri: &'q Uri) -> Result<Self, Problem> {
        serde_urlencoded::from_str(uri.query().unwrap_or_default())
            .map_err(|error| Problem::bad_request(format!("the query: {error}")))
    }
}

/// The status of a denial: an error.
struct DenyStatus(StatusCode);

const LEAST: u16 = 400;
const MAX: u16 = 599;

impl<'de> Deserialize<'de> for DenyStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Error;

        impl Visitor<'_> for Error {
            type Value = DenyStatus;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a status from {LEAST} to {MAX}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<DenyStatus, E> {
                let digits = text.bytes().all(|byte| byte.is_ascii_digit());
                let status =
                    text.parse().ok().filter(|status| digits && (LEAST..=MAX).contains(status));
                let status = status.and_then(|status| StatusCode::from_u16(status).ok());
                status.map(DenyStatus).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_str(Error)
    }
}

impl JsonSchema for DenyStatus {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "DenyStatus".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": LEAST, "maximum": MAX })
    }
}
