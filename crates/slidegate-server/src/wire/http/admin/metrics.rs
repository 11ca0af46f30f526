//! `/metrics`: all metrics, in the text format that the scraper prefers.

use std::str::FromStr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, header};
use headers_accept::Accept;

use crate::decide::Service;
use crate::render::problem::HttpProblem;
use crate::telemetry::metrics::Format;

/// Returns all metrics as text.
pub async fn metrics(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
) -> Result<([(HeaderName, &'static str); 1], String), HttpProblem> {
    let format = negotiate_metrics_format(&headers);
    let (store, cluster) = (service.store_stats(), service.store().cluster_stats());
    // This path exists only on the admin listener, and with that listener metrics are always collected.
    let metrics = service.telemetry().metrics();
    let text = metrics.map(|metrics| {
        let active = service.active_policy();
        let observed = service.telemetry().observed_key_counts(&active.policy);
        metrics.rules.update(active.rule_use(), observed);
        metrics.encode(format, store, cluster, service.wait_stats(), service.bodies().used_bytes())
    });
    let text = text.transpose().map_err(HttpProblem::internal)?.unwrap_or_default();
    Ok(([(header::CONTENT_TYPE, format.content_type())], text))
}

/// Returns the OpenMetrics format if the scraper prefers it. Otherwise returns the older Prometheus format, even if the
/// `Accept` header is missing or malformed.
fn negotiate_metrics_format(headers: &HeaderMap) -> Format {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let accepted = accepted.collect::<Vec<_>>().join(",");
    let Ok(accept) = Accept::from_str(&accepted) else { return Format::Prometheus };
    let known = accept.media_types().find_map(|media| {
        match (media.ty().as_str(), media.subty().as_str()) {
            ("application", "openmetrics-text") => Some(Format::OpenMetrics),
            ("text", "plain" | "*") | ("*", "*") => Some(Format::Prometheus),
            _ => None,
        }
    });
    known.unwrap_or(Format::Prometheus)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn accept_header_selects_metrics_format() {
        let format = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_str(accept).unwrap());
            negotiate_metrics_format(&headers)
        };
        // The Accept headers of Prometheus 2 and 3.
        let two = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let three = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,*/*;q=0.1";
        assert_eq!(format(two), Format::OpenMetrics);
        assert_eq!(format(three), Format::OpenMetrics);
        let older = "text/plain;version=0.0.4;q=0.9,application/openmetrics-text;q=0.1";
        assert_eq!(format(older), Format::Prometheus);
        for other in ["*/*", "text/html", "", ";;,", "application/json"] {
            assert_eq!(format(other), Format::Prometheus, "{other}");
        }
        assert_eq!(negotiate_metrics_format(&HeaderMap::new()), Format::Prometheus);
    }
}
