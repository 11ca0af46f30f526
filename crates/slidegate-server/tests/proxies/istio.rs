//! Test of `deploy/istio`: Envoy limits requests with the patches of the filter, and with Istio's name of the cluster.

use std::fs;

use serde_json::Value;

use crate::common::Server;
use crate::common::project_path;
use crate::proxies::curl::send_with_curl;
use crate::proxies::envoy::run_envoy;
use crate::proxies::process::free_address;
use crate::proxies::upstream::Upstream;
use crate::redis_server::Folder;

const CLUSTER_NAME: &str = "outbound|8081||slidegate.default.svc.cluster.local";

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(project_path(path)).unwrap()).unwrap()
}

#[test]
fn envoy_limits_requests_with_istio_filter() {
    let mut patches = yaml("deploy/istio/envoyfilter.yaml")["spec"]["configPatches"].take();
    let mut config = yaml("deploy/envoy/envoy.yaml");
    let filters =
        "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters";
    config.pointer_mut(filters).unwrap()[0] = patches[0]["patch"]["value"].take();
    let cluster = &mut config["static_resources"]["clusters"][0];
    cluster["name"] = CLUSTER_NAME.into();
    cluster["load_assignment"]["cluster_name"] = CLUSTER_NAME.into();
    // The patch of the cluster replaces this field, as Istio merges it.
    let options = "typed_extension_protocol_options";
    cluster[options] = patches[1]["patch"]["value"][options].take();

    let policy = fs::read_to_string(project_path("deploy/envoy/policy.yaml")).unwrap();
    let (slidegate, upstream) = (Server::start_with_grpc(&policy, &[]), Upstream::start());
    let (address, mut text) = (free_address(), config.to_string());
    let ports = [
        (10000, address.port()),
        (8081, slidegate.grpc_address().port()),
        (9000, upstream.address().port()),
    ];
    for (port, actual) in ports {
        let field = |port: u16| format!("\"port_value\":{port}}}");
        assert!(text.contains(&field(port)), "{text}");
        text = text.replace(&field(port), &field(actual));
    }
    let envoy = run_envoy(&text, address, Folder::new());
    let allowed = send_with_curl(envoy.address, 2, "/", &["-H", "x-api-key: k"]);
    assert_eq!(allowed.status, 200, "{allowed:?}");
    assert!(allowed.header("ratelimit").is_some(), "{allowed:?}");
}

#[test]
fn istio_filter_has_names_of_chart() {
    let patches = yaml("deploy/istio/envoyfilter.yaml")["spec"]["configPatches"].take();
    let grpc = "/patch/value/typed_config/rate_limit_service/grpc_service/envoy_grpc";
    let grpc = patches[0].pointer(grpc).unwrap();
    assert_eq!(grpc["cluster_name"], CLUSTER_NAME);
    assert_eq!(grpc["authority"], "slidegate.default.svc.cluster.local");
    let cluster = &patches[1]["match"]["cluster"];
    assert_eq!(cluster["service"], "slidegate.default.svc.cluster.local");
    assert_eq!(cluster["portNumber"], 8081);
    let chart = project_path("crates/slidegate-server/tests/deploy/helm/memory.yaml");
    let chart = fs::read_to_string(chart).unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(&chart).unwrap();
    let service = objects.iter().find(|object| object["kind"] == "Service").unwrap();
    assert_eq!(service["metadata"]["name"], "slidegate");
    assert!(service["spec"]["ports"].as_array().unwrap().iter().any(|port| port["port"] == 8081));
}
