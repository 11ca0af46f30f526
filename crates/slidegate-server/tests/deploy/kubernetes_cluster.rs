//! The manifests of a cluster, joined with those that they change.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Map, Value, json};

use crate::common::{Server, TempFile, slidegate};
use crate::{installed, list, project, read, run, text, yaml};

const FOLDER: &str = "deploy/kubernetes-cluster";

fn manifest(name: &str) -> Value {
    yaml(&format!("{FOLDER}/{name}.yaml"))
}

/// A manifest with what a patch changes of it, as Kubernetes joins them: maps by their fields, of which null takes one
/// away, and lists by the names of their elements.
fn patched(manifest: &Value, patch: &Value) -> Value {
    match (manifest, patch) {
        (Value::Object(fields), Value::Object(changes)) => {
            let mut fields = fields.clone();
            for (name, change) in changes {
                let before = fields.get(name).unwrap_or(&Value::Null);
                let after = patched(before, change);
                fields.insert(name.clone(), after);
            }
            fields.retain(|_, value| !value.is_null());
            Value::Object(fields)
        }
        (_, Value::Object(_)) => patched(&Value::Object(Map::new()), patch),
        (_, Value::Array(changes)) if changes.iter().all(|change| change["name"].is_string()) => {
            let mut elements = list(manifest).to_vec();
            for change in changes {
                let same = elements.iter_mut().find(|element| element["name"] == change["name"]);
                match same {
                    Some(element) => *element = patched(element, change),
                    None => elements.push(patched(&Value::Null, change)),
                }
            }
            Value::Array(elements)
        }
        _ => patch.clone(),
    }
}

fn deployment() -> Value {
    patched(&yaml("deploy/kubernetes/deployment.yaml"), &manifest("deployment"))
}

fn environment() -> Vec<Value> {
    let deployment = deployment();
    let [container] = list(&deployment["spec"]["template"]["spec"]["containers"]) else {
        panic!("one container")
    };
    list(&container["env"]).to_vec()
}

#[test]
fn kubernetes_accepts_the_manifests() {
    let whole = TempFile::new(".yaml", deployment().to_string());
    for version in ["1.30", "1.37"] {
        let files = ["nodes", "network"].map(|name| project(FOLDER).join(format!("{name}.yaml")));
        let mut validate = installed("kubernetes-validate");
        run(validate.args(["--strict", "-k", version]).args(files).arg(whole.path()));
    }
}

#[test]
fn the_list_has_every_manifest() {
    let kustomization = manifest("kustomization");
    let mut listed: Vec<String> =
        list(&kustomization["resources"]).iter().map(|name| text(name).to_owned()).collect();
    assert_eq!(listed.remove(0), "../kubernetes");
    listed.extend(list(&kustomization["patches"]).iter().map(|patch| text(&patch["path"]).into()));
    listed.push("kustomization.yaml".to_owned());
    listed.sort();
    let files = fs::read_dir(project(FOLDER)).unwrap();
    let mut files: Vec<String> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    assert_eq!(listed, files);
}

#[test]
fn pods_find_and_reach_each_other_and_nobody_else_gets_there() {
    let (deployment, service, policy) = (deployment(), manifest("nodes"), manifest("network"));
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&service["spec"]["selector"], labels);
    assert_eq!(&policy["spec"]["podSelector"]["matchLabels"], labels);
    let [open] = list(&policy["spec"]["ingress"]) else { panic!("one rule") };
    assert_eq!(open["from"], json!([{ "podSelector": { "matchLabels": labels } }]));
    assert_eq!(service["spec"]["clusterIP"], "None");
    let (ports, opened) = (list(&service["spec"]["ports"]), list(&open["ports"]));
    let both = |port: u64| [(port, "UDP"), (port, "TCP")];
    for ports in [ports, opened] {
        let ports =
            ports.iter().map(|port| (port["port"].as_u64().unwrap(), text(&port["protocol"])));
        assert_eq!(ports.collect::<Vec<_>>(), both(7946));
    }
    let variables = environment();
    let variable = |name: &str| variables.iter().find(|variable| variable["name"] == name).unwrap();
    assert_eq!(variable("SLIDEGATE_CLUSTER_LISTEN")["value"], "$(POD_IP):7946");
    let seeds = format!("{}:7946", text(&service["metadata"]["name"]));
    assert_eq!(variable("SLIDEGATE_CLUSTER_SEEDS")["value"], *seeds);
    let place = |name: &str| variables.iter().position(|variable| variable["name"] == name);
    assert!(place("POD_IP") < place("SLIDEGATE_CLUSTER_LISTEN"), "else it stands for nothing");
    let key = &variable("SLIDEGATE_CLUSTER_KEY")["valueFrom"]["secretKeyRef"];
    let create =
        format!("secret generic {} --from-literal={}=", text(&key["name"]), text(&key["key"]));
    assert!(read("docs/CLUSTER.md").contains(&create), "{create}");
}

/// The settings of a pod, with what is not known before it runs.
fn settings(known: &BTreeMap<&str, String>) -> Vec<(String, String)> {
    let settings = environment().into_iter().map(|variable| {
        let name = text(&variable["name"]).to_owned();
        let value = variable["value"].as_str().unwrap_or_default();
        let value = value.replace("$(POD_IP)", &known["POD_IP"]);
        (name.clone(), known.get(&*name).cloned().unwrap_or(value))
    });
    settings.collect()
}

#[test]
fn a_server_with_the_settings_of_a_pod_is_a_node() {
    let policy = yaml("deploy/kubernetes/policy.yaml");
    let policy = TempFile::new(".yaml", text(&policy["data"]["policy.yaml"]));
    let [second, third] = std::process::id().to_be_bytes()[2..] else { panic!("four bytes") };
    let known = BTreeMap::from([
        ("POD_IP", format!("127.{}.{third}.77", second.max(1))),
        ("SLIDEGATE_CLUSTER_NODE_NAME", "slidegate-7d9c-x2b4p".to_owned()),
        ("SLIDEGATE_CLUSTER_KEY", "as `openssl rand -hex 32` prints".to_owned()),
        ("SLIDEGATE_POLICY", policy.path().display().to_string()),
        ("SLIDEGATE_HTTP", "127.0.0.1:0".to_owned()),
        ("SLIDEGATE_ADMIN", "127.0.0.1:0".to_owned()),
        ("SLIDEGATE_GRPC", "none".to_owned()),
        ("SLIDEGATE_LOG_FORMAT", "text".to_owned()),
        // The name of the service is one of Kubernetes.
        ("SLIDEGATE_CLUSTER_SEEDS", "localhost:7946".to_owned()),
    ]);
    let server = Server::spawn(slidegate().envs(settings(&known)).arg("serve"));
    let url = format!("http://{}/v1/cluster", server.admin());
    let status = ureq::get(&url).call().unwrap().body_mut().read_to_string().unwrap();
    assert!(status.contains("slidegate-7d9c-x2b4p"), "{status}");
}

#[test]
fn patches_change_what_they_name() {
    let manifest = json!({ "a": 1, "b": [{ "name": "x", "value": 1 }, { "name": "y" }], "c": [1] });
    let patch = json!({ "a": null, "b": [{ "name": "x", "value": null, "from": { "f": 2 } }, { "name": "z" }], "c": [2] });
    let whole = json!({ "b": [{ "name": "x", "from": { "f": 2 } }, { "name": "y" }, { "name": "z" }], "c": [2] });
    assert_eq!(patched(&manifest, &patch), whole);
}
