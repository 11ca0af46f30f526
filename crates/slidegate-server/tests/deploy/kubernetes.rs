//! The Kubernetes manifests, checked against the schemas of Kubernetes, against each other, and against the server.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::common::{Server, TempFile, slidegate};
use crate::{elements, project, read_yaml, run_command, string, venv_program};

const FOLDER: &str = "deploy/kubernetes";

/// The first version of Kubernetes with `preStop.sleep`, and the latest version with installed schemas.
const VERSIONS: [&str; 2] = ["1.30", "1.37"];

fn manifest(name: &str) -> Value {
    read_yaml(&format!("{FOLDER}/{name}.yaml"))
}

/// Returns the file names of all manifests except `kustomization.yaml`.
fn manifests() -> BTreeSet<String> {
    let files = fs::read_dir(project(FOLDER)).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != "kustomization.yaml").collect()
}

fn pod() -> Value {
    manifest("deployment")["spec"]["template"].clone()
}

fn container() -> Value {
    let pod = pod();
    let [container] = elements(&pod["spec"]["containers"]) else { panic!("one container") };
    container.clone()
}

/// Returns the element of a list whose `name` field matches.
fn element_named<'v>(list: &'v Value, name: &str) -> &'v Value {
    let found = elements(list).iter().find(|element| element["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {list}"))
}

/// Returns the number of a container port, given its name.
fn port(name: &Value) -> u64 {
    element_named(&container()["ports"], string(name))["containerPort"].as_u64().unwrap()
}

#[test]
fn kubernetes_accepts_the_manifests() {
    for version in VERSIONS {
        let files = manifests().into_iter().map(|name| project(FOLDER).join(name));
        run_command(
            venv_program("kubernetes-validate").args(["--strict", "-k", version]).args(files),
        );
    }
}

#[test]
fn kustomization_lists_manifests_and_current_image() {
    let kustomization = manifest("kustomization");
    let listed: BTreeSet<String> =
        elements(&kustomization["resources"]).iter().map(|name| string(name).to_owned()).collect();
    assert_eq!(listed, manifests());
    let image = element_named(&kustomization["images"], string(&container()["image"]));
    assert_eq!(image["newTag"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn selectors_match_the_pod_labels() {
    let deployment = manifest("deployment");
    let labels = &pod()["metadata"]["labels"];
    for (manifest, selector) in [
        ("deployment", &deployment["spec"]["selector"]["matchLabels"]),
        ("service", &manifest("service")["spec"]["selector"]),
        ("disruption", &manifest("disruption")["spec"]["selector"]["matchLabels"]),
        ("network", &manifest("network")["spec"]["podSelector"]["matchLabels"]),
        ("spread", &pod()["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]),
    ] {
        assert!(selector.is_object() && selector == labels, "{manifest}: {selector}");
    }
}

#[test]
fn only_monitoring_reaches_the_admin_port() {
    let service = manifest("service");
    let exposed: Vec<&Value> =
        elements(&service["spec"]["ports"]).iter().map(|port| &port["targetPort"]).collect();
    assert_eq!(exposed, ["http", "grpc"]);
    let mut to_admin = 0;
    for rule in elements(&manifest("network")["spec"]["ingress"]) {
        // A rule without ports opens all ports.
        assert!(!elements(&rule["ports"]).is_empty(), "{rule}");
        if elements(&rule["ports"]).iter().any(|open| port(&open["port"]) == port(&"admin".into()))
        {
            let [from] = elements(&rule["from"]) else { panic!("one permitted source: {rule}") };
            let labels = &from["namespaceSelector"]["matchLabels"];
            assert_eq!(labels["kubernetes.io/metadata.name"], "monitoring");
            to_admin += 1;
        }
    }
    assert_eq!(to_admin, 1);
}

#[test]
fn ports_replicas_and_paths_are_consistent() {
    let (container, pod) = (container(), pod());
    let variable = |name: &str| string(&element_named(&container["env"], name)["value"]).to_owned();
    let has_port =
        |address: &str, name: &str| address.ends_with(&format!(":{}", port(&name.into())));
    assert!(has_port(&variable("SLIDEGATE_HTTP"), "http"));
    assert!(has_port(&variable("SLIDEGATE_ADMIN"), "admin"));
    let annotated = string(&pod["metadata"]["annotations"]["prometheus.io/port"]);
    assert!(has_port(&format!(":{annotated}"), "admin"));

    let replicas = manifest("deployment")["spec"]["replicas"].to_string();
    assert_eq!(variable("SLIDEGATE_EXPECTED_INSTANCES"), replicas);

    let mount = element_named(&container["volumeMounts"], "policy");
    assert!(mount.get("subPath").is_none(), "Kubernetes never updates a file mounted with subPath");
    let map = manifest("policy");
    assert_eq!(
        element_named(&pod["spec"]["volumes"], "policy")["configMap"]["name"],
        map["metadata"]["name"]
    );
    let files: Vec<&String> = map["data"].as_object().unwrap().keys().collect();
    let file = format!("{}/{}", string(&mount["mountPath"]), files[0]);
    assert_eq!(variable("SLIDEGATE_POLICY"), file);
}

/// Writes the policy of the ConfigMap to a file.
fn policy() -> TempFile {
    TempFile::new(".yaml", string(&manifest("policy")["data"]["policy.yaml"]))
}

#[test]
fn config_map_policy_is_valid() {
    let policy = policy();
    let output = run_command(slidegate().arg("validate").arg(policy.path()));
    assert!(output.contains("per-client"), "{output}");
}

#[test]
fn server_with_pod_settings_passes_its_probes() {
    let (container, policy) = (container(), policy());
    let mut command = slidegate();
    for variable in elements(&container["env"]) {
        command.env(string(&variable["name"]), variable["value"].as_str().unwrap_or("memory"));
    }
    command.env("SLIDEGATE_POLICY", policy.path()).env("SLIDEGATE_LOG_FORMAT", "text");
    command.env("SLIDEGATE_GRPC", "127.0.0.1:0").env("SLIDEGATE_MAX_CONNECTIONS", "2");
    command.env("SLIDEGATE_HTTP", "127.0.0.1:0").env("SLIDEGATE_ADMIN", "127.0.0.1:0");
    let server = Server::spawn(command.args(elements(&container["args"]).iter().map(string)));
    // One idle connection more than --max-connections on each public listener.
    let idle = [server.address(), server.grpc()]
        .map(|address| [(); 3].map(|()| TcpStream::connect(address).unwrap()));
    for probe in ["livenessProbe", "readinessProbe"] {
        let (seconds, target) = (&container[probe]["timeoutSeconds"], &container[probe]["httpGet"]);
        let address = match string(&target["port"]) {
            "http" => server.address(),
            "grpc" => server.grpc(),
            "admin" => server.admin(),
            other => panic!("{probe}: port {other}"),
        };
        let url = format!("http://{address}{}", string(&target["path"]));
        let timeout = Duration::from_secs(seconds.as_u64().unwrap());
        let request = ureq::get(&url).config().timeout_global(Some(timeout)).build();
        let response = request.call().unwrap_or_else(|error| panic!("{probe}, {url}: {error}"));
        assert_eq!(response.status(), 200, "{probe}");
    }
    drop(idle);
}

/// Finds the probes of a manifest at any depth, with their names.
fn probes(manifest: &Value) -> Vec<(String, Value)> {
    match manifest {
        Value::Object(fields) => {
            let below = fields.values().flat_map(probes);
            let own = fields.iter().filter(|(name, _)| name.ends_with("Probe"));
            own.map(|(name, probe)| (name.clone(), probe.clone())).chain(below).collect()
        }
        Value::Array(elements) => elements.iter().flat_map(probes).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn every_probe_uses_admin_port() {
    let mut seen = Vec::new();
    for folder in fs::read_dir(project("deploy")).unwrap() {
        let folder = folder.unwrap().file_name().into_string().unwrap();
        if !folder.starts_with("kubernetes") {
            continue;
        }
        for file in fs::read_dir(project(&format!("deploy/{folder}"))).unwrap() {
            let file = file.unwrap().file_name().into_string().unwrap();
            for (name, probe) in probes(&read_yaml(&format!("deploy/{folder}/{file}"))) {
                assert_eq!(probe["httpGet"]["port"], "admin", "{name} in deploy/{folder}/{file}");
                seen.push(name);
            }
        }
    }
    assert_eq!(seen, ["livenessProbe", "readinessProbe"]);
}

/// Returns the seconds from the start of the shutdown until Kubernetes kills the pod.
pub fn shutdown_seconds() -> u64 {
    let seconds = |value: &Value| value.as_u64().unwrap();
    let grace = seconds(&pod()["spec"]["terminationGracePeriodSeconds"]);
    grace - seconds(&container()["lifecycle"]["preStop"]["sleep"]["seconds"])
}
