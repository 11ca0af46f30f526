//! Tests of the manifests in `deploy/kubernetes-cluster`, which patch the base manifests so that the pods form a
//! cluster.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicU8, Ordering};

use serde_json::{Map, Value, json};

use crate::common::{Server, TempFile, slidegate_command};
use crate::{
    array_elements, expect_string, project_path, read_project_file, read_project_yaml, run_command,
    venv_command,
};

const CLUSTER_OVERLAY_FOLDER: &str = "deploy/kubernetes-cluster";

fn read_overlay_manifest(name: &str) -> Value {
    read_project_yaml(&format!("{CLUSTER_OVERLAY_FOLDER}/{name}.yaml"))
}

/// Applies a strategic merge patch to a manifest as Kubernetes does. Maps are merged by field, and null removes a
/// field. Lists whose elements have names are merged by name, `$patch: delete` removes an element, and other lists are
/// replaced.
pub fn apply_kustomize_patch(manifest: &Value, patch: &Value) -> Value {
    match (manifest, patch) {
        (Value::Object(fields), Value::Object(changes)) => {
            let mut fields = fields.clone();
            for (name, change) in changes {
                let before = fields.get(name).unwrap_or(&Value::Null);
                let after = apply_kustomize_patch(before, change);
                fields.insert(name.clone(), after);
            }
            fields.retain(|_, value| !value.is_null());
            Value::Object(fields)
        }
        (_, Value::Object(_)) => apply_kustomize_patch(&Value::Object(Map::new()), patch),
        (_, Value::Array(changes)) if changes.iter().all(|change| change["name"].is_string()) => {
            let mut merged = array_elements(manifest).to_vec();
            let (removed, changes): (Vec<_>, Vec<_>) =
                changes.iter().partition(|change| change["$patch"] == "delete");
            merged.retain(|element| removed.iter().all(|other| other["name"] != element["name"]));
            for change in changes {
                let existing = merged.iter_mut().find(|element| element["name"] == change["name"]);
                match existing {
                    Some(element) => *element = apply_kustomize_patch(element, change),
                    None => merged.push(apply_kustomize_patch(&Value::Null, change)),
                }
            }
            Value::Array(merged)
        }
        _ => patch.clone(),
    }
}

pub fn read_patched_deployment() -> Value {
    apply_kustomize_patch(
        &read_project_yaml("deploy/kubernetes/deployment.yaml"),
        &read_overlay_manifest("deployment"),
    )
}

/// Returns the environment of the only container of a deployment.
pub fn container_environment(deployment: &Value) -> Vec<Value> {
    let [container] = array_elements(&deployment["spec"]["template"]["spec"]["containers"]) else {
        panic!("one container")
    };
    array_elements(&container["env"]).to_vec()
}

#[test]
fn kubernetes_schemas_accept_cluster_manifests() {
    let deployment = TempFile::new(".yaml", read_patched_deployment().to_string());
    for version in ["1.30", "1.37"] {
        let files = ["nodes", "network"]
            .map(|name| project_path(CLUSTER_OVERLAY_FOLDER).join(format!("{name}.yaml")));
        let mut validate = venv_command("kubernetes-validate");
        run_command(validate.args(["--strict", "-k", version]).args(files).arg(deployment.path()));
    }
}

#[test]
fn kustomization_lists_every_cluster_manifest() {
    let kustomization = read_overlay_manifest("kustomization");
    let mut listed: Vec<String> = array_elements(&kustomization["resources"])
        .iter()
        .map(|name| expect_string(name).to_owned())
        .collect();
    assert_eq!(listed.remove(0), "../kubernetes");
    listed.extend(
        array_elements(&kustomization["patches"])
            .iter()
            .map(|patch| expect_string(&patch["path"]).into()),
    );
    listed.push("kustomization.yaml".to_owned());
    listed.sort();
    let files = fs::read_dir(project_path(CLUSTER_OVERLAY_FOLDER)).unwrap();
    let mut files: Vec<String> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    assert_eq!(listed, files);
}

#[test]
fn only_slidegate_pods_reach_cluster_port() {
    let (deployment, service, policy) = (
        read_patched_deployment(),
        read_overlay_manifest("nodes"),
        read_overlay_manifest("network"),
    );
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&service["spec"]["selector"], labels);
    assert_eq!(&policy["spec"]["podSelector"]["matchLabels"], labels);
    let [rule] = array_elements(&policy["spec"]["ingress"]) else { panic!("one rule") };
    assert_eq!(rule["from"], json!([{ "podSelector": { "matchLabels": labels } }]));
    assert_eq!(service["spec"]["clusterIP"], "None");
    for ports in [&service["spec"]["ports"], &rule["ports"]] {
        let [port] = array_elements(ports) else { panic!("one port: {ports}") };
        assert_eq!((&port["port"], &port["protocol"]), (&json!(7946), &json!("TCP")));
    }
    let variables = container_environment(&deployment);
    let variable = |name: &str| variables.iter().find(|variable| variable["name"] == name).unwrap();
    assert_eq!(variable("SLIDEGATE_CLUSTER_LISTEN")["value"], "$(POD_IP):7946");
    let seeds = format!("{}:7946", expect_string(&service["metadata"]["name"]));
    assert_eq!(variable("SLIDEGATE_CLUSTER_SEEDS")["value"], *seeds);
    let position = |name: &str| variables.iter().position(|variable| variable["name"] == name);
    assert!(
        position("POD_IP") < position("SLIDEGATE_CLUSTER_LISTEN"),
        "a variable can only refer to earlier variables"
    );
    let key = &variable("SLIDEGATE_CLUSTER_KEY")["valueFrom"]["secretKeyRef"];
    let create = format!(
        "secret generic {} --from-literal={}=",
        expect_string(&key["name"]),
        expect_string(&key["key"])
    );
    assert!(read_project_file("docs/how-to/run-three-nodes.md").contains(&create), "{create}");
}

/// Starts a server with the environment that a running pod of a deployment would have, and returns the server and its
/// cluster status. The values in `known`, which Kubernetes or the test sets, replace the values in the manifest.
pub fn start_pod(deployment: &Value, known: &[(&str, String)]) -> (Server, String) {
    let policy = read_project_yaml("deploy/kubernetes/policy.yaml");
    let policy = TempFile::new(".yaml", expect_string(&policy["data"]["policy.yaml"]));
    let pod_ip = unused_pod_address();
    let mut environment = BTreeMap::from([
        ("SLIDEGATE_CLUSTER_NODE_NAME", POD_NAME.to_owned()),
        ("SLIDEGATE_POLICY", policy.path().display().to_string()),
        ("SLIDEGATE_HTTP", "127.0.0.1:0".to_owned()),
        ("SLIDEGATE_ADMIN", "127.0.0.1:0".to_owned()),
        ("SLIDEGATE_GRPC", "none".to_owned()),
        ("SLIDEGATE_LOG_FORMAT", "text".to_owned()),
        // The host name of the service resolves only inside Kubernetes.
        ("SLIDEGATE_CLUSTER_SEEDS", "localhost:7946".to_owned()),
    ]);
    environment.extend(known.iter().cloned());
    let variables = container_environment(deployment).into_iter().map(|variable| {
        let name = expect_string(&variable["name"]).to_owned();
        let value = variable["value"].as_str().unwrap_or_default();
        let value = value.replace("$(POD_IP)", &pod_ip);
        (name.clone(), environment.get(&*name).cloned().unwrap_or(value))
    });
    let server = Server::spawn(slidegate_command().envs(variables).arg("serve"));
    let url = format!("http://{}/v1/cluster", server.admin_address());
    let status = ureq::get(&url).call().unwrap().body_mut().read_to_string().unwrap();
    (server, status)
}

/// The name of a pod in tests.
pub const POD_NAME: &str = "slidegate-7d9c-x2b4p";

/// Returns a loopback address that no other test uses.
fn unused_pod_address() -> String {
    static NEXT_LAST_BYTE: AtomicU8 = AtomicU8::new(77);
    let last = NEXT_LAST_BYTE.fetch_add(1, Ordering::Relaxed);
    let [second, third] = std::process::id().to_be_bytes()[2..] else { panic!("four bytes") };
    format!("127.{}.{third}.{last}", second.max(1))
}

#[test]
fn server_with_pod_settings_runs_as_cluster_node() {
    let key = ("SLIDEGATE_CLUSTER_KEY", "as `openssl rand -hex 32` prints".to_owned());
    let (_server, status) = start_pod(&read_patched_deployment(), &[key]);
    assert!(status.contains(POD_NAME), "{status}");
}

#[test]
fn kustomize_patch_changes_only_listed_fields() {
    let manifest = json!({ "a": 1, "b": [{ "name": "x", "value": 1 }, { "name": "y" }], "c": [1] });
    let patch = json!({ "a": null, "b": [{ "name": "x", "value": null, "from": { "f": 2 } }, { "name": "z" }], "c": [2] });
    let removal = json!({ "b": [{ "name": "x", "$patch": "delete" }] });
    assert_eq!(apply_kustomize_patch(&manifest, &removal)["b"], json!([{ "name": "y" }]));
    let expected = json!({ "b": [{ "name": "x", "from": { "f": 2 } }, { "name": "y" }, { "name": "z" }], "c": [2] });
    assert_eq!(apply_kustomize_patch(&manifest, &patch), expected);
}
