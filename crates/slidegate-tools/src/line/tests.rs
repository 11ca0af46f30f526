use proptest::prelude::*;

use super::*;

const LOG_TIMESTAMP: &str = "17/May/2015:10:05:03 +0000";

fn format_log_line(request: &str) -> String {
    format!("192.0.2.7 - - [{LOG_TIMESTAMP}] \"{request}\" 200 12")
}

fn parse_line_attributes(text: &str) -> Vec<(&str, &str)> {
    parse(text).unwrap().attributes().collect()
}

#[test]
fn combined_format_line_has_all_attributes() {
    let text = format!(
        "192.0.2.7 - alice [{LOG_TIMESTAMP}] \"GET /a/b?c=d HTTP/1.1\" 200 203023 \"http://e.org/\" \"curl/8.1\""
    );
    assert_eq!(
        parse_line_attributes(&text),
        [
            ("method", "GET"),
            ("path", "/a/b"),
            ("ip", "192.0.2.7"),
            ("header.referer", "http://e.org/"),
            ("header.user-agent", "curl/8.1"),
            ("user", "alice"),
        ]
    );
    assert_eq!(parse(&text).unwrap().time, Timestamp::from_secs(1_431_857_103));
}

#[test]
fn host_before_client_is_attribute_unless_target_has_one() {
    let line = |target: &str| {
        let line = format_log_line(&format!("GET {target} HTTP/1.1"));
        format!("\u{feff}www.shop.example:443 {line}")
    };
    assert_eq!(
        parse_line_attributes(&line("/"))[2..],
        [("ip", "192.0.2.7"), ("host", "www.shop.example:443")]
    );
    assert_eq!(parse_line_attributes(&line("http://e.org/"))[3], ("host", "e.org"));
}

#[test]
fn common_format_line_has_no_headers() {
    let expected = [("method", "HEAD"), ("path", "/"), ("ip", "192.0.2.7")];
    assert_eq!(parse_line_attributes(&format_log_line("HEAD / HTTP/1.0")), expected);
}

#[test]
fn dash_in_log_line_means_missing_value() {
    let text = format_log_line("GET / HTTP/1.1") + " \"-\" \"-\"";
    assert_eq!(parse_line_attributes(&text).len(), 3);
}

#[test]
fn log_fields_after_user_agent_are_ignored() {
    let text = format_log_line("GET / HTTP/1.1") + " \"-\" \"curl\" \"10.0.0.1\" 0.004 \"";
    assert_eq!(parse_line_attributes(&text)[3..], [("header.user-agent", "curl")]);
}

#[test]
fn log_line_truncated_after_status_is_parsed() {
    let whole = format_log_line("GET / HTTP/1.1") + " \"http://e.org/\" \"curl/8.1\"";
    let status = whole.find(" 200").unwrap() + " 200".len();
    for cut in status..whole.len() {
        assert_eq!(parse_line_attributes(&whole[..cut])[..2], [("method", "GET"), ("path", "/")]);
    }
    assert_eq!(
        parse_line_attributes(&whole[..whole.len() - 3])[4],
        ("header.user-agent", "curl/8")
    );
}

#[test]
fn escaped_quote_does_not_end_quoted_field() {
    let text = format_log_line(r#"GET /a\"b HTTP/1.1"#) + r#" "a\\" "say \"hi\" \\""#;
    assert_eq!(
        parse_line_attributes(&text)[1..],
        [
            ("path", r#"/a\"b"#),
            ("ip", "192.0.2.7"),
            ("header.referer", r"a\\"),
            ("header.user-agent", r#"say \"hi\" \\"#),
        ]
    );
}

#[test]
fn ipv6_address_and_user_with_spaces_are_parsed() {
    let text = format!("2001:db8::1 - jane doe [{LOG_TIMESTAMP}] \"GET / HTTP/2.0\" 200 1");
    assert_eq!(parse_line_attributes(&text)[2..], [("ip", "2001:db8::1"), ("user", "jane doe")]);
}

#[test]
fn all_request_target_forms_are_parsed() {
    let host_and_path = |request: &str| {
        let text = format_log_line(request);
        let line = parse(&text).ok()?;
        let [_, path, _, host, ..] = line.values;
        Some((host.map(str::to_owned), path?.to_owned()))
    };
    let some = |host: &str, path: &str| {
        Some(((!host.is_empty()).then(|| host.to_owned()), path.to_owned()))
    };
    assert_eq!(host_and_path("GET http://e.org:8080/a?b HTTP/1.1"), some("e.org:8080", "/a"));
    assert_eq!(host_and_path("GET http://me:pw@e.org HTTP/1.1"), some("e.org", "/"));
    assert_eq!(host_and_path("GET http://e.org?b HTTP/1.1"), some("e.org", "/"));
    assert_eq!(host_and_path("GET /?to=http://e.org HTTP/1.1"), some("", "/"));
    assert_eq!(host_and_path("GET /a b HTTP/1.1"), some("", "/a b"));
    assert_eq!(host_and_path("GET /old"), some("", "/old"));
    assert_eq!(host_and_path("OPTIONS * HTTP/1.1"), some("", "*"));
    assert_eq!(host_and_path("CONNECT e.org:443 HTTP/1.1"), some("", "e.org:443"));
    for garbage in
        ["-", "", "GET", "GET  HTTP/1.1", r"\x16\x03\x01", r"\x16 /", " / HTTP/1.1", "a b"]
    {
        assert_eq!(parse(&format_log_line(garbage)), Err(LineError::Request), "{garbage}");
    }
}

#[test]
fn log_line_time_is_converted_to_utc() {
    let seconds = |text: &str| parse_timestamp(text).map(|time| time.as_micros() / 1_000_000);
    assert_eq!(seconds("17/May/2015:12:05:03 +0200"), Some(1_431_857_103));
    assert_eq!(seconds("17/May/2015:04:35:03 -0530"), Some(1_431_857_103));
    assert_eq!(seconds("29/Feb/2024:23:59:59 +0000"), Some(1_709_251_199));
    assert_eq!(seconds("01/Jan/1970:00:00:00 +0000"), Some(0));
}

#[test]
fn invalid_log_line_time_is_rejected() {
    for time in [
        "29/Feb/2023:00:00:00 +0000",
        "17/Mai/2015:10:05:03 +0000",
        "17/May/2015:24:00:00 +0000",
        "17/May/2015:10:05:03 +9900",
        "17/May/2015:10:05:03  0000",
        "17/May/2015:10:05:03 +000",
        "17/May/2015:10:05:03 +00000",
        "1:/May/2015:10:05:03 +0000",
        "31/Dec/1969:23:59:59 +0000",
        "2015-05-17T10:05:03Z",
        "",
    ] {
        assert_eq!(parse_timestamp(time), None, "{time}");
    }
}

#[test]
fn malformed_line_error_names_malformed_field() {
    let fails = |text: &str| parse(text).unwrap_err();
    assert_eq!(fails(""), LineError::Start);
    assert_eq!(
        fails(&format!(" - - [{LOG_TIMESTAMP}] \"GET / HTTP/1.1\" 200 1")),
        LineError::Start
    );
    assert_eq!(fails("1.1.1.1 - - [yesterday] \"GET / HTTP/1.1\" 200 1"), LineError::Time);
    assert_eq!(fails(&format!("1.1.1.1 - - [{LOG_TIMESTAMP}] \"GET / HT")), LineError::Quote);
    assert_eq!(fails(&format!("1.1.1.1 - - [{LOG_TIMESTAMP}] \"GET /\"")), LineError::Status);
    assert_eq!(
        fails(&format!("1.1.1.1 - - [{LOG_TIMESTAMP}] \"GET /\" 2000 1")),
        LineError::Status
    );
}

proptest! {
    #[test]
    fn parsing_arbitrary_bytes_causes_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&String::from_utf8_lossy(&bytes));
    }

    /// Parses a valid line with a few changed characters, so that every part of the parser is reached. Random bytes
    /// rarely get past the IP address.
    #[test]
    fn parsing_malformed_line_causes_no_panic(
        at in 0..200usize,
        cut in 0..4usize,
        put in "[é\"\\\\ \\[\\]0-9:/+-]{0,4}",
    ) {
        let good = format_log_line("GET http://e.org/a?b HTTP/1.1") + r#" "a\\" "say \"hi\" \\""#;
        let at = at.min(good.len());
        let rest = &good[(at + cut).min(good.len())..];
        let _ = parse(&format!("{}{put}{rest}", &good[..at]));
    }
}
