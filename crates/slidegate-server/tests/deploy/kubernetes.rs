//! The manifests, held against Kubernetes' schemas, against each other, and against the server.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::common::{Server, TempFile, slidegate};
use crate::{installed, list, project, run, text, yaml};

const FOLDER: &str = "deploy/kubernetes";

/// The first with `preStop.sleep`, and the last whose schemas are here.
const VERSIONS: [&str; 2] = ["1.30", "1.37"];

fn manifest(name: &str) -> Value {
    yaml(&format!("{FOLDER}/{name}.yaml"))
}

/// The names of the manifests, but for what lists them.
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
    let [container] = list(&pod["spec"]["containers"]) else { panic!("one container") };
    container.clone()
}

/// The element of a list that has this name.
fn named<'v>(list: &'v Value, name: &str) -> &'v Value {
    let found = crate::list(list).iter().find(|element| element["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {list}"))
}

/// The number of a port that is given by its name.
fn port(name: &Value) -> u64 {
    named(&container()["ports"], text(name))["containerPort"].as_u64().unwrap()
}

#[test]
fn kubernetes_accepts_the_manifests() {
    for version in VERSIONS {
        let files = manifests().into_iter().map(|name| project(FOLDER).join(name));
        run(installed("kubernetes-validate").args(["--strict", "-k", version]).args(files));
    }
}

#[test]
fn the_list_has_every_manifest_and_the_image_of_this_version() {
    let kustomization = manifest("kustomization");
    let listed: BTreeSet<String> =
        list(&kustomization["resources"]).iter().map(|name| text(name).to_owned()).collect();
    assert_eq!(listed, manifests());
    let image = named(&kustomization["images"], text(&container()["image"]));
    assert_eq!(image["newTag"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn what_selects_the_pods_finds_them() {
    let deployment = manifest("deployment");
    let labels = &pod()["metadata"]["labels"];
    for (what, selector) in [
        ("deployment", &deployment["spec"]["selector"]["matchLabels"]),
        ("service", &manifest("service")["spec"]["selector"]),
        ("disruption", &manifest("disruption")["spec"]["selector"]["matchLabels"]),
        ("network", &manifest("network")["spec"]["podSelector"]["matchLabels"]),
        ("spread", &pod()["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]),
    ] {
        assert!(selector.is_object() && selector == labels, "{what}: {selector}");
    }
}

#[test]
fn only_monitoring_gets_to_the_admin_port() {
    let service = manifest("service");
    let exposed: Vec<&Value> =
        list(&service["spec"]["ports"]).iter().map(|port| &port["targetPort"]).collect();
    assert_eq!(exposed, ["http", "grpc"]);
    let mut to_admin = 0;
    for rule in list(&manifest("network")["spec"]["ingress"]) {
        // A rule without ports opens all of them.
        assert!(!list(&rule["ports"]).is_empty(), "{rule}");
        if list(&rule["ports"]).iter().any(|open| port(&open["port"]) == port(&"admin".into())) {
            let [from] = list(&rule["from"]) else { panic!("one who may: {rule}") };
            let labels = &from["namespaceSelector"]["matchLabels"];
            assert_eq!(labels["kubernetes.io/metadata.name"], "monitoring");
            to_admin += 1;
        }
    }
    assert_eq!(to_admin, 1);
}

#[test]
fn ports_copies_and_paths_are_the_same_everywhere() {
    let (container, pod) = (container(), pod());
    let variable = |name: &str| text(&named(&container["env"], name)["value"]).to_owned();
    let ends = |address: &str, name: &str| address.ends_with(&format!(":{}", port(&name.into())));
    assert!(ends(&variable("SLIDEGATE_HTTP"), "http"));
    assert!(ends(&variable("SLIDEGATE_ADMIN"), "admin"));
    let annotated = text(&pod["metadata"]["annotations"]["prometheus.io/port"]);
    assert!(ends(&format!(":{annotated}"), "admin"));

    let replicas = manifest("deployment")["spec"]["replicas"].to_string();
    assert_eq!(variable("SLIDEGATE_EXPECTED_INSTANCES"), replicas);

    let mount = named(&container["volumeMounts"], "policy");
    assert!(mount.get("subPath").is_none(), "a changed policy would never arrive");
    let map = manifest("policy");
    assert_eq!(
        named(&pod["spec"]["volumes"], "policy")["configMap"]["name"],
        map["metadata"]["name"]
    );
    let files: Vec<&String> = map["data"].as_object().unwrap().keys().collect();
    let file = format!("{}/{}", text(&mount["mountPath"]), files[0]);
    assert_eq!(variable("SLIDEGATE_POLICY"), file);
}

/// The policy in the ConfigMap, as a file.
fn policy() -> TempFile {
    TempFile::new(".yaml", text(&manifest("policy")["data"]["policy.yaml"]))
}

#[test]
fn the_policy_is_right() {
    let policy = policy();
    let told = run(slidegate().arg("validate").arg(policy.path()));
    assert!(told.contains("per-client"), "{told}");
}

#[test]
fn a_server_with_the_settings_of_a_pod_answers_its_probes() {
    let (container, policy) = (container(), policy());
    let mut command = slidegate();
    for variable in list(&container["env"]) {
        command.env(text(&variable["name"]), variable["value"].as_str().unwrap_or("memory"));
    }
    command.env("SLIDEGATE_POLICY", policy.path()).env("SLIDEGATE_LOG_FORMAT", "text");
    command.env("SLIDEGATE_GRPC", "127.0.0.1:0").env("SLIDEGATE_MAX_CONNECTIONS", "2");
    command.env("SLIDEGATE_HTTP", "127.0.0.1:0").env("SLIDEGATE_ADMIN", "127.0.0.1:0");
    let server = Server::spawn(command.args(list(&container["args"]).iter().map(text)));
    // As many idle clients as the server serves at once, and one more.
    let idle = [server.address(), server.grpc()]
        .map(|address| [(); 3].map(|()| TcpStream::connect(address).unwrap()));
    for probe in ["livenessProbe", "readinessProbe"] {
        let (seconds, asked) = (&container[probe]["timeoutSeconds"], &container[probe]["httpGet"]);
        let address = match text(&asked["port"]) {
            "http" => server.address(),
            "grpc" => server.grpc(),
            "admin" => server.admin(),
            other => panic!("{probe}: port {other}"),
        };
        let url = format!("http://{address}{}", text(&asked["path"]));
        let timeout = Duration::from_secs(seconds.as_u64().unwrap());
        let request = ureq::get(&url).config().timeout_global(Some(timeout)).build();
        let answer = request.call().unwrap_or_else(|error| panic!("{probe}, {url}: {error}"));
        assert_eq!(answer.status(), 200, "{probe}");
    }
    drop(idle);
}

/// The probes in a manifest, by name, wherever they stand.
fn probes(manifest: &Value) -> Vec<(String, Value)> {
    match manifest {
        Value::Object(fields) => {
            let below = fields.values().flat_map(probes);
            let here = fields.iter().filter(|(name, _)| name.ends_with("Probe"));
            here.map(|(name, probe)| (name.clone(), probe.clone())).chain(below).collect()
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
            for (name, probe) in probes(&yaml(&format!("deploy/{folder}/{file}"))) {
                assert_eq!(probe["httpGet"]["port"], "admin", "{name} in deploy/{folder}/{file}");
                seen.push(name);
            }
        }
    }
    assert_eq!(seen, ["livenessProbe", "readinessProbe"]);
}

/// Seconds that a pod has from the moment at which it listens no more until it is killed.
pub fn seconds_to_end() -> u64 {
    let seconds = |value: &Value| value.as_u64().unwrap();
    let grace = seconds(&pod()["spec"]["terminationGracePeriodSeconds"]);
    grace - seconds(&container()["lifecycle"]["preStop"]["sleep"]["seconds"])
}
