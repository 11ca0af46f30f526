//! Tests of the objects that the chart in `deploy/helm` renders for each of its variants. The tests compare the objects
//! with each other, and run a server with the settings of the pod.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use std::{env, fs};

use serde_json::{Value, json};

use crate::common::certificates::CertAuthority;
use crate::common::{Server, TempFile, slidegate_command};
use crate::deploy::helm::{VARIANTS, render_objects, render_objects_with};
use crate::deploy::{array_elements, expect_string, run_command};

/// Returns the object of this kind with this name. Panics if there is none.
pub fn find_object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found =
        objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// Returns the pod template of the deployment.
pub fn pod_template(objects: &[Value]) -> &Value {
    &find_object(objects, "Deployment", "slidegate")["spec"]["template"]
}

/// Returns the only container of the deployment.
pub fn pod_container(objects: &[Value]) -> &Value {
    let [container] = array_elements(&pod_template(objects)["spec"]["containers"]) else {
        panic!("one container")
    };
    container
}

/// Returns the list element whose JSON field `name` equals the argument `name`. Panics if no element matches.
pub fn find_element_by_name<'v>(list: &'v Value, name: &str) -> &'v Value {
    let found = array_elements(list).iter().find(|element| element["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {list}"))
}

/// Returns the value of a variable of the container.
pub fn container_variable<'v>(objects: &'v [Value], name: &str) -> &'v str {
    expect_string(&find_element_by_name(&pod_container(objects)["env"], name)["value"])
}

/// Returns whether a selector selects an object with these labels.
fn selects(selector: &Value, labels: &Value) -> bool {
    let wanted = selector.as_object().unwrap();
    assert!(!wanted.is_empty(), "an empty selector selects everything");
    wanted.iter().all(|(name, value)| labels[name] == *value)
}

#[test]
fn selectors_match_pods_and_not_test_pod() {
    for variant in VARIANTS {
        let objects = render_objects(variant);
        let pod = pod_template(&objects);
        let test_labels = &find_object(&objects, "Pod", "slidegate-test")["metadata"]["labels"];
        let spread = &pod["spec"]["topologySpreadConstraints"][0];
        let mut selectors = vec![&spread["labelSelector"]["matchLabels"]];
        for object in &objects {
            let spec = &object["spec"];
            match expect_string(&object["kind"]) {
                "Service" => selectors.push(&spec["selector"]),
                "Deployment" | "PodDisruptionBudget" => {
                    selectors.push(&spec["selector"]["matchLabels"]);
                }
                "NetworkPolicy" => selectors.push(&spec["podSelector"]["matchLabels"]),
                _ => {}
            }
        }
        assert!(selectors.len() >= 5, "{variant}: {selectors:?}");
        for selector in selectors {
            assert!(selects(selector, &pod["metadata"]["labels"]), "{variant}: {selector}");
            assert!(!selects(selector, test_labels), "{variant}: {selector}");
        }
    }
}

#[test]
fn containers_have_no_privileges() {
    for variant in VARIANTS {
        let objects = render_objects(variant);
        for pod in [pod_template(&objects), find_object(&objects, "Pod", "slidegate-test")] {
            let spec = &pod["spec"];
            assert_eq!(spec["automountServiceAccountToken"], false);
            assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
            assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
            let container = &spec["containers"][0];
            let expected = json!({
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": { "drop": ["ALL"] },
            });
            assert_eq!(container["securityContext"], expected, "{variant}");
            assert!(container["resources"]["limits"]["memory"].is_string(), "{variant}");
        }
    }
}

/// Returns the names of the ports that a rule of the network policy opens.
fn opened_ports(rule: &Value) -> Vec<&str> {
    let ports: Vec<&str> =
        array_elements(&rule["ports"]).iter().map(|open| expect_string(&open["port"])).collect();
    assert!(!ports.is_empty(), "a rule without ports opens all ports: {rule}");
    ports
}

/// Returns the peers that may use the port with this name. Panics unless exactly one rule opens the port.
pub fn peers_of_port<'v>(objects: &'v [Value], port: &str) -> &'v Value {
    let policy = find_object(objects, "NetworkPolicy", "slidegate");
    let rules = array_elements(&policy["spec"]["ingress"]);
    let [rule] =
        rules.iter().filter(|rule| opened_ports(rule).contains(&port)).collect::<Vec<_>>()[..]
    else {
        panic!("one rule for {port}: {policy}")
    };
    &rule["from"]
}

#[test]
fn only_monitoring_namespace_reaches_admin_port() {
    for variant in VARIANTS {
        let objects = render_objects(variant);
        let exposed = &find_object(&objects, "Service", "slidegate")["spec"]["ports"];
        let exposed: Vec<&Value> =
            array_elements(exposed).iter().map(|port| &port["targetPort"]).collect();
        assert_eq!(exposed, ["http", "grpc"]);
        let monitoring = json!({ "matchLabels": { "kubernetes.io/metadata.name": "monitoring" } });
        let peers = peers_of_port(&objects, "admin");
        assert_eq!(*peers, json!([{ "namespaceSelector": monitoring }]), "{variant}");
    }
}

/// In Kubernetes, a rule with an empty list of peers opens its ports to everyone.
#[test]
fn empty_monitoring_list_closes_admin_port() {
    let objects = render_objects_with("memory", "networkPolicy.monitoring=[]");
    let policy = find_object(&objects, "NetworkPolicy", "slidegate");
    let rules = array_elements(&policy["spec"]["ingress"]);
    let opened: Vec<&str> = rules.iter().flat_map(opened_ports).collect();
    assert_eq!(opened, ["http", "grpc"]);
}

#[test]
fn listed_clients_and_test_pod_reach_http_port() {
    let objects = render_objects("redis");
    let [client, test] = array_elements(peers_of_port(&objects, "http")) else {
        panic!("two peers")
    };
    assert_eq!(client["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"], "shop");
    let test_labels = &find_object(&objects, "Pod", "slidegate-test")["metadata"]["labels"];
    assert!(selects(&test["podSelector"]["matchLabels"], test_labels), "{test}");
}

#[test]
fn ports_and_mounts_match_settings() {
    for variant in VARIANTS {
        let objects = render_objects(variant);
        let (container, pod) = (pod_container(&objects), pod_template(&objects));
        let port =
            |name: &str| find_element_by_name(&container["ports"], name)["containerPort"].clone();
        for (variable, name) in
            [("SLIDEGATE_HTTP", "http"), ("SLIDEGATE_GRPC", "grpc"), ("SLIDEGATE_ADMIN", "admin")]
        {
            assert_eq!(container_variable(&objects, variable), format!("0.0.0.0:{}", port(name)));
        }
        let annotated = &pod["metadata"]["annotations"]["prometheus.io/port"];
        // A service monitor replaces the annotations.
        let expected =
            if variant == "redis" { Value::Null } else { port("admin").to_string().into() };
        assert_eq!(*annotated, expected, "{variant}");

        let mounts = &container["volumeMounts"];
        for mount in array_elements(mounts) {
            assert!(mount["subPath"].is_null(), "Kubernetes never updates a file with subPath");
        }
        assert_eq!(find_element_by_name(mounts, "policy")["mountPath"], "/etc/slidegate");
    }
}

#[test]
fn expected_instances_is_largest_number_of_pods() {
    let fixed = render_objects("envoy");
    let replicas = &find_object(&fixed, "Deployment", "slidegate")["spec"]["replicas"];
    assert_eq!(container_variable(&fixed, "SLIDEGATE_EXPECTED_INSTANCES"), replicas.to_string());

    let scaled = render_objects("redis");
    let replicas = &find_object(&scaled, "Deployment", "slidegate")["spec"]["replicas"];
    assert!(replicas.is_null(), "each upgrade would undo the work of the autoscaler: {replicas}");
    let scaler = &find_object(&scaled, "HorizontalPodAutoscaler", "slidegate")["spec"];
    assert_eq!(scaler["scaleTargetRef"]["name"], "slidegate");
    let max = scaler["maxReplicas"].to_string();
    assert_eq!(container_variable(&scaled, "SLIDEGATE_EXPECTED_INSTANCES"), max);
}

#[test]
fn service_monitor_selects_only_service_of_admin_port() {
    let objects = render_objects("redis");
    let monitor = &find_object(&objects, "ServiceMonitor", "slidegate");
    assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
    let selector = &monitor["spec"]["selector"]["matchLabels"];
    let selected: Vec<&Value> = objects
        .iter()
        .filter(|object| {
            object["kind"] == "Service" && selects(selector, &object["metadata"]["labels"])
        })
        .collect();
    let [service] = selected[..] else { panic!("one service: {selected:?}") };
    let port = expect_string(&monitor["spec"]["endpoints"][0]["port"]);
    let port = find_element_by_name(&service["spec"]["ports"], port);
    assert_eq!(port["targetPort"], "admin");
    // The job is the value of this label.
    let job = expect_string(&monitor["spec"]["jobLabel"]);
    assert_eq!(service["metadata"]["labels"][job], "slidegate");
}

/// Helm reads a large integer as a float, whose text is `1e+07`.
#[test]
fn settings_replace_defaults_with_exact_values() {
    let objects = render_objects("redis");
    assert_eq!(container_variable(&objects, "SLIDEGATE_MAX_KEYS"), "10000000");
    assert_eq!(container_variable(&objects, "SLIDEGATE_REDACT_KEYS"), "true");
    assert_eq!(container_variable(&objects, "SLIDEGATE_MAX_MEMORY"), "96MiB");
}

#[test]
fn envoy_finds_pods_by_headless_service_before_they_stop() {
    let objects = render_objects("envoy");
    let service = &find_object(&objects, "Service", "slidegate-envoy")["spec"];
    assert_eq!(service["clusterIP"], "None");
    assert_eq!(service["ports"], json!([{ "name": "grpc", "port": 8081, "targetPort": "grpc" }]));
    // Envoy resolves a name every 5 s, and the DNS server keeps an address for up to 5 s.
    let sleep = &pod_container(&objects)["lifecycle"]["preStop"]["sleep"]["seconds"];
    assert!(sleep.as_u64().unwrap() > 10, "{sleep}");
}

#[test]
fn policy_of_config_map_is_valid() {
    let objects = render_objects("memory");
    let map = find_object(&objects, "ConfigMap", "slidegate-policy");
    let policy = TempFile::new(".yaml", expect_string(&map["data"]["policy.yaml"]));
    let output = run_command(slidegate_command().arg("validate").arg(policy.path()));
    assert!(output.contains("per-client"), "{output}");
}

/// The name of a pod in tests.
pub const POD_NAME: &str = "slidegate-7d9c-x2b4p";

/// A server with the environment of a pod.
pub struct Pod {
    pub server: Server,
    /// The root folder of the pod, with its mounted files.
    root: PathBuf,
}

impl Pod {
    /// Starts the container of the deployment as Kubernetes does. `variables` has the values of secrets, and
    /// values that replace values of the container. `files` has the paths and texts of mounted files except the policy.
    pub fn start(objects: &[Value], variables: &[(&str, &str)], files: &[(&str, String)]) -> Self {
        let ip = unused_pod_ip();
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pod-{ip}"));
        let policy = find_object(objects, "ConfigMap", "slidegate-policy")["data"].as_object();
        let policy = policy
            .unwrap()
            .iter()
            .map(|(name, text)| (format!("/etc/slidegate/{name}"), expect_string(text).to_owned()));
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), text.clone()));
        for (path, text) in policy.chain(files) {
            let path = root.join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        let container = pod_container(objects);
        let mut command = slidegate_command();
        command.args(array_elements(&container["args"]).iter().map(expect_string));
        for variable in array_elements(&container["env"]) {
            let name = expect_string(&variable["name"]);
            let value = variable["value"].as_str().unwrap_or_default();
            let value = value.replace("$(POD_IP)", &ip).replace("$(POD_NAME)", POD_NAME);
            let is_path = value.starts_with("/etc/");
            command.env(name, if is_path { format!("{}{value}", root.display()) } else { value });
        }
        command.env("SLIDEGATE_LOG_FORMAT", "text");
        for listener in ["SLIDEGATE_HTTP", "SLIDEGATE_GRPC", "SLIDEGATE_ADMIN"] {
            command.env(listener, "127.0.0.1:0");
        }
        command.envs(variables.iter().copied());
        Self { server: Server::spawn(&mut command), root }
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Returns a loopback address that no other test uses.
fn unused_pod_ip() -> String {
    static NEXT_LAST_BYTE: AtomicU8 = AtomicU8::new(77);
    let last = NEXT_LAST_BYTE.fetch_add(1, Ordering::Relaxed);
    let [second, third] = std::process::id().to_be_bytes()[2..] else { panic!("four bytes") };
    format!("127.{}.{third}.{last}", second.max(1))
}

/// The store of a pod in tests. A server stays ready while its Redis is unavailable.
const UNREACHABLE_REDIS: (&str, &str) = ("SLIDEGATE_STORE", "redis://127.0.0.1:1");

#[test]
fn server_with_pod_settings_passes_pod_probes() {
    let objects = render_objects("redis");
    let variables = [
        ("SLIDEGATE_STORE", "rediss://127.0.0.1:1"),
        ("SLIDEGATE_TOKEN_KEY", "as `openssl rand -hex 32` prints"),
        ("SLIDEGATE_MAX_CONNECTIONS", "2"),
    ];
    let authority = CertAuthority::new().certificate_pem();
    let pod = Pod::start(&objects, &variables, &[("/etc/slidegate-redis/ca.crt", authority)]);
    let (server, container) = (&pod.server, pod_container(&objects));
    // One idle connection more than --max-connections on each public listener.
    let idle = [server.address(), server.grpc_address()]
        .map(|address| [(); 3].map(|()| TcpStream::connect(address).unwrap()));
    for probe in ["livenessProbe", "readinessProbe"] {
        let (seconds, target) = (&container[probe]["timeoutSeconds"], &container[probe]["httpGet"]);
        // Clients cannot use all connections of this port.
        assert_eq!(target["port"], "admin", "{probe}");
        let url = format!("http://{}{}", server.admin_address(), expect_string(&target["path"]));
        let timeout = Duration::from_secs(seconds.as_u64().unwrap());
        let request = ureq::get(&url).config().timeout_global(Some(timeout)).build();
        let response = request.call().unwrap_or_else(|error| panic!("{probe}, {url}: {error}"));
        assert_eq!(response.status(), 200, "{probe}");
    }
    drop(idle);
}

/// Runs the script of the pod for `helm test` against a server. Returns whether the script succeeds.
fn passes_helm_test(objects: &[Value], http: SocketAddr, grpc: SocketAddr) -> bool {
    let [container] =
        array_elements(&find_object(objects, "Pod", "slidegate-test")["spec"]["containers"])
    else {
        panic!("one container")
    };
    assert_eq!(container["command"], json!(["sh", "-ec"]));
    let script = expect_string(&container["args"][0])
        .replace("wget ", "busybox wget ")
        .replace("nc ", "busybox nc ")
        .replace("http://slidegate/", &format!("http://{http}/"))
        .replace("slidegate 8081", &grpc.to_string().replace(':', " "));
    assert!(!script.contains("slidegate"), "{script}");
    let mut shell = Command::new("busybox");
    shell.args(["sh", "-ec", &script]).output().unwrap().status.success()
}

#[test]
fn helm_test_passes_only_with_reachable_store_and_ports() {
    let memory = render_objects("memory");
    let pod = Pod::start(&memory, &[], &[]);
    let (http, grpc) = (pod.server.address(), pod.server.grpc_address());
    assert!(passes_helm_test(&memory, http, grpc));
    let closed = SocketAddr::from(([127, 0, 0, 1], 1));
    assert!(!passes_helm_test(&memory, closed, grpc));
    assert!(!passes_helm_test(&memory, http, closed));

    let redis = render_objects("envoy");
    let pod = Pod::start(&redis, &[UNREACHABLE_REDIS], &[]);
    assert!(!passes_helm_test(&redis, pod.server.address(), pod.server.grpc_address()));
}

#[test]
fn pod_for_envoy_reads_files_of_reference_server() {
    let pod = Pod::start(&render_objects("envoy"), &[UNREACHABLE_REDIS], &[]);
    let url = format!("http://{}/json", pod.server.address());
    let request = json!({
        "domain": "shop",
        "descriptors": [{ "entries": [{ "key": "remote_address", "value": "192.0.2.7" }] }],
    });
    let response = ureq::post(&url).send_json(request).unwrap().body_mut().read_to_string();
    // Redis does not respond, so each of the two pods enforces half of the limit of 20.
    assert!(response.as_ref().unwrap().contains(r#""requestsPerUnit":10"#), "{response:?}");
}

/// Returns the number of seconds between the SIGTERM signal and the moment when Kubernetes kills the pod, for the
/// variant with the least time.
pub fn seconds_until_kill() -> u64 {
    let seconds = VARIANTS.map(|variant| {
        let objects = render_objects(variant);
        let grace = &pod_template(&objects)["spec"]["terminationGracePeriodSeconds"];
        let sleep = &pod_container(&objects)["lifecycle"]["preStop"]["sleep"]["seconds"];
        grace.as_u64().unwrap() - sleep.as_u64().unwrap()
    });
    seconds.into_iter().min().unwrap()
}
