//! Test of `deploy/istio`: Envoy checks the patches of the filter.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::servers::Folder;
use crate::{installed_program, project_path};

#[test]
fn envoy_accepts_istio_filter() {
    let yaml = |path: &str| -> Value {
        serde_saphyr::from_str(&fs::read_to_string(project_path(path)).unwrap()).unwrap()
    };
    let mut patches = yaml("deploy/istio/envoyfilter.yaml")["spec"]["configPatches"].take();
    let mut filter = patches[0]["patch"]["value"].take();
    let cluster_name =
        filter.pointer_mut("/typed_config/rate_limit_service/grpc_service/envoy_grpc/cluster_name");
    let cluster_name = std::mem::replace(cluster_name.unwrap(), "slidegate".into());
    assert_eq!(cluster_name, "outbound|8081||slidegate.default.svc.cluster.local");
    let cluster = &patches[1]["match"]["cluster"];
    assert_eq!(cluster["service"], "slidegate.default.svc.cluster.local");
    assert_eq!(cluster["portNumber"], 8081);
    let chart = project_path("crates/slidegate-server/tests/deploy/helm/memory.yaml");
    let chart = fs::read_to_string(chart).unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(&chart).unwrap();
    let service = objects.iter().find(|object| object["kind"] == "Service").unwrap();
    assert_eq!(service["metadata"]["name"], "slidegate");
    assert!(service["spec"]["ports"].as_array().unwrap().iter().any(|port| port["port"] == 8081));

    let mut config = yaml("deploy/envoy/envoy.yaml");
    let filters =
        "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters";
    config.pointer_mut(filters).unwrap()[0] = filter;
    // The patch of the cluster replaces this field, as Istio merges it.
    let options = "typed_extension_protocol_options";
    config["static_resources"]["clusters"][0][options] =
        patches[1]["patch"]["value"][options].take();
    let folder = Folder::new();
    let path = folder.path().join("envoy.json");
    fs::write(&path, config.to_string()).unwrap();
    let mut envoy = Command::new(installed_program("envoy/bin/envoy"));
    let output = envoy.args(["--mode", "validate", "-l", "warn", "-c"]).arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
