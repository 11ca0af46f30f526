//! Tests of the objects that the chart in `deploy/helm` renders for a cluster with a key.

use serde_json::json;

use crate::deploy::helm::{render_objects, render_objects_with};
use crate::deploy::kubernetes::{
    POD_NAME, Pod, container_variable, find_element_by_name, find_object, peers_of_port,
    pod_container, pod_template,
};
use crate::deploy::{expect_string, read_project_file};

/// The folder of the secret in a pod.
pub const POD_FOLDER: &str = "/etc/slidegate-cluster";

#[test]
fn only_slidegate_pods_reach_cluster_port() {
    let objects = render_objects("cluster");
    let deployment = find_object(&objects, "Deployment", "slidegate");
    let selector = json!({ "podSelector": deployment["spec"]["selector"] });
    assert_eq!(*peers_of_port(&objects, "cluster"), json!([selector]));
}

#[test]
fn nodes_find_each_other_by_headless_service() {
    let objects = render_objects("cluster");
    let service = &find_object(&objects, "Service", "slidegate-nodes")["spec"];
    assert_eq!(service["clusterIP"], "None");
    assert_eq!(service["publishNotReadyAddresses"], true);
    let port = &find_element_by_name(&pod_container(&objects)["ports"], "cluster")["containerPort"];
    assert_eq!(
        container_variable(&objects, "SLIDEGATE_CLUSTER_LISTEN"),
        format!("$(POD_IP):{port}")
    );
    assert_eq!(
        container_variable(&objects, "SLIDEGATE_CLUSTER_SEEDS"),
        format!("slidegate-nodes:{port}")
    );
}

#[test]
fn variables_refer_only_to_earlier_variables() {
    let objects = render_objects("cluster");
    let variables = &pod_container(&objects)["env"];
    for (name, field) in [("POD_IP", "status.podIP"), ("POD_NAME", "metadata.name")] {
        let variable = find_element_by_name(variables, name);
        assert_eq!(variable["valueFrom"]["fieldRef"]["fieldPath"], field);
        let text = variables.to_string();
        let definition = text.find(&format!(r#""name":"{name}""#)).unwrap();
        assert!(definition < text.find(&format!("$({name})")).unwrap(), "{name}");
    }
}

#[test]
fn guide_creates_secret_of_cluster() {
    let objects = render_objects("cluster");
    let volume = find_element_by_name(&pod_template(&objects)["spec"]["volumes"], "cluster");
    let name = expect_string(&volume["projected"]["sources"][0]["secret"]["name"]);
    let file = container_variable(&objects, "SLIDEGATE_CLUSTER_KEY_FILE");
    let field = file.strip_prefix(&format!("{POD_FOLDER}/")).unwrap();
    let create = format!("secret generic {name} --from-literal={field}=");
    assert!(read_project_file("docs/how-to/run-three-nodes.md").contains(&create), "{create}");
}

/// The field `key` may have two keys during a change, and a further field the old one.
#[test]
fn every_field_of_secret_is_file() {
    let objects = render_objects("cluster");
    let volume = find_element_by_name(&pod_template(&objects)["spec"]["volumes"], "cluster");
    assert!(volume["projected"]["sources"][0]["secret"]["items"].is_null(), "{volume}");
    let mount = find_element_by_name(&pod_container(&objects)["volumeMounts"], "cluster");
    assert_eq!(mount["mountPath"], POD_FOLDER);
}

#[test]
fn ipv6_pods_listen_on_ipv6_addresses() {
    let objects = render_objects_with("cluster", "ipv6=true");
    for (variable, address) in [
        ("SLIDEGATE_HTTP", "[::]:8080"),
        ("SLIDEGATE_GRPC", "[::]:8081"),
        ("SLIDEGATE_ADMIN", "[::]:6070"),
        ("SLIDEGATE_CLUSTER_LISTEN", "[$(POD_IP)]:7946"),
    ] {
        assert_eq!(container_variable(&objects, variable), address);
    }
}

/// Asserts that the server of a pod is a node of a cluster with the name of the pod.
pub fn assert_is_cluster_node(pod: &Pod) {
    let url = format!("http://{}/v1/cluster", pod.server.admin_address());
    let status = ureq::get(&url).call().unwrap().body_mut().read_to_string().unwrap();
    assert!(status.contains(&format!(r#"{{"name":"{POD_NAME}""#)), "{status}");
}

/// The host name of the service resolves only inside Kubernetes.
pub const LOCAL_SEED: (&str, &str) = ("SLIDEGATE_CLUSTER_SEEDS", "localhost:7946");

#[test]
fn server_with_pod_settings_runs_as_cluster_node() {
    let objects = render_objects("cluster");
    let key = (format!("{POD_FOLDER}/key"), "as `openssl rand -hex 32` prints".to_owned());
    assert_is_cluster_node(&Pod::start(&objects, &[LOCAL_SEED], &[(key.0.as_str(), key.1)]));
    assert_eq!(find_object(&objects, "Deployment", "slidegate")["spec"]["replicas"], 3);
}
