use super::*;

/// Converts a file. Returns the rules without the lines above them, and the notes without their file.
fn convert_text(text: &str) -> (String, Vec<String>) {
    let files = [FileText { path: "nginx.conf".into(), text: text.into() }];
    let policy = convert(&files).unwrap();
    let (comments, rules) = policy.split_once("rules:\n").unwrap();
    let notes = comments.lines().filter_map(|line| line.strip_prefix("# - nginx.conf:"));
    (rules.to_owned(), notes.map(str::to_owned).collect())
}

#[test]
fn server_with_exempt_and_stricter_locations_is_converted() {
    let (rules, notes) = convert_text(
        r#"
        http {
            limit_req_zone $binary_remote_addr zone=addresses:10m rate=10r/s;
            limit_req_zone "$http_x_api_key$host" zone=keys:1m rate=30r/m;
            limit_req_status 429;
            server {
                server_name example.com;
                limit_req zone=addresses burst=20 nodelay;
                location / { proxy_pass http://service; }
                location /login { limit_req zone=keys; limit_req_status 403; }
                location /login/help/ { limit_req zone=addresses burst=20 nodelay; }
                location = /login/logo.png { limit_req_dry_run on; limit_req zone=addresses burst=5 nodelay; }
            }
        }"#,
    );
    assert_eq!(
        rules,
        r#"
  - name: addresses
    per: [ip]
    limits: [{max: 10, window: 1s, algorithm: token_bucket, burst: 21}]
    overrides:
      - {when: {path: /login/help/*}, mode: enforce}
      - {when: {path: /login*}, mode: "off"}
  - name: addresses-2
    when: {path: /login/logo.png}
    per: [ip]
    limits: [{max: 10, window: 1s, algorithm: token_bucket, burst: 6}]
    mode: observe
  - name: keys
    when: {path: /login*}
    per: [header.x-api-key, host]
    limits: [{max: 30, window: 1m, algorithm: token_bucket, burst: 1}]
    deny_status: 403
    overrides:
      - {when: {path: /login/logo.png}, mode: "off"}
      - {when: {path: /login/help/*}, mode: "off"}
"#
        .trim_start_matches('\n')
    );
    assert_eq!(notes.len(), 2, "{notes:?}");
}

#[test]
fn limits_of_one_server_of_several_have_its_hosts() {
    let (rules, notes) = convert_text(
        "limit_req_zone $remote_addr zone=one:1m rate=1r/s;
        server { server_name a.example .b.example; location /api/ { limit_req zone=one burst=3 delay=1; } }
        server { server_name c.example; }",
    );
    assert_eq!(
        rules,
        "  - name: one
    when: {host: [a.example, b.example, \"*.b.example\"], path: /api/*}
    per: [ip]
    limits: [{max: 1, window: 1s, algorithm: token_bucket, burst: 4}]
"
    );
    assert_eq!(
        notes,
        ["2:69: nginx delays requests of the burst of `one`; slidegate admits all 3 at once"]
    );
}

#[test]
fn limit_of_http_applies_to_servers_in_other_files() {
    let http = "http { limit_req_zone $server_name zone=one:1m rate=5r/m; limit_req zone=one; }";
    let server = "server { location /x { } } server { location = /y { limit_req_dry_run on; } }";
    let text =
        format!("# configuration file nginx.conf:\n{http}\n# configuration file b:\n{server}");
    let (rules, _) = convert_text(&text);
    let expected = "  - name: one
    per: [host]
    limits: [{max: 5, window: 1m, algorithm: token_bucket, burst: 1}]
";
    assert!(rules.starts_with(expected), "{rules}");
}

#[test]
fn what_is_not_converted_is_listed() {
    let (_, notes) = convert_text(
        "include sites/*;
        limit_req_zone $limited_key zone=mapped:1m rate=1r/s;
        limit_req_zone $uri zone=fast:1m rate=0r/s;
        limit_req_zone $uri zone=paths:1m rate=1r/s sync;
        server {
            server_name ~^www;
            limit_conn addresses 10;
            location ~ \\.php$ { limit_req zone=paths; }
            location / { limit_req zone=paths burst=x; limit_req zone=mapped; limit_req zone=other; }
        }",
    );
    assert_eq!(
        notes,
        [
            "1:1: `include sites/*` was not read: name its files too, or convert the output of `nginx -T`",
            "2:9: the zone `mapped` was not converted: slidegate has no attribute for `$limited_key`; send it in a header, and count by this header",
            "3:9: the zone `fast` was not converted: its `rate` is not like `10r/s` or `30r/m`",
            "4:9: the parameter `sync` was not converted",
            "6:13: the name `~^www` of a server was not converted",
            "7:13: `limit_conn` was not converted: slidegate does not learn from nginx when a request ends; keep it",
            "8:13: `location ~ \\.php$` was not converted: its requests have the limits of the other locations",
            "9:26: the parameter `burst=x` was not converted",
            "9:79: `limit_req` was not converted: no file defines its zone `other`",
        ]
    );
}

#[test]
fn files_without_limits_and_invalid_files_are_errors() {
    for (text, message) in [
        ("server { listen 80; }", "no limit was converted"),
        ("limit_req_zone $uri zone=a:1m rate=1r/s;", "no limit was converted"),
        ("server { limit_req zone=a; }", "no file defines its zone `a`"),
        ("server {", "nginx.conf: "),
        (&"a{".repeat(100_000), "nginx.conf: blocks are nested too deeply"),
    ] {
        let files = [FileText { path: "nginx.conf".into(), text: text.into() }];
        let error = convert(&files).unwrap_err();
        assert!(error.contains(message), "{error}");
    }
}
