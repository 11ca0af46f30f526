//! Encodes the metrics in the text format OpenMetrics, or in the older Prometheus text format, which is converted from
//! OpenMetrics.

use std::fmt;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// A text format in which metrics are exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The text format OpenMetrics 1.0.
    OpenMetrics,
    /// The Prometheus text format 0.0.4, which every scraper supports.
    Prometheus,
}

impl Format {
    /// Returns the media type of the format, for the header `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Encodes all metrics of a registry in a text format.
pub fn encode_registry(registry: &Registry, format: Format) -> Result<String, fmt::Error> {
    let mut text = String::new();
    encode(&mut text, registry)?;
    Ok(match format {
        Format::OpenMetrics => text,
        Format::Prometheus => convert_openmetrics_to_prometheus(&text),
    })
}

/// Converts OpenMetrics text to the Prometheus text format 0.0.4. OpenMetrics declares counters and infos without the
/// suffix of their samples, such as `_total`, and ends with `# EOF`. The older format declares them with the suffix,
/// and has no end mark.
fn convert_openmetrics_to_prometheus(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                other => ("", other),
            };
            if let Some((_, help)) = help.take().filter(|(metric, _)| *metric == name) {
                text.push_str(&format!("# HELP {name}{suffix} {help}\n"));
            }
            text.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with("# ") {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_type_lines_use_sample_names() {
        let open_metrics = "\
# HELP a_requests How many.
# TYPE a_requests counter
a_requests_total{of=\"# TYPE x counter\"} 3
# HELP a_build Which.
# TYPE a_build info
a_build_info{version=\"1\"} 1
# HELP a_took How long.
# TYPE a_took histogram
# UNIT a_took seconds
a_took_sum 1.5
# EOF
";
        let prometheus = "\
# HELP a_requests_total How many.
# TYPE a_requests_total counter
a_requests_total{of=\"# TYPE x counter\"} 3
# HELP a_build_info Which.
# TYPE a_build_info gauge
a_build_info{version=\"1\"} 1
# HELP a_took How long.
# TYPE a_took histogram
a_took_sum 1.5
";
        assert_eq!(convert_openmetrics_to_prometheus(open_metrics), prometheus);
    }
}
