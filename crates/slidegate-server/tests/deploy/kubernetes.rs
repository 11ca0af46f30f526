//! Tests of the manifests in `deploy/kubernetes`. The tests compare the manifests with the Kubernetes schemas and with
//! each other, and run a server with the settings of the pod.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::common::{Server, TempFile, slidegate_command};
use crate::{
    array_elements, expect_string, project_path, read_project_yaml, run_command, venv_command,
};

const MANIFEST_FOLDER: &str = "deploy/kubernetes";

/// Kubernetes versions whose schemas check the manifests: the first version that supports `preStop.sleep`, and the
/// latest version with installed schemas.
const KUBERNETES_VERSIONS: [&str; 2] = ["1.30", "1.37"];

fn read_manifest(name: &str) -> Value {
    read_project_yaml(&format!("{MANIFEST_FOLDER}/{name}.yaml"))
}

/// Returns the file names of all manifests in [`MANIFEST_FOLDER`] except `kustomization.yaml`.
fn manifest_names() -> BTreeSet<String> {
    let files = fs::read_dir(project_path(MANIFEST_FOLDER)).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != "kustomization.yaml").collect()
}

fn read_pod_template() -> Value {
    read_manifest("deployment")["spec"]["template"].clone()
}

fn read_pod_container() -> Value {
    let pod = read_pod_template();
    let [container] = array_elements(&pod["spec"]["containers"]) else { panic!("one container") };
    container.clone()
}

/// Returns the list element whose JSON field `name` equals the argument `name`. Panics if no element matches.
fn find_element_by_name<'v>(list: &'v Value, name: &str) -> &'v Value {
    let found = array_elements(list).iter().find(|element| element["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {list}"))
}

/// Returns the port number of the container port with this name.
fn container_port_number(name: &Value) -> u64 {
    find_element_by_name(&read_pod_container()["ports"], expect_string(name))["containerPort"]
        .as_u64()
        .unwrap()
}

#[test]
fn kubernetes_schemas_accept_manifests() {
    for version in KUBERNETES_VERSIONS {
        let files =
            manifest_names().into_iter().map(|name| project_path(MANIFEST_FOLDER).join(name));
        run_command(
            venv_command("kubernetes-validate").args(["--strict", "-k", version]).args(files),
        );
    }
}

#[test]
fn kustomization_lists_manifests_and_current_image() {
    let kustomization = read_manifest("kustomization");
    let listed: BTreeSet<String> = array_elements(&kustomization["resources"])
        .iter()
        .map(|name| expect_string(name).to_owned())
        .collect();
    assert_eq!(listed, manifest_names());
    let image = find_element_by_name(
        &kustomization["images"],
        expect_string(&read_pod_container()["image"]),
    );
    assert_eq!(image["newTag"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn manifest_selectors_match_pod_labels() {
    let deployment = read_manifest("deployment");
    let labels = &read_pod_template()["metadata"]["labels"];
    for (manifest, selector) in [
        ("deployment", &deployment["spec"]["selector"]["matchLabels"]),
        ("service", &read_manifest("service")["spec"]["selector"]),
        ("disruption", &read_manifest("disruption")["spec"]["selector"]["matchLabels"]),
        ("network", &read_manifest("network")["spec"]["podSelector"]["matchLabels"]),
        (
            "spread",
            &read_pod_template()["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
        ),
    ] {
        assert!(selector.is_object() && selector == labels, "{manifest}: {selector}");
    }
}

#[test]
fn only_monitoring_namespace_reaches_admin_port() {
    let service = read_manifest("service");
    let exposed: Vec<&Value> =
        array_elements(&service["spec"]["ports"]).iter().map(|port| &port["targetPort"]).collect();
    assert_eq!(exposed, ["http", "grpc"]);
    let mut to_admin = 0;
    for rule in array_elements(&read_manifest("network")["spec"]["ingress"]) {
        // A rule without ports opens all ports.
        assert!(!array_elements(&rule["ports"]).is_empty(), "{rule}");
        if array_elements(&rule["ports"]).iter().any(|open| {
            container_port_number(&open["port"]) == container_port_number(&"admin".into())
        }) {
            let [from] = array_elements(&rule["from"]) else {
                panic!("one permitted source: {rule}")
            };
            let labels = &from["namespaceSelector"]["matchLabels"];
            assert_eq!(labels["kubernetes.io/metadata.name"], "monitoring");
            to_admin += 1;
        }
    }
    assert_eq!(to_admin, 1);
}

#[test]
fn manifest_ports_replicas_and_paths_are_consistent() {
    let (container, pod) = (read_pod_container(), read_pod_template());
    let variable = |name: &str| {
        expect_string(&find_element_by_name(&container["env"], name)["value"]).to_owned()
    };
    let has_port = |address: &str, name: &str| {
        address.ends_with(&format!(":{}", container_port_number(&name.into())))
    };
    assert!(has_port(&variable("SLIDEGATE_HTTP"), "http"));
    assert!(has_port(&variable("SLIDEGATE_ADMIN"), "admin"));
    let annotated = expect_string(&pod["metadata"]["annotations"]["prometheus.io/port"]);
    assert!(has_port(&format!(":{annotated}"), "admin"));

    let replicas = read_manifest("deployment")["spec"]["replicas"].to_string();
    assert_eq!(variable("SLIDEGATE_EXPECTED_INSTANCES"), replicas);

    let mount = find_element_by_name(&container["volumeMounts"], "policy");
    assert!(mount.get("subPath").is_none(), "Kubernetes never updates a file mounted with subPath");
    let map = read_manifest("policy");
    assert_eq!(
        find_element_by_name(&pod["spec"]["volumes"], "policy")["configMap"]["name"],
        map["metadata"]["name"]
    );
    let files: Vec<&String> = map["data"].as_object().unwrap().keys().collect();
    let file = format!("{}/{}", expect_string(&mount["mountPath"]), files[0]);
    assert_eq!(variable("SLIDEGATE_POLICY"), file);
}

/// Writes the policy in the ConfigMap manifest to a temporary file.
fn write_config_map_policy() -> TempFile {
    TempFile::new(".yaml", expect_string(&read_manifest("policy")["data"]["policy.yaml"]))
}

#[test]
fn config_map_policy_is_valid() {
    let policy = write_config_map_policy();
    let output = run_command(slidegate_command().arg("validate").arg(policy.path()));
    assert!(output.contains("per-client"), "{output}");
}

/// The store of a pod in tests. A server stays ready while its Redis is unavailable.
const UNREACHABLE_REDIS: &str = "redis://127.0.0.1:1";

#[test]
fn server_with_pod_settings_passes_pod_probes() {
    let (container, policy) = (read_pod_container(), write_config_map_policy());
    let mut command = slidegate_command();
    for variable in array_elements(&container["env"]) {
        command.env(
            expect_string(&variable["name"]),
            variable["value"].as_str().unwrap_or(UNREACHABLE_REDIS),
        );
    }
    command.env("SLIDEGATE_POLICY", policy.path()).env("SLIDEGATE_LOG_FORMAT", "text");
    command.env("SLIDEGATE_GRPC", "127.0.0.1:0").env("SLIDEGATE_MAX_CONNECTIONS", "2");
    command.env("SLIDEGATE_HTTP", "127.0.0.1:0").env("SLIDEGATE_ADMIN", "127.0.0.1:0");
    let server =
        Server::spawn(command.args(array_elements(&container["args"]).iter().map(expect_string)));
    // One idle connection more than --max-connections on each public listener.
    let idle = [server.address(), server.grpc_address()]
        .map(|address| [(); 3].map(|()| TcpStream::connect(address).unwrap()));
    for probe in ["livenessProbe", "readinessProbe"] {
        let (seconds, target) = (&container[probe]["timeoutSeconds"], &container[probe]["httpGet"]);
        let address = match expect_string(&target["port"]) {
            "http" => server.address(),
            "grpc" => server.grpc_address(),
            "admin" => server.admin_address(),
            other => panic!("{probe}: port {other}"),
        };
        let url = format!("http://{address}{}", expect_string(&target["path"]));
        let timeout = Duration::from_secs(seconds.as_u64().unwrap());
        let request = ureq::get(&url).config().timeout_global(Some(timeout)).build();
        let response = request.call().unwrap_or_else(|error| panic!("{probe}, {url}: {error}"));
        assert_eq!(response.status(), 200, "{probe}");
    }
    drop(idle);
}

/// Finds all fields of a manifest, at any depth, with a name that ends with `Probe`. Returns the name and the value of
/// each field.
fn find_probes(manifest: &Value) -> Vec<(String, Value)> {
    match manifest {
        Value::Object(fields) => {
            let below = fields.values().flat_map(find_probes);
            let own = fields.iter().filter(|(name, _)| name.ends_with("Probe"));
            own.map(|(name, probe)| (name.clone(), probe.clone())).chain(below).collect()
        }
        Value::Array(elements) => elements.iter().flat_map(find_probes).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn every_probe_uses_admin_port() {
    let mut seen = Vec::new();
    for folder in fs::read_dir(project_path("deploy")).unwrap() {
        let folder = folder.unwrap().file_name().into_string().unwrap();
        if !folder.starts_with("kubernetes") {
            continue;
        }
        for file in fs::read_dir(project_path(&format!("deploy/{folder}"))).unwrap() {
            let file = file.unwrap().file_name().into_string().unwrap();
            for (name, probe) in find_probes(&read_project_yaml(&format!("deploy/{folder}/{file}")))
            {
                assert_eq!(probe["httpGet"]["port"], "admin", "{name} in deploy/{folder}/{file}");
                seen.push(name);
            }
        }
    }
    assert_eq!(seen, ["livenessProbe", "readinessProbe"]);
}

/// Returns the number of seconds between the SIGTERM signal and the moment when Kubernetes kills the pod.
pub fn seconds_until_kill() -> u64 {
    let seconds = |value: &Value| value.as_u64().unwrap();
    let grace = seconds(&read_pod_template()["spec"]["terminationGracePeriodSeconds"]);
    grace - seconds(&read_pod_container()["lifecycle"]["preStop"]["sleep"]["seconds"])
}
