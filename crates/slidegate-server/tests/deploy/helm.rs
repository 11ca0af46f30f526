//! Tests of the Helm chart in `deploy/helm`: its values, its messages, and the objects that helm renders. The modules
//! `kubernetes…` test the relations between the objects, and the server with the settings of a pod.
//!
//! The variants of the chart have their values in `deploy/helm/ci` and their rendered objects in the folder `helm` next
//! to this file. `UPDATE_SNAPSHOTS=1` writes the rendered objects again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

use imara_diff::{Algorithm, BasicLineDiffPrinter, Diff, InternedInput, UnifiedDiffConfig};
use serde_json::Value;

use crate::common::TempFile;
use crate::common::project_path;
use crate::deploy::{read_project_file, read_project_yaml, run_command, venv_command};

const CHART_FOLDER: &str = "deploy/helm";

/// All variants of the chart.
pub const VARIANTS: [&str; 5] = ["cluster", "cluster-tls", "envoy", "memory", "redis"];

/// Kubernetes versions whose schemas check the objects: the first version that supports `preStop.sleep`, and the latest
/// version with installed schemas.
pub const KUBERNETES_VERSIONS: [&str; 2] = ["1.30", "1.37"];

/// The groups of objects that no schema of Kubernetes describes.
const GROUPS_OF_OTHER_PROGRAMS: [&str; 2] = ["cert-manager.io/v1", "monitoring.coreos.com/v1"];

fn values_path(variant: &str) -> PathBuf {
    project_path(format!("{CHART_FOLDER}/ci/{variant}-values.yaml"))
}

/// Returns the command that renders a release with the name `slidegate`.
fn helm_template() -> Command {
    let mut command = venv_command("helm");
    command.args(["template", "slidegate"]).arg(project_path(CHART_FOLDER));
    command
}

/// Renders a variant as YAML documents.
fn render_variant(variant: &str) -> String {
    run_command(helm_template().arg("--values").arg(values_path(variant)))
}

/// Renders a variant as a list of Kubernetes objects.
pub fn render_objects(variant: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&render_variant(variant)).unwrap()
}

/// Renders a variant with one changed value, given as `PATH=JSON`.
pub fn render_objects_with(variant: &str, value: &str) -> Vec<Value> {
    let mut command = helm_template();
    command.arg("--values").arg(values_path(variant)).args(["--set-json", value]);
    serde_saphyr::from_multiple(&run_command(&mut command)).unwrap()
}

/// Renders the chart with wrong values, given as arguments of helm, and returns the message.
fn render_error(arguments: &[&str]) -> String {
    let output = helm_template().args(arguments).output().unwrap();
    assert!(!output.status.success(), "{arguments:?} are accepted");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn helm_lint_accepts_every_variant() {
    for variant in VARIANTS {
        let mut lint = venv_command("helm");
        lint.args(["lint", "--strict", "--values"]).arg(values_path(variant));
        run_command(lint.arg(project_path(CHART_FOLDER)));
    }
}

#[test]
fn every_variant_has_values_and_snapshot() {
    for (folder, suffix) in
        [("deploy/helm/ci", "-values.yaml"), ("crates/slidegate-server/tests/deploy/helm", ".yaml")]
    {
        let files = fs::read_dir(project_path(folder)).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut variants: Vec<String> =
            names.map(|name| name.strip_suffix(suffix).unwrap().to_owned()).collect();
        variants.sort();
        assert_eq!(variants, VARIANTS, "{folder}");
    }
}

#[test]
fn kubernetes_schemas_accept_every_variant() {
    let files = VARIANTS.map(|variant| TempFile::new(".yaml", render_variant(variant)));
    for version in KUBERNETES_VERSIONS {
        let mut validate = venv_command("kubernetes-validate");
        validate.args(["--strict", "-k", version]).args(files.iter().map(TempFile::path));
        let output = run_command(&mut validate);
        assert!(output.contains("passed for resource deployment/slidegate"), "{output}");
        for line in output.lines().filter(|line| !line.contains("passed for resource")) {
            assert!(GROUPS_OF_OTHER_PROGRAMS.iter().any(|group| line.contains(group)), "{line}");
        }
    }
}

#[test]
fn rendered_variants_match_snapshots() {
    for variant in VARIANTS {
        let path = format!("crates/slidegate-server/tests/deploy/helm/{variant}.yaml");
        let rendered = render_variant(variant);
        if env::var_os("UPDATE_SNAPSHOTS").is_some() {
            fs::write(project_path(&path), &rendered).unwrap();
        }
        let snapshot = read_project_file(&path);
        let lines = InternedInput::new(&*snapshot, &*rendered);
        let difference = Diff::compute(Algorithm::Histogram, &lines);
        let printer = BasicLineDiffPrinter(&lines.interner);
        assert!(
            snapshot == rendered,
            "{path} differs:\n{}\nIf this is intended, run the test with UPDATE_SNAPSHOTS=1",
            difference.unified_diff(&printer, UnifiedDiffConfig::default(), &lines)
        );
    }
}

#[test]
fn wrong_value_fails_with_message_of_schema() {
    for (wrong, message) in [
        ("store=memcached", "at '/store': value must be one of 'memory', 'redis', 'cluster'"),
        ("replicaCount=two", "at '/replicaCount': got string, want integer"),
        ("replicaCout=2", "at '': additional properties 'replicaCout' not allowed"),
        ("redis.url=redis://redis", "at '/redis': additional properties 'url' not allowed"),
        (
            "redis.existingSecret=My_Secret",
            "at '/redis/existingSecret': 'My_Secret' does not match",
        ),
        ("settings.maxWait=5s", "at '/settings': additional properties 'maxWait' not allowed"),
        ("settings.max-kyes=5", "at '/settings': additional properties 'max-kyes' not allowed"),
        (
            "settings.log-format=xml",
            "at '/settings/log-format': value must be one of 'text', 'json'",
        ),
        (
            "envoy.ratelimitConfig.shop=",
            "at '/envoy/ratelimitConfig': additional properties 'shop'",
        ),
        ("podDisruptionBudget.maxUnavailable=half", "'half' does not match pattern '^[0-9]+%$'"),
        ("service.type=ExternalName", "at '/service/type': value must be one of 'ClusterIP'"),
    ] {
        let error = render_error(&["--set", wrong]);
        assert!(error.contains(message), "{wrong}: {error}");
    }
}

#[test]
fn values_that_exclude_each_other_fail_with_remedy() {
    for (wrong, message) in [
        (
            "replicaCount=2",
            "store: with `memory`, each of several pods allows the whole limit; set",
        ),
        ("autoscaling.enabled=true", "store: with `memory`, each of several pods allows"),
        (
            "store=redis",
            "redis.existingSecret: the store redis needs a secret with the field `url`;",
        ),
        (
            "store=cluster",
            "cluster.existingSecret: the store cluster needs a secret with the field",
        ),
        (
            "store=cluster,cluster.certManager.enabled=true",
            "cluster.existingSecret: the store cluster needs a secret with the field",
        ),
        ("settings.store=redis://redis", "settings.store: the chart sets this flag; use"),
        ("settings.token-key=secret", "settings.token-key: the chart sets this flag; use"),
        ("settings.cluster-key=secret", "settings.cluster-key: the chart sets this flag; use"),
        ("settings.http=0.0.0.0:9090", "settings.http: the chart sets this flag; use"),
        (
            "settings.token-key-file=/key,tokens.existingSecret=tokens",
            "settings.token-key-file: tokens.existingSecret sets the key, too; remove",
        ),
    ] {
        let error = render_error(&["--set", wrong]);
        assert!(error.contains(message), "{wrong}: {error}");
    }
}

#[test]
fn chart_has_versions_of_program_and_kubernetes() {
    let chart = read_project_yaml("deploy/helm/Chart.yaml");
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["kubeVersion"], format!(">={}.0-0", KUBERNETES_VERSIONS[0]));
}

/// Returns the comment above each value in `values.yaml`, by the path of the value, such as `image.tag`.
fn comments_of_values(yaml: &str) -> BTreeMap<String, String> {
    let (mut comments, mut comment) = (BTreeMap::new(), Vec::new());
    let mut path: Vec<(usize, &str)> = Vec::new();
    // The indentation of a value whose lines are a text.
    let mut text_indent = None;
    for line in yaml.lines() {
        let content = line.trim_start();
        let indent = line.len() - content.len();
        if text_indent.is_some_and(|text| content.is_empty() || indent > text) {
            continue;
        }
        text_indent = None;
        if let Some(part) = content.strip_prefix("# ") {
            comment.push(part);
        } else if let Some((name, value)) = content.split_once(':') {
            path.retain(|(outer, _)| *outer < indent);
            path.push((indent, name));
            let names: Vec<&str> = path.iter().map(|(_, name)| *name).collect();
            if !comment.is_empty() {
                comments.insert(names.join("."), comment.join(" "));
            }
            comment.clear();
            text_indent = (value.trim() == "|").then_some(indent);
        }
    }
    comments
}

/// Collects the description of each value in a schema by the path of the value. Groups of values must have a
/// description and reject unknown names.
fn collect_descriptions(schema: &Value, path: &str, descriptions: &mut BTreeMap<String, String>) {
    let Some(values) = schema["properties"].as_object() else { return };
    assert_eq!(schema["additionalProperties"], false, "`{path}` accepts unknown names");
    for (name, value) in values {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let description = value["description"].as_str();
        let description = description.unwrap_or_else(|| panic!("{path} has no description"));
        if value["properties"].is_null() || path == "settings" {
            descriptions.insert(path.clone(), description.to_owned());
        }
        collect_descriptions(value, &path, descriptions);
    }
}

#[test]
fn schema_describes_every_value_as_its_comment_does() {
    let schema = read_project_file("deploy/helm/values.schema.json");
    let mut descriptions = BTreeMap::new();
    collect_descriptions(&serde_json::from_str(&schema).unwrap(), "", &mut descriptions);
    // A chart that contains this chart sets `global`.
    descriptions.remove("global").unwrap();
    let comments = comments_of_values(&read_project_file("deploy/helm/values.yaml"));
    assert!(comments.len() > 40, "{comments:#?}");
    assert_eq!(descriptions, comments);
}

/// Returns all commands of a Markdown file that install the chart.
fn install_commands(page: &str) -> Vec<String> {
    let text = read_project_file(page).replace("\\\n", " ");
    let commands = text.lines().filter(|line| line.starts_with("helm install "));
    commands.map(str::to_owned).collect()
}

#[test]
fn documented_install_commands_render() {
    let mut seen = 0;
    for page in ["docs/how-to/deploy-on-kubernetes.md", "docs/how-to/run-three-nodes.md"] {
        for install in install_commands(page) {
            let words: Vec<&str> = install.split_whitespace().skip(2).collect();
            let mut template = venv_command("helm");
            template.current_dir(project_path("")).arg("template").args(&words);
            run_command(&mut template);
            seen += 1;
        }
    }
    assert!(seen >= 4, "{seen}");
}
