use super::*;
use crate::cli::tools::convert::notes_line;

/// Converts a file. Returns the rules without the lines above them, and the notes without their file.
fn convert_text(text: &str) -> (String, Vec<String>) {
    let files = [FileText { path: "nginx.conf".into(), text: text.into() }];
    let policy = convert(&files).unwrap();
    let (comments, rules) = policy.text.split_once("rules:\n").unwrap();
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
fn limits_of_default_server_exclude_other_hosts() {
    let (rules, notes) = convert_text(
        "limit_req_zone $remote_addr zone=one:1m rate=1r/s;
        server { server_name a.example .b.example; location /api/ { limit_req zone=one burst=3 delay=1; } }
        server { server_name c.example; }",
    );
    assert_eq!(
        rules,
        "  - name: one
    when: {host: {not: c.example}, path: /api/*}
    per: [ip]
    limits: [{max: 1, window: 1s, algorithm: token_bucket, burst: 4}]
"
    );
    assert_eq!(
        notes,
        ["2:69: nginx delays requests of the burst of `one`; slidegate admits all 3 at once"]
    );
}

/// Two zones that count by address.
const TWO_ZONES: &str = "limit_req_zone $remote_addr zone=one:1m rate=1r/s;
limit_req_zone $remote_addr zone=two:1m rate=2r/s;
";

/// Returns the text of a rule by address, for a zone without a burst. `when` is empty for a rule without conditions.
fn rule(name: &str, when: &str, max: u64) -> String {
    let when = if when.is_empty() { String::new() } else { format!("    when: {when}\n") };
    format!(
        "  - name: {name}\n{when}    per: [ip]\n    limits: [{{max: {max}, window: 1s, algorithm: token_bucket, burst: 1}}]\n"
    )
}

/// Returns the text of the overrides of a rule.
fn overrides(lines: &[&str]) -> String {
    let lines = lines.iter().map(|line| format!("      - {{{line}}}\n"));
    format!("    overrides:\n{}", lines.collect::<String>())
}

#[test]
fn default_server_limits_every_unknown_host() {
    let (rules, notes) = convert_text(&format!(
        "{TWO_ZONES}server {{ server_name A.example; limit_req zone=one; }}
server {{ listen 80 default_server; server_name b.example; limit_req zone=two; }}
server {{ listen *:80; server_name _; limit_req zone=one; }}
server {{ listen 0.0.0.0:443 ssl; server_name c.example; limit_req zone=two; }}
server {{ listen 80; server_name c.example; return 301 https://$host; }}"
    ));
    let expected =
        [rule("one", "{host: a.example}", 1), rule("two", "{host: {not: a.example}}", 2)];
    assert_eq!(rules, expected.concat());
    assert_eq!(
        notes,
        [
            "5:1: the limits of this server were not converted: it has no name and is not a default server, so nginx selects it only for requests without a host",
            "6:1: this server is the default of an address where no server is named a.example: nginx applies its limits there; the policy applies only the limits of the servers with these names; to be stricter, remove the names from `not`",
        ]
    );
}

#[test]
fn several_default_servers_with_different_limits_are_noted() {
    let (rules, notes) = convert_text(&format!(
        "{TWO_ZONES}server {{ listen 80; return 301 https://$host; }}
server {{ listen 443; listen [::]:443; server_name a.example; limit_req zone=one; }}
server {{ listen 443; server_name b.example c.example; limit_req zone=two; }}
server {{ listen [::]:443; server_name b.example c.example; limit_req zone=two; }}
server {{ listen 8443; server_name a.example b.example c.example; limit_req zone=two; }}"
    ));
    let expected = [rule("one", "{host: {not: [b.example, c.example]}}", 1), rule("two", "", 2)];
    assert_eq!(rules, expected.concat());
    assert_eq!(
        notes,
        [
            "7:1: the default servers of several addresses have different limits: nginx applies the limits of one of them to a request for an unknown host; the policy applies the limits of all of them, which is stricter"
        ]
    );
}

#[test]
fn more_specific_names_of_other_servers_are_excluded() {
    let (rules, _) = convert_text(&format!(
        "{TWO_ZONES}server {{ server_name x.example; }}
server {{ server_name *.b.example; limit_req zone=one; location = /a {{ limit_req zone=two; }} }}
server {{ server_name api.b.example www.*; limit_req zone=two; }}"
    ));
    let expected = [
        rule("one", "{host: \"*.b.example\"}", 1),
        overrides(&[
            r#"when: {host: api.b.example}, mode: "off""#,
            r#"when: {path: /a}, mode: "off""#,
        ]),
        rule("two", "{host: \"*.b.example\", path: /a}", 2),
        overrides(&[r#"when: {host: api.b.example}, mode: "off""#]),
        rule("two-2", "{host: [api.b.example, www.*]}", 2),
        overrides(&[
            "when: {host: api.b.example}, mode: enforce",
            r#"when: {host: "*.b.example"}, mode: "off""#,
        ]),
    ];
    assert_eq!(rules, expected.concat());
}

#[test]
fn name_of_default_server_within_a_pattern_is_limited() {
    let (rules, _) = convert_text(&format!(
        "{TWO_ZONES}server {{ server_name api.b.example; limit_req zone=one; location /a {{ limit_req zone=two; }} }}
server {{ server_name .b.example; location / {{ limit_req zone=two; }} }}"
    ));
    let expected = [
        rule("one", "", 1),
        overrides(&[
            r#"when: {host: api.b.example, path: /a*}, mode: "off""#,
            "when: {host: api.b.example}, mode: enforce",
            r#"when: {host: [b.example, "*.b.example"]}, mode: "off""#,
            r#"when: {path: /a*}, mode: "off""#,
        ]),
    ];
    assert!(rules.starts_with(&expected.concat()), "{rules}");
}

#[test]
fn limit_of_http_is_not_inherited_by_place_with_limits() {
    let (rules, _) = convert_text(&format!(
        "http {{ {TWO_ZONES} limit_req zone=one; server {{ server_name a.example; limit_req zone=two; }} }}"
    ));
    assert_eq!(rules, rule("two", "", 2));
}

#[test]
fn included_file_without_location_belongs_to_http() {
    let (rules, _) = convert_text(&format!(
        "{TWO_ZONES}limit_req zone=one;
# configuration file a:
server {{ server_name a.example; location /x {{ limit_req zone=two; }} }}
# configuration file b:
limit_req zone=two; location /y/ {{ }}"
    ));
    let expected = [
        rule("one", "", 1),
        overrides(&[r#"when: {path: /x*}, mode: "off""#]),
        rule("two", "{path: /x*}", 2),
        rule("two-2", "", 2),
    ];
    assert_eq!(rules, expected.concat());
}

#[test]
fn servers_of_included_files_come_before_servers_below_include() {
    let (rules, _) = convert_text(&format!(
        "{TWO_ZONES}http {{ include conf.d/*.conf; server {{ server_name b.example; limit_req zone=two; }} }}
# configuration file conf.d/a.conf:
server {{ server_name a.example; limit_req zone=one; }}"
    ));
    let expected =
        [rule("one", "{host: {not: b.example}}", 1), rule("two", "{host: b.example}", 2)];
    assert_eq!(rules, expected.concat());
}

#[test]
fn empty_results_of_map_and_geo_become_conditions() {
    let (rules, notes) = convert_text(
        "geo $limit { default 1; 10.0.0.0/8 0; 192.168.0.0/24 0; 10.1.0.0/16 0; 192.0.0.0/8 1; }
        map $limit $limit_key { 0 ''; 1 $binary_remote_addr; }
        limit_req_zone $limit_key zone=a:1m rate=1r/s;
        map $http_x_api_key $api_key { default $remote_addr; \"secret\" \"\"; 17 ''; }
        limit_req_zone $api_key zone=b:1m rate=1r/s;
        map $request_method $posts { default ''; put $remote_addr; POST $remote_addr; GET ''; }
        limit_req_zone ${posts} zone=c:1m rate=1r/s;
        map $http_x_user $anonymous { '' $remote_addr; }
        limit_req_zone $anonymous zone=d:1m rate=1r/s;
        map $uri $no_health { default $remote_addr; /api/health ''; /health ''; }
        limit_req_zone $no_health zone=e:1m rate=1r/s;
        limit_req_zone $binary_remote_addr$host zone=f:1m rate=1r/s;
        server {
            limit_req zone=a; limit_req zone=b; limit_req zone=c; limit_req zone=d; limit_req zone=f;
            location /api/ { limit_req zone=e; }
        }",
    );
    let off = overrides(&[r#"when: {path: /api/*}, mode: "off""#]);
    let expected = [
        rule("a", "{ip: {not: [10.0.0.0/8, 192.168.0.0/24, 10.1.0.0/16]}}", 1),
        off.clone(),
        rule("b", "{header.x-api-key: {not: [secret, \"17\"]}}", 1),
        off.clone(),
        rule("c", "{method: [PUT, POST]}", 1),
        off.clone(),
        rule("d", "{header.x-user: {not: \"*\"}}", 1),
        off.clone(),
        rule("e", "{path: /api/*}", 1),
        overrides(&[r#"when: {path: /api/health}, mode: "off""#]),
        rule("f", "", 1).replace("[ip]", "[ip, host]"),
        off,
    ];
    assert_eq!(rules, expected.concat());
    assert_eq!(
        notes,
        [
            "5:9: the zone `b` depends on values of header.x-api-key: nginx ignores their case, and the policy does not",
            "11:9: the zone `e` depends on values of path: nginx ignores their case, and the policy does not",
        ]
    );
}

#[test]
fn map_and_geo_that_are_not_converted_have_a_remedy() {
    let (_, notes) = convert_text(
        "geo $g { default 1; 10.0.0.0/8 0; 10.1.0.0/16 1; }
        map $g $nested { 0 ''; default $remote_addr; }
        geo $r { ranges; default 1; }
        map $r $ranged { 0 ''; default $remote_addr; }
        map $http_a $pattern { default $host; ~^x ''; }
        map $http_a $two { default $host; x $uri; }
        map $http_a $empty { x ''; }
        limit_req_zone $nested zone=a:1m rate=1r/s;
        limit_req_zone $ranged zone=b:1m rate=1r/s;
        limit_req_zone $pattern zone=c:1m rate=1r/s;
        limit_req_zone $two zone=d:1m rate=1r/s;
        limit_req_zone $empty zone=e:1m rate=1r/s;
        limit_req_zone $g zone=f:1m rate=1r/s;
        limit_req_zone $uri zone=z:1m rate=1r/s;
        server { limit_req zone=z burst=1; }",
    );
    let by_address =
        "write the exempt networks as a condition of the rule, `when: { ip: { not: [...] } }`";
    let expected = [
        format!("8:9: the zone `a` was not converted: the `map` of its key `$nested`: a list of networks cannot except 10.1.0.0/16 from 10.0.0.0/8; {by_address}"),
        format!("9:9: the zone `b` was not converted: the `map` of its key `$ranged`: the `geo` of `$r`: `ranges` cannot be converted; {by_address}"),
        "10:9: the zone `c` was not converted: the `map` of its key `$pattern`: `~^x` cannot be converted; send `$pattern` in a header, and count by this header".to_owned(),
        "11:9: the zone `d` was not converted: the `map` of its key `$two`: it has two keys, `$uri` and `$host`; send `$two` in a header, and count by this header".to_owned(),
        "12:9: the zone `e` was not converted: the `map` of its key `$empty`: all of its results are empty; send `$empty` in a header, and count by this header".to_owned(),
        format!("13:9: the zone `f` was not converted: its key `$g` is the value of a `geo`; {by_address}"),
        "15:18: nginx delays the request of the burst of `z`; slidegate admits it at once".to_owned(),
    ];
    assert_eq!(notes, expected);
}

#[test]
fn limits_of_internal_locations_have_notes() {
    let (rules, notes) = convert_text(&format!(
        "{TWO_ZONES}server {{
            location /login {{ limit_req zone=one; }}
            location @app {{ limit_req zone=two; }}
            location /errors/ {{ internal; limit_req zone=two; }}
            location @static {{ root /srv; }}
        }}"
    ));
    assert_eq!(rules, rule("one", "{path: /login*}", 1));
    let message = |location| {
        format!(
            "the limits of `location {location}` were not converted: requests reach it only after another location; add the limits there"
        )
    };
    for location in ["@app", "/errors/"] {
        assert!(notes.iter().any(|note| note.ends_with(&message(location))), "{notes:?}");
    }
    assert!(notes.iter().all(|note| !note.contains("@static")), "{notes:?}");
}

#[test]
fn dumped_file_that_location_includes_has_note() {
    let (_, notes) = convert_text(&format!(
        "# configuration file /etc/nginx/nginx.conf:
{TWO_ZONES}server {{ limit_req zone=two; location /login {{ include snippets/*.conf; }} include other.conf; }}
# configuration file /etc/nginx/snippets/strict.conf:
limit_req zone=one;
# configuration file /etc/nginx/other.conf:
gzip on;"
    ));
    let message = "the limits of `include snippets/*.conf` were converted as if it were in `http`: copy the included lines here, and convert again";
    assert_eq!(notes.iter().filter(|note| note.contains("include")).count(), 1, "{notes:?}");
    assert!(notes.iter().any(|note| note.ends_with(message)), "{notes:?}");
}

#[test]
fn empty_value_of_map_of_host_is_ignored() {
    let (rules, notes) = convert_text(
        "map $host $named { '' ''; default $remote_addr; }
        limit_req_zone $named zone=a:1m rate=1r/s;
        map $host $unnamed { '' $remote_addr; }
        limit_req_zone $unnamed zone=b:1m rate=1r/s;
        server { server_name one.example; limit_req zone=a; limit_req zone=b; }",
    );
    assert_eq!(rules, rule("a", "", 1));
    let unnamed = "4:9: the zone `b` was not converted: the `map` of its key `$unnamed`: `$host` is never empty; send `$unnamed` in a header, and count by this header";
    assert_eq!(notes[0], unnamed);
}

#[test]
fn limit_of_http_applies_to_servers_in_other_files() {
    let http = "http { limit_req_zone $server_name zone=one:1m rate=5r/m; limit_req zone=one; }";
    let server = "server { location /x { } } server { location = /y { limit_req_dry_run on; } }";
    let text =
        format!("# configuration file nginx.conf:\n{http}\n# configuration file b:\n{server}");
    let (rules, notes) = convert_text(&text);
    let expected = "  - name: one
    per: [host]
    limits: [{max: 5, window: 1m, algorithm: token_bucket, burst: 1}]
";
    assert!(rules.starts_with(expected), "{rules}");
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("counts by `$server_name`, which nginx sets"), "{notes:?}");
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

#[test]
fn number_of_notes_is_one_line() {
    assert_eq!(notes_line(0), "");
    assert_eq!(notes_line(1), "1 note: read it in the comments at the top of the policy\n");
    assert_eq!(notes_line(3), "3 notes: read them in the comments at the top of the policy\n");
}
