//! Tests of the commands `slidegate validate`, `slidegate explain`, `slidegate schema` and
//! `slidegate lua`.

mod lua;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{TempFile, slidegate_command};
use serde_json::Value;

const POLICY: &str = r#"
routes: ["/users/{id}", /v1/search]
rules:
  - name: search
    when: { method: POST, route: /v1/search, ip: { not: [10.0.0.0/8] } }
    per: [api_key|ip]
    limits: [10/s, 600/min]
    algorithm: sliding_log
    overrides:
      - { name: live, when: { key_type: live }, limits: unlimited }
      - { when: { tenant: evil }, limits: denied, mode: enforce }
    mode: observe
    redis: { slot_by: [api_key|ip], sample: 50% }
    cluster: { max_unsynced: 50, on_partition: available }
  - name: tokens
    domain: llm
    per: [user]
    when_missing: deny
    limits:
      - { name: day, max: 1000, window: 1d, algorithm: sliding_buckets, precision: 1h }
      - { max: 5, window: 1m, algorithm: fixed_window, align: clock }
      - { max: 5, window: 1s, algorithm: token_bucket, burst: 8 }
    charge: always
    on_store_error: deny
    ipv6_prefix: 56
    redis: { split: { by: [model, route], into: 4 } }
    cluster: { on_partition: bounded }
"#;

fn run_slidegate(arguments: &[&str]) -> Output {
    slidegate_command().args(arguments).output().unwrap()
}

fn parse_utf8(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

/// Runs `slidegate` and returns its standard output. Panics if the program fails.
fn run_slidegate_successfully(arguments: &[&str]) -> String {
    let output = run_slidegate(arguments);
    assert!(output.status.success(), "{}", parse_utf8(&output.stderr));
    parse_utf8(&output.stdout).to_owned()
}

/// Runs `slidegate` and returns its standard error. Panics unless the program exits with `code`.
fn run_slidegate_expecting_failure(arguments: &[&str], code: i32) -> String {
    let output = run_slidegate(arguments);
    assert_eq!(output.status.code(), Some(code), "{}", parse_utf8(&output.stdout));
    parse_utf8(&output.stderr).to_owned()
}

/// Returns the paths of all files in a folder with this extension, sorted.
fn files_with_extension(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|e| e == extension)).collect();
    files.sort();
    files
}

/// The expected error messages of each broken `.yaml` policy are in the `.txt` file with the same name.
#[test]
fn broken_policies_have_expected_errors() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/validate/broken");
    let broken = files_with_extension(&folder, "yaml");
    assert_eq!(broken.len(), 30);
    for path in broken {
        let name = path.file_name().unwrap().to_str().unwrap();
        let output =
            slidegate_command().current_dir(&folder).args(["validate", name]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}");
        let expected = fs::read_to_string(path.with_extension("txt")).unwrap();
        assert_eq!(parse_utf8(&output.stderr), expected, "{name}");
        assert_eq!(parse_utf8(&output.stdout), "", "{name}");
    }
}

/// The expected warnings of each valid `.yaml` policy are in the `.txt` file with the same name.
#[test]
fn warned_policies_are_valid_with_expected_warnings() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/validate/warned");
    let warned = files_with_extension(&folder, "yaml");
    assert_eq!(warned.len(), 5);
    for path in warned {
        let name = path.file_name().unwrap().to_str().unwrap();
        let output =
            slidegate_command().current_dir(&folder).args(["validate", name]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{name}");
        let expected = fs::read_to_string(path.with_extension("txt")).unwrap();
        assert_eq!(parse_utf8(&output.stderr), expected, "{name}");
        assert!(parse_utf8(&output.stdout).starts_with(&format!("{name}: valid, ")), "{name}");
    }
}

#[test]
fn policy_warnings_are_printed_if_other_files_fail() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/validate");
    let output = slidegate_command()
        .current_dir(&folder)
        .args(["validate", "warned/02-routes.yaml", "broken/12-routes.yaml"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = parse_utf8(&output.stderr);
    assert!(stderr.starts_with("warned/02-routes.yaml:2:5: warning: `:id`"), "{stderr}");
    assert!(stderr.contains("\nbroken/12-routes.yaml:1:10: a route begins with `/`"), "{stderr}");
}

#[test]
fn validate_command_describes_valid_policy() {
    let file = TempFile::new(".yaml", POLICY);
    let path = file.path().to_str().unwrap();
    let expected = "\
: valid, 2 rules

domain `default`
  search
    for requests whose method is `POST`, and whose route is `/v1/search`, and whose ip is not `10.0.0.0/8`
    counted per api_key, or else ip; without it the rule does not apply
    never more than 10 in any 1s (10/1s sliding_log)
    never more than 600 in any 1m (600/1m sliding_log)
    only observes: never denies
    in Redis: hash slot by api_key|ip; one request in 2 is counted, at 2 times its cost
    in a cluster: a node allows at most 50 units per counter that are not yet replicated to all nodes; a node does not wait for silent nodes
    override `live`, if key_type is `live`: everything passes
    override 2, if tenant is `evil`: nothing passes
    at most 5.7 kB for each key in memory

domain `llm`
  tokens
    counted per user; without it requests are denied; IPv6 by /56
    never more than 1000 in any 1d (1000/1d sliding_buckets)
    5 in each 1m of the clock, up to twice that across two windows (5/1m fixed_window)
    8 at once, then 5 per 1s at a steady rate (5/1s token_bucket)
    denied requests are charged too, above max
    while the store is unavailable, no request passes
    in Redis: each counter is split into 4, by model and route
    at most 441 B for each key in memory
";
    assert_eq!(run_slidegate_successfully(&["validate", path]), format!("{path}{expected}"));
    assert_eq!(parse_utf8(&run_slidegate(&["validate", path]).stderr), "", "no warning");
}

#[test]
fn max_of_zero_with_burst_lets_nothing_pass() {
    let policy = "rules: [{ name: a, limits: [{ max: 0, window: 1s, algorithm: token_bucket, burst: 10 }] }]";
    let file = TempFile::new(".yaml", policy);
    let path = file.path().to_str().unwrap();
    let described = run_slidegate_successfully(&["validate", path]);
    assert!(described.contains("    nothing passes\n"), "{described}");
    let explained = run_slidegate_successfully(&["explain", "--policy", path, "ip=192.0.2.7"]);
    assert!(explained.contains("never allowed by this policy\n"), "{explained}");
}

#[test]
fn validate_command_prints_result_of_every_policy() {
    let (valid, invalid) = (TempFile::new(".yaml", POLICY), TempFile::new(".yaml", "rules: 5\n"));
    let (valid, invalid) = (valid.path().to_str().unwrap(), invalid.path().to_str().unwrap());
    let output = run_slidegate(&["validate", invalid, valid, "/nowhere.yaml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(parse_utf8(&output.stdout).starts_with(&format!("{valid}: valid, 2 rules")));
    let stderr = parse_utf8(&output.stderr);
    assert!(stderr.starts_with(&format!("{invalid}:1:8: expected a list, found `5`")));
    assert!(stderr.contains("/nowhere.yaml: cannot be read: "), "{stderr}");
}

#[test]
fn validate_command_accepts_policy_flag_and_variable() {
    let [first, second] = [(); 2].map(|()| TempFile::new(".yaml", POLICY));
    let [first, second] = [&first, &second].map(|file| file.path().to_str().unwrap());
    let validated = |arguments: &[&str], variable: &str| {
        let mut command = slidegate_command();
        command.arg("validate").args(arguments);
        if !variable.is_empty() {
            command.env("SLIDEGATE_POLICY", variable);
        }
        let output = command.output().unwrap();
        let lines = parse_utf8(&output.stdout).lines().map(str::to_owned);
        lines
            .filter_map(|line| Some(line.split_once(": valid, ")?.0.to_owned()))
            .collect::<Vec<_>>()
    };
    let expected = |files: &[&str]| -> Vec<String> { files.iter().map(|&f| f.into()).collect() };
    for (arguments, files) in [
        (&["--policy", first][..], &[first][..]),
        (&[first, "--policy", second], &[second, first]),
        (&["--policy", first, "--policy", second], &[first, second]),
    ] {
        assert_eq!(validated(arguments, ""), expected(files), "{arguments:?}");
        // The command line replaces the variable.
        assert_eq!(validated(arguments, "/nowhere.yaml"), expected(files), "{arguments:?}");
    }
    assert_eq!(validated(&[first], second), expected(&[first]));
    assert_eq!(validated(&[], first), expected(&[first]));
    run_slidegate_expecting_failure(&["validate"], 2);
}

#[test]
fn bash_completion_script_parses_and_contains_commands() {
    let script = run_slidegate_successfully(&["completions", "bash"]);
    assert!(script.contains("serve") && script.contains("--redis-timeout"), "{script}");
    let file = TempFile::new(".bash", script);
    let output = Command::new("bash").arg("-n").arg(file.path()).output().unwrap();
    assert!(output.status.success(), "{}", parse_utf8(&output.stderr));
}

#[test]
fn every_shell_has_completion_script() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(
            run_slidegate_successfully(&["completions", shell]).contains("validate"),
            "{shell}"
        );
    }
    assert!(run_slidegate_expecting_failure(&["completions", "tcsh"], 2).contains("bash, elvish"));
}

#[cfg(not(feature = "otlp"))]
#[test]
fn tracing_without_feature_fails_at_start() {
    let policy = TempFile::new(".yaml", POLICY);
    let policy = policy.path().to_str().unwrap();
    let listeners = ["--http", "127.0.0.1:0", "--grpc", "none", "--admin", "none"];
    let tracing = ["--otlp-endpoint", "http://127.0.0.1:4318"];
    let arguments = [&["serve", "--policy", policy][..], &listeners, &tracing].concat();
    let message = run_slidegate_expecting_failure(&arguments, 1);
    assert!(message.contains("compile it with `--features otlp`"), "{message}");
}

#[test]
fn man_writes_one_page_per_command() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("man");
    let output = run_slidegate_successfully(&["man", "--out", folder.to_str().unwrap()]);
    let page = |name: &str| fs::read_to_string(folder.join(name)).unwrap().replace('\\', "");
    assert!(page("slidegate.1").contains("slidegate-replay(1)"), "{output}");
    assert!(page("slidegate-serve.1").contains("--redis-timeout"), "{output}");
    assert!(output.lines().all(|path| Path::new(path).exists()), "{output}");
}

#[test]
fn short_help_has_one_line_per_flag() {
    for command in ["serve", "validate", "explain", "convert", "replay"] {
        let help = run_slidegate_successfully(&[command, "-h"]);
        let (_, options) = help.split_once("Options:\n").unwrap();
        for line in options.lines() {
            let is_flag = line.starts_with("  -") || line.starts_with("      --");
            let is_heading = !line.starts_with(' ') && line.ends_with(':');
            assert!(is_flag || is_heading || line.is_empty(), "{command}: {line}");
        }
    }
}

#[test]
fn explain_command_reports_every_rule() {
    let file = TempFile::new(".yaml", POLICY);
    let explain = |arguments: &[&str]| {
        let policy = ["explain", "--policy", file.path().to_str().unwrap()];
        run_slidegate_successfully(&[&policy, arguments].concat())
    };
    assert_eq!(
        explain(&["path=/v1/search?q=a=b", "method=POST", "ip=2001:db8::1"]),
        "\
path matches route `/v1/search`
search: applies
  override `live` not used: key_type is missing
  override 2 not used: tenant is missing
  search.1s: 10/1s sliding_log: fits, 0 of 10 used (observes only)
    counted as default:search:1s:{ip=(2001:db8::/64)}
  search.1m: 600/1m sliding_log: fits, 0 of 600 used (observes only)
    counted as default:search:1m:{ip=(2001:db8::/64)}
allowed: no enforced limit applies
"
    );
    assert_eq!(
        explain(&["route=/v1/search", "method=POST", "api_key=k", "tenant=evil"]),
        "\
search: applies, by override 2
  override `live` not used: key_type is missing
  search: nothing passes: does not fit, 0 of 0 used
    never allowed by this policy
    counted as default:search:denied:{api_key=k}
denied by search, permanently
"
    );
    assert_eq!(
        explain(&["route=/v1/search", "method=POST", "key_type=live"]),
        "search: applies, by override `live`: everything passes\nallowed: no enforced limit applies\n"
    );
    for (attributes, reason) in [
        (["path=/x", "method=GET"], "method is `GET`, and must be `POST`"),
        (["path=/x", "a=b"], "method is missing, and must be `POST`"),
        (
            ["route=/v1/search", "method=POST"],
            "attribute `api_key` or `ip`, listed in `per`, is missing",
        ),
    ] {
        let output = explain(&attributes);
        assert!(output.contains(&format!("search: does not apply: {reason}\n")), "{output}");
    }
    let inside = explain(&["route=/v1/search", "method=POST", "ip=10.1.2.3"]);
    assert!(inside.contains("ip is `10.1.2.3`, and must not be `10.0.0.0/8`"), "{inside}");
    let llm = explain(&["--domain", "llm", "--cost", "5000", "user=u"]);
    assert!(llm.contains("tokens.day: 1000/1d sliding_buckets: does not fit, 0 of 1000 used, charged always\n    never allowed at this cost: at most 1000 fit\n    counted"));
    assert!(
        explain(&["--domain", "llm"])
            .ends_with("counted as llm:tokens:missing:{}\ndenied by tokens, permanently\n")
    );
}

#[test]
fn explain_command_errors_name_cause() {
    let file = TempFile::new(".yaml", POLICY);
    let explain = |arguments: &[&str], code: i32| {
        run_slidegate_expecting_failure(
            &[&["explain", "--policy", file.path().to_str().unwrap()], arguments].concat(),
            code,
        )
    };
    assert!(
        explain(&["ip"], 2).contains("write an attribute as NAME=VALUE, for example ip=192.0.2.7")
    );
    assert!(
        explain(&["ip=a", "ip=b"], 1).starts_with("`ip` occurs twice; write each attribute once")
    );
    let upper_case = explain(&["header.X-Api-Key=k"], 1);
    assert!(upper_case.contains("did you mean `header.x-api-key`?"), "{upper_case}");
    let unknown = explain(&["--domain", "api", "ip=a"], 1);
    assert_eq!(
        unknown,
        "no rule has domain `api`, so no request is denied; set --domain to one of `default`, `llm`\n"
    );
    assert!(explain(&["--cost", "many"], 2).contains("invalid value 'many'"));
}

/// Parses a YAML policy into a JSON value without validation, as an editor does before it applies the schema.
fn parse_yaml(yaml: &str) -> Value {
    serde_saphyr::from_str(yaml).unwrap()
}

#[test]
fn schema_accepts_valid_and_rejects_invalid_policies() {
    let schema: Value = serde_json::from_str(&run_slidegate_successfully(&["schema"])).unwrap();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let schema = jsonschema::draft202012::new(&schema).unwrap();
    let assert_valid = |yaml: &str| {
        let errors: Vec<String> =
            schema.iter_errors(&parse_yaml(yaml)).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}");
    };
    assert_valid(POLICY);
    assert_valid(
        "rules: [{ name: a, limits: [{ max: 5, calendar: week, timezone: UTC, week_starts: sunday }] }]",
    );
    assert_valid("rules: [{ name: a, limits: [{ max: 5, calendar: month, starts: 15 }] }]");
    assert_valid("rules: [{ name: a, limits: [{ max: 5, calendar: day, starts: '06:00' }] }]");
    assert_valid(
        "{ normalize: { a: [trim], shop: { a: [lowercase] } }, rules: [{ name: a, per: [a], limits: [5/s] }] }",
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    for example in files_with_extension(&root, "yaml") {
        assert_valid(&fs::read_to_string(example).unwrap());
    }
    for invalid in [
        "rule: []",
        "{}",
        "rules: [{ name: a }]",
        "rules: [{ name: a, limits: 10/s }]",
        "rules: [{ name: a, limits: [ten/s] }]",
        "rules: [{ name: a, limits: [10/s], mode: obsrve }]",
        "rules: [{ name: a, limits: [10/s], mode: { enforce: 5 } }]",
        "rules: [{ name: a, limits: [{ max: 5 }] }]",
        "rules: [{ name: a, limits: [{ max: 5, window: 1d, calendar: day }] }]",
        "rules: [{ name: a, limits: [{ max: 5, calendar: monthly }] }]",
        "rules: [{ name: a, limits: [{ max: 5, calendar: week, week_starts: sun }] }]",
        "rules: [{ name: a, limits: [10/s], algorithm: leaky }]",
        "rules: [{ name: a, limits: [10/s], when: {} }]",
        "rules: [{ name: A, limits: [10/s] }]",
        "rules: [{ name: a, limits: [10/s], overrides: [{ limits: denied }] }]",
        "rules: [{ name: a, limits: [10/s], redis: {} }]",
        "rules: [{ name: a, limits: [10/s], redis: { slot_by: [] } }]",
        "rules: [{ name: a, limits: [10/s], redis: { split: { by: [a], into: 1 } } }]",
        "rules: [{ name: a, limits: [10/s], redis: { split: { into: 8 } } }]",
        "rules: [{ name: a, limits: [10/s], redis: { sample: 10 } }]",
        "rules: [{ name: a, limits: [10/s], cluster: {} }]",
        "rules: [{ name: a, limits: [10/s], cluster: { max_unsynced: 0 } }]",
        "rules: [{ name: a, limits: [10/s], cluster: { max_unsynced: 9007199254740992 } }]",
        "rules: [{ name: a, limits: [10/s], cluster: { on_partition: available, nodes: 3 } }]",
        "rules: [{ name: a, limits: [10/s], cluster: { on_partition: availabel } }]",
        "{ version: 2, rules: [] }",
        "{ normalize: { a: [case] }, rules: [] }",
        "{ normalize: { a: trim }, rules: [] }",
        "{ normalize: {}, rules: [] }",
    ] {
        assert!(!schema.is_valid(&parse_yaml(invalid)), "{invalid}");
    }
}
