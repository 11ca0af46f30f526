//! Tests of the objects that the chart in `deploy/helm` renders for a cluster in which certificates of cert-manager
//! replace the key.

use serde_json::{Value, json};

use crate::common::certificates::CertAuthority;
use crate::common::slidegate_command;
use crate::deploy::helm::{render_objects, render_objects_with};
use crate::deploy::kubernetes::{
    Pod, container_variable, find_element_by_name, find_object, pod_container, pod_template,
};
use crate::deploy::kubernetes_cluster::{LOCAL_SEED, POD_FOLDER, assert_is_cluster_node};
use crate::deploy::{array_elements, expect_string, run_command};

/// Returns the object of cert-manager to which a reference with a kind and a name refers.
fn find_referenced<'a>(objects: &'a [Value], reference: &Value) -> &'a Value {
    find_object(objects, expect_string(&reference["kind"]), expect_string(&reference["name"]))
}

#[test]
fn node_certificate_has_name_and_usages_of_nodes() {
    let objects = render_objects("cluster-tls");
    let certificate = &find_object(&objects, "Certificate", "slidegate-cluster")["spec"];
    let help = run_command(slidegate_command().args(["serve", "--help"]));
    let (_, name) = help.split_once("--cluster-tls-name").unwrap();
    let (_, name) = name.split_once("[default: ").unwrap();
    let (name, _) = name.split_once(']').unwrap();
    assert_eq!(certificate["dnsNames"], json!([name]));
    for usage in ["server auth", "client auth"] {
        assert!(array_elements(&certificate["usages"]).contains(&json!(usage)), "{usage}");
    }
    let issuer = find_referenced(&objects, &certificate["issuerRef"]);
    let authority = &find_object(&objects, "Certificate", "slidegate-cluster-ca")["spec"];
    assert_eq!(issuer["spec"]["ca"]["secretName"], authority["secretName"]);
    assert_eq!(authority["isCA"], true);
    let self_signed = find_referenced(&objects, &authority["issuerRef"]);
    assert!(self_signed["spec"]["selfSigned"].is_object());
}

#[test]
fn own_issuer_replaces_authority() {
    let issuer = json!({ "kind": "ClusterIssuer", "name": "company" });
    let value = format!("cluster.certManager.issuerRef={issuer}");
    let objects = render_objects_with("cluster-tls", &value);
    let certificate = &find_object(&objects, "Certificate", "slidegate-cluster")["spec"];
    assert_eq!(certificate["issuerRef"], issuer);
    let others = objects.iter().filter(|object| object["apiVersion"] == "cert-manager.io/v1");
    assert_eq!(others.count(), 1);
}

#[test]
fn pod_mounts_certificates_and_secret_for_its_group() {
    let objects = render_objects("cluster-tls");
    let (pod, container) = (&pod_template(&objects)["spec"], pod_container(&objects));
    assert_eq!(pod["securityContext"]["fsGroup"], pod["securityContext"]["runAsGroup"]);
    let volume = find_element_by_name(&pod["volumes"], "cluster");
    assert_eq!(volume["projected"]["defaultMode"], 0o440);
    let [certificates, secret] = array_elements(&volume["projected"]["sources"]) else {
        panic!("two sources: {volume}")
    };
    let certificate = &find_object(&objects, "Certificate", "slidegate-cluster")["spec"];
    assert_eq!(certificates["secret"]["name"], certificate["secretName"]);
    let mount = find_element_by_name(&container["volumeMounts"], "cluster");
    assert_eq!(mount["mountPath"], POD_FOLDER);
    // The secret is the same as in a cluster with a key.
    let with_key = render_objects("cluster");
    let volume = find_element_by_name(&pod_template(&with_key)["spec"]["volumes"], "cluster");
    let [key] = array_elements(&volume["projected"]["sources"]) else { panic!("{volume}") };
    let [item] = array_elements(&secret["secret"]["items"]) else { panic!("one item: {secret}") };
    assert_eq!((&secret["secret"]["name"], &item["key"]), (&key["secret"]["name"], &json!("key")));
    // The files that cert-manager writes, and the secret.
    for (variable, file) in [
        ("SLIDEGATE_CLUSTER_TLS_CERT", "tls.crt"),
        ("SLIDEGATE_CLUSTER_TLS_KEY", "tls.key"),
        ("SLIDEGATE_CLUSTER_TLS_CA", "ca.crt"),
        ("SLIDEGATE_CLUSTER_SECRET_FILE", expect_string(&item["path"])),
    ] {
        assert_eq!(container_variable(&objects, variable), format!("{POD_FOLDER}/{file}"));
    }
    let mut variables = array_elements(&container["env"]).iter();
    assert!(variables.all(|variable| variable["name"] != "SLIDEGATE_CLUSTER_KEY_FILE"));
}

#[test]
fn server_with_mounted_certificates_runs_as_cluster_node() {
    let authority = CertAuthority::new();
    let node = authority.issue_node_certificate("slidegate-cluster");
    let files = [
        ("tls.crt", node.cert),
        ("tls.key", node.key),
        ("ca.crt", authority.certificate_pem()),
        ("secret", "as `openssl rand -hex 32` prints".to_owned()),
    ];
    let files = files.map(|(name, text)| (format!("{POD_FOLDER}/{name}"), text));
    let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), text.clone())).collect();
    assert_is_cluster_node(&Pod::start(&render_objects("cluster-tls"), &[LOCAL_SEED], &files));
}
