//! Tests of the manifests in `deploy/kubernetes-cluster-tls`, in which certificates of cert-manager replace the cluster
//! key.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

use serde_json::{Value, json};

use crate::certificates::CertAuthority;
use crate::common::{TempFile, slidegate_command};
use crate::kubernetes_cluster::{
    POD_NAME, apply_kustomize_patch, container_environment, read_patched_deployment, start_pod,
};
use crate::{
    array_elements, expect_string, project_path, read_project_yaml, run_command, venv_command,
};

const TLS_OVERLAY_FOLDER: &str = "deploy/kubernetes-cluster-tls";

/// The folder of the certificates in a pod.
const POD_FOLDER: &str = "/etc/slidegate-cluster";

fn read_deployment() -> Value {
    apply_kustomize_patch(&read_patched_deployment(), &read_manifest("deployment"))
}

/// The files of the resources of cert-manager, without their extension.
const CERT_MANAGER_FILES: [&str; 4] = ["authority-issuer", "authority", "issuer", "certificate"];

fn read_manifest(name: &str) -> Value {
    read_project_yaml(&format!("{TLS_OVERLAY_FOLDER}/{name}.yaml"))
}

/// Returns the resource of cert-manager to which a reference with a kind and a name refers.
fn find_referenced(reference: &Value) -> Value {
    let mut resources = CERT_MANAGER_FILES.map(read_manifest).into_iter();
    let found = resources.find(|resource| {
        resource["kind"] == reference["kind"] && resource["metadata"]["name"] == reference["name"]
    });
    found.unwrap_or_else(|| panic!("{reference}"))
}

#[test]
fn kubernetes_schemas_accept_cluster_tls_deployment() {
    let deployment = TempFile::new(".yaml", read_deployment().to_string());
    for version in ["1.30", "1.37"] {
        let mut validate = venv_command("kubernetes-validate");
        run_command(validate.args(["--strict", "-k", version]).arg(deployment.path()));
    }
}

#[test]
fn kustomization_lists_every_cluster_tls_manifest() {
    let kustomization = read_manifest("kustomization");
    let resources = CERT_MANAGER_FILES.map(|name| format!("{name}.yaml"));
    let [base, listed @ ..] = array_elements(&kustomization["resources"]) else {
        panic!("no resources: {kustomization}")
    };
    assert_eq!(
        (base, listed),
        (&json!("../kubernetes-cluster"), &resources.clone().map(Value::from)[..])
    );
    assert_eq!(kustomization["patches"], json!([{ "path": "deployment.yaml" }]));
    let files = fs::read_dir(project_path(TLS_OVERLAY_FOLDER)).unwrap();
    let files: BTreeSet<String> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    let others = ["deployment.yaml", "kustomization.yaml"].map(str::to_owned);
    assert_eq!(files, resources.into_iter().chain(others).collect());
}

#[test]
fn node_certificate_has_name_and_usages_of_nodes() {
    let certificate = &read_manifest("certificate")["spec"];
    let help = run_command(slidegate_command().args(["serve", "--help"]));
    let (_, name) = help.split_once("--cluster-tls-name").unwrap();
    let (_, name) = name.split_once("[default: ").unwrap();
    let (name, _) = name.split_once(']').unwrap();
    assert_eq!(certificate["dnsNames"], json!([name]));
    for usage in ["server auth", "client auth"] {
        assert!(array_elements(&certificate["usages"]).contains(&json!(usage)), "{usage}");
    }
    let issuer = find_referenced(&certificate["issuerRef"]);
    let authority = &read_manifest("authority")["spec"];
    assert_eq!(issuer["spec"]["ca"]["secretName"], authority["secretName"]);
    assert_eq!(authority["isCA"], true);
    assert!(find_referenced(&authority["issuerRef"])["spec"]["selfSigned"].is_object());
}

#[test]
fn pod_mounts_certificates_and_secret_for_its_group() {
    let deployment = read_deployment();
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["fsGroup"], pod["securityContext"]["runAsGroup"]);
    let volumes = array_elements(&pod["volumes"]);
    let volume = volumes.iter().find(|volume| volume["name"] == "cluster").unwrap();
    assert_eq!(volume["projected"]["defaultMode"], 0o440);
    let [certificates, secret] = array_elements(&volume["projected"]["sources"]) else {
        panic!("two sources: {volume}")
    };
    let certificate = &read_manifest("certificate")["spec"];
    assert_eq!(certificates["secret"]["name"], certificate["secretName"]);
    let mounts = array_elements(&pod["containers"][0]["volumeMounts"]);
    let mount = mounts.iter().find(|mount| mount["name"] == "cluster").unwrap();
    assert_eq!(mount["mountPath"], POD_FOLDER);
    let [item] = array_elements(&secret["secret"]["items"]) else { panic!("one item: {secret}") };
    let before = container_environment(&read_patched_deployment());
    let key = before.iter().find(|variable| variable["name"] == "SLIDEGATE_CLUSTER_KEY").unwrap();
    let key = &key["valueFrom"]["secretKeyRef"];
    assert_eq!((&secret["secret"]["name"], &item["key"]), (&key["name"], &key["key"]));
    // The files that cert-manager writes, and the secret.
    let files = container_environment(&deployment)
        .iter()
        .filter_map(|variable| variable["value"].as_str()?.strip_prefix(POD_FOLDER))
        .map(str::to_owned)
        .collect::<Vec<_>>();
    let path = format!("/{}", expect_string(&item["path"]));
    assert_eq!(files, ["/tls.crt", "/tls.key", "/ca.crt", &path]);
}

#[test]
fn server_with_mounted_certificates_runs_as_cluster_node() {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cluster-tls-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let authority = CertAuthority::new();
    let node = authority.issue_node_certificate("slidegate-cluster");
    for (name, content) in [
        ("tls.crt", node.cert),
        ("tls.key", node.key),
        ("ca.crt", authority.certificate_pem()),
        ("secret", "as `openssl rand -hex 32` prints".to_owned()),
    ] {
        fs::write(folder.join(name), content).unwrap();
    }
    let deployment = read_deployment();
    let mounted = container_environment(&deployment);
    let mounted = mounted.iter().filter_map(|variable| {
        let file = variable["value"].as_str()?.strip_prefix(POD_FOLDER)?;
        Some((expect_string(&variable["name"]), format!("{}{file}", folder.display())))
    });
    let (_server, status) = start_pod(&deployment, &mounted.collect::<Vec<_>>());
    assert!(status.contains(POD_NAME), "{status}");
    fs::remove_dir_all(&folder).unwrap();
}
