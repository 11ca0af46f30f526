//! Tests of `slidegate convert`, which converts configuration files of the Envoy rate limit reference server to a
//! policy, and of `serve --ratelimit-config`, which reads such files directly.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::common::{TempFile, slidegate_command};
use serde_json::{Value, json};
use slidegate::{Algorithm, Policy};

/// Returns the folder that contains configuration files of the Envoy reference server (`*.yaml`), and for each the
/// expected converted policy (`*.policy`).
fn conversion_test_files_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/convert/files")
}

/// Limits for a path and for an address, as a file of the Envoy reference server.
const CART_LIMITS: &str = "
domain: shop
descriptors:
- { key: path, value: /cart, rate_limit: { unit: minute, requests_per_unit: 2 } }
- { key: remote_address, rate_limit: { unit: second, requests_per_unit: 3 } }
- { key: tenant, rate_limit: { unit: second, requests_per_unit: 1 } }
";

fn run_slidegate(arguments: &[&str]) -> Output {
    slidegate_command()
        .current_dir(conversion_test_files_folder())
        .args(arguments)
        .output()
        .unwrap()
}

fn parse_utf8(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

/// Runs `slidegate` and returns its standard output. Panics if the program fails or writes to standard error.
#[track_caller]
fn run_slidegate_successfully(arguments: &[&str]) -> String {
    let output = run_slidegate(arguments);
    assert!(output.status.success(), "{}", parse_utf8(&output.stderr));
    assert_eq!(parse_utf8(&output.stderr), "");
    parse_utf8(&output.stdout).to_owned()
}

/// Runs `slidegate` and returns its standard error. Panics unless the program exits with `code` and prints no output.
#[track_caller]
fn run_slidegate_expecting_failure(arguments: &[&str], code: i32) -> String {
    let output = run_slidegate(arguments);
    assert_eq!(output.status.code(), Some(code), "{}", parse_utf8(&output.stderr));
    assert_eq!(parse_utf8(&output.stdout), "");
    parse_utf8(&output.stderr).to_owned()
}

#[test]
fn converted_files_match_expected_policies() {
    let files = ["addresses", "mail", "order", "quotas", "replaces"];
    for name in files {
        let policy = run_slidegate_successfully(&["convert", &format!("{name}.yaml")]);
        let expected =
            fs::read_to_string(conversion_test_files_folder().join(name).with_extension("policy"))
                .unwrap();
        assert_eq!(policy, expected, "{name}.yaml");
        Policy::from_yaml(&policy).unwrap();
    }
}

#[test]
fn files_in_folder_are_converted_in_file_name_order() {
    let folder_policy = run_slidegate_successfully(&["convert", "."]);
    let listed = run_slidegate_successfully(&[
        "convert",
        "./addresses.yaml",
        "./mail.yaml",
        "./order.yaml",
        "./quotas.yaml",
        "./replaces.yaml",
    ]);
    assert_eq!(folder_policy, listed);
    let policy = TempFile::new(".yaml", &folder_policy);
    let summary = run_slidegate_successfully(&["validate", policy.path().to_str().unwrap()]);
    let domains: Vec<&str> = summary.lines().filter(|line| line.starts_with("domain")).collect();
    assert_eq!(
        domains,
        [
            "domain `edge`",
            "domain `mail`",
            "domain `order`",
            "domain `quotas`",
            "domain `replaces`"
        ]
    );
}

#[test]
fn algorithm_flag_applies_to_converted_limits() {
    let convert = |algorithm: &str| {
        run_slidegate_successfully(&["convert", "--ratelimit-algorithm", algorithm, "mail.yaml"])
    };
    let log = convert("sliding_log");
    assert!(log.contains("algorithm: sliding_log,") && log.contains("limits: [3/1w]\n"), "{log}");
    let fixed = convert("fixed_window");
    assert!(fixed.contains("limits: [{max: 3, window: 1w, align: clock}]\n"), "{fixed}");
    for algorithm in Algorithm::ALL {
        let policy = Policy::from_yaml(&convert(algorithm.name())).unwrap();
        let limits: Vec<_> = policy.limits().map(|(_, limit)| *limit.limit()).collect();
        assert!(limits[..2].iter().all(|limit| limit.algorithm().name() == algorithm.name()));
    }
    let wrong = run_slidegate_expecting_failure(
        &["convert", "--ratelimit-algorithm", "leaky", "mail.yaml"],
        2,
    );
    assert!(wrong.contains("write one of sliding_log, "), "{wrong}");
}

#[test]
fn conversion_errors_have_locations_and_suppress_output() {
    let bad = TempFile::new(
        ".yaml",
        "domain: d\ndescriptors:\n- { kay: a }\n- { key: b, rate_limit: {} }\n",
    );
    let path = bad.path().to_str().unwrap();
    let wrong = run_slidegate_expecting_failure(&["convert", "mail.yaml", path], 1);
    let lines: Vec<&str> = wrong.lines().collect();
    assert_eq!(lines.len(), 3, "{wrong}");
    assert!(lines[0].starts_with(&format!("{path}:3:3: the descriptor has no `key`")), "{wrong}");
    assert!(lines[1].starts_with(&format!("{path}:3:5: unknown field `kay`")), "{wrong}");
    assert!(lines[2].starts_with(&format!("{path}:4:25: `unit` is missing")), "{wrong}");
    let twice = run_slidegate_expecting_failure(&["convert", "mail.yaml", "./mail.yaml"], 1);
    assert!(
        twice.starts_with("./mail.yaml:2:9: domain `mail` is already defined in mail.yaml"),
        "{twice}"
    );
    assert!(
        run_slidegate_expecting_failure(&["convert", "nowhere"], 1)
            .starts_with("nowhere: cannot be read: No such file")
    );
    assert!(
        run_slidegate_expecting_failure(&["convert", ".."], 1)
            .contains("the folder contains no *.yaml or *.yml file")
    );
    run_slidegate_expecting_failure(&["convert"], 2);
}

#[test]
fn validate_command_suggests_convert_command_for_ratelimit_files() {
    let hint =
        "mail.yaml: this looks like a file of the reference server; `slidegate convert mail.yaml`";
    assert!(run_slidegate_expecting_failure(&["validate", "mail.yaml"], 1).contains(hint));
    assert!(!run_slidegate_expecting_failure(&["validate", "nowhere"], 1).contains("convert"));
}

#[test]
fn explain_command_uses_converted_policy() {
    let file = TempFile::new(".yaml", CART_LIMITS);
    let config = file.path().to_str().unwrap();
    let request = ["--domain", "shop", "--descriptors", "path=/cart", "+", "remote_address=a"];
    let explain = |flags: &[&str]| {
        let source = ["explain", "--ratelimit-config", config];
        run_slidegate_successfully(&[&source, flags, &request].concat())
    };
    let explanation = explain(&[]);
    assert!(explanation.contains("2/1m sliding_window: fits, 0 of 2 used"), "{explanation}");
    let fixed = explain(&["--ratelimit-algorithm", "fixed_window"]);
    assert!(fixed.contains("3/1s fixed_window: fits, 0 of 3 used"), "{fixed}");
    let unknown =
        run_slidegate_expecting_failure(&["explain", "--ratelimit-config", config, "a=b"], 1);
    assert!(unknown.ends_with("; set --domain to one of `shop`\n"), "{unknown}");
    let none = run_slidegate_expecting_failure(&["explain", "a=b"], 2);
    assert!(none.contains("--policy FILE"), "{none}");
}

#[test]
fn replay_command_uses_converted_policy() {
    let file = TempFile::new(".yaml", CART_LIMITS);
    let line = |second: u32, path: &str| {
        format!(
            "192.0.2.7 - - [17/May/2026:10:05:{second:02} +0000] \"GET {path} HTTP/1.1\" 200 1\n"
        )
    };
    // The fourth request is denied by the limit of the path, the last one by the limit of the address.
    let log =
        [(1, "/cart"), (2, "/cart"), (3, "/x"), (4, "/cart")].map(|(at, path)| line(at, path));
    let log = log.concat() + &line(9, "/x").repeat(4);
    let log = TempFile::new(".log", log);
    let source = ["replay", "--ratelimit-config", file.path().to_str().unwrap()];
    let algorithm = ["--ratelimit-algorithm", "sliding_log"];
    let rest = ["--domain", "shop", "--json", log.path().to_str().unwrap()];
    let report = run_slidegate_successfully(&[&source[..], &algorithm, &rest].concat());
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["requests"], &report["denied"]), (&json!(8), &json!(2)), "{report}");
    let rules = report["rules"].as_array().unwrap().iter();
    let asked: Vec<_> = rules.map(|rule| (&rule["asked"], &rule["denied"])).take(2).collect();
    assert_eq!(asked, [(&json!(3), &json!(1)), (&json!(8), &json!(1))], "{report}");
}

#[test]
fn replay_without_matching_descriptors_prints_warning() {
    let log = TempFile::new(
        ".log",
        "192.0.2.7 - - [17/May/2026:10:05:03 +0000] \"GET /cart HTTP/1.1\" 200 1\n",
    );
    let log = log.path().to_str().unwrap();
    let output =
        run_slidegate(&["replay", "--ratelimit-config", "mail.yaml", "--domain", "mail", log]);
    let warning = parse_utf8(&output.stderr);
    assert!(warning.contains("the keys of a descriptor must be among method, path"), "{warning}");
}

#[test]
fn serve_command_accepts_exactly_one_policy_source() {
    let none = run_slidegate_expecting_failure(&["serve"], 2);
    assert!(none.contains("--policy <FILE>"), "{none}");
    let both =
        run_slidegate_expecting_failure(&["serve", "--policy", "a", "--ratelimit-config", "b"], 2);
    assert!(both.contains("remove one of them"), "{both}");
    let serve_in_image = |arguments: &[&str], variable: &str| {
        let mut command = slidegate_command();
        let output =
            command.env("SLIDEGATE_POLICY", "policy").env(variable, "files").args(arguments);
        parse_utf8(&output.output().unwrap().stderr).to_owned()
    };
    // An explicit --ratelimit-config takes precedence over the SLIDEGATE_POLICY that a container image sets.
    for arguments in [&["serve"][..], &["serve", "--ratelimit-config", "files"]] {
        let wrong = serve_in_image(arguments, "SLIDEGATE_RATELIMIT_CONFIG");
        assert!(wrong.starts_with("files: cannot be read"), "{wrong}");
    }
    let wrong = serve_in_image(&["serve", "--policy", "typed"], "SLIDEGATE_RATELIMIT_CONFIG");
    assert!(wrong.starts_with("typed: cannot be read"), "{wrong}");
    let wrong = run_slidegate_expecting_failure(&["serve", "--ratelimit-config", "nowhere"], 1);
    assert!(wrong.starts_with("nowhere: cannot be read"), "{wrong}");
}

#[test]
fn algorithm_of_reference_server_is_rejected_for_nginx() {
    let nginx =
        TempFile::new("nginx.conf", "limit_req_zone $uri zone=a:1m rate=1r/s; limit_req zone=a;");
    let path = nginx.path().to_str().unwrap();
    let arguments = ["convert", "--from", "nginx", path];
    assert!(run_slidegate_successfully(&arguments).contains("per: [path]"));
    let arguments = ["convert", "--from", "nginx", "--ratelimit-algorithm", "sliding_log", path];
    let error = run_slidegate_expecting_failure(&arguments, 1);
    assert!(error.contains("remove the flag"), "{error}");
}
