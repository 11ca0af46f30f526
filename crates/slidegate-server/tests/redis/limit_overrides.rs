//! Tests that a limit in a request has the same effect as in Envoy's reference rate limit server, with configuration
//! files of that server, in memory and in Redis.

use crate::common::{Server, TempFile, slidegate_command};
use crate::grpc::client::{
    Client, Code, RateLimitDescriptor, RateLimitOverride, new_descriptor, new_request,
};
use crate::redis_server::Redis;

const CONFIG: &str = "
domain: api
descriptors:
- { key: base, rate_limit: { name: base, unit: day, requests_per_unit: 5 } }
- { key: special, rate_limit: { name: special, unit: day, requests_per_unit: 5, replaces: [{ name: base }] } }
- { key: shadow, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 5 } }
- { key: quota, quota_mode: true, rate_limit: { unit: day, requests_per_unit: 5 } }
- { key: file, value: 'x*', share_threshold: true, rate_limit: { unit: week, requests_per_unit: 1 } }
";

const DAY: i32 = 4;
const WEEK: i32 = 7;

/// Starts a server with the configuration file and these flags.
fn start_server(config: &TempFile, flags: &[&str]) -> Server {
    let mut command = slidegate_command();
    command.arg("serve").arg("--ratelimit-config").arg(config.path());
    command.args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]).args(flags);
    Server::spawn(&mut command)
}

/// Returns a descriptor with one entry. With `limit`, it contains this number of requests per unit of time.
fn descriptor(key: &str, value: &str, limit: Option<(u32, i32)>) -> RateLimitDescriptor {
    let limit = limit.map(|(requests_per_unit, unit)| RateLimitOverride {
        requests_per_unit,
        unit,
        unit_multiplier: None,
    });
    RateLimitDescriptor { limit, ..new_descriptor(&[(key, value)]) }
}

#[tokio::test]
async fn limit_in_request_is_enforced_like_in_reference_server() {
    let config = TempFile::new(".yaml", CONFIG);
    let redis = Redis::start();
    let address = redis.address();
    for flags in [&[][..], &["--store", &address, "--redis-timeout", "5s"]] {
        let server = start_server(&config, flags);
        let client = Client::connect(&server).await;
        let check = async |descriptors: &[RateLimitDescriptor]| {
            let response = client.check(new_request(descriptors.iter().cloned())).await;
            let remaining = response.statuses.iter().map(|status| status.limit_remaining);
            (response.overall_code(), remaining.collect::<Vec<_>>())
        };
        // The limit of the request replaces nothing, so `base` counts.
        let special = descriptor("special", "1", Some((9, DAY)));
        let base = descriptor("base", "1", None);
        assert_eq!(check(&[special, base]).await, (Code::Ok, vec![8, 4]), "{flags:?}");
        // A limit without a name is not replaced.
        let special = descriptor("special", "2", None);
        let base = descriptor("base", "2", Some((0, DAY)));
        assert_eq!(check(&[special, base]).await.0, Code::OverLimit, "{flags:?}");
        // `shadow_mode` and `quota_mode` have no effect on the limit of the request.
        for key in ["shadow", "quota"] {
            let denied = descriptor(key, "1", Some((0, DAY)));
            assert_eq!(check(&[denied]).await.0, Code::OverLimit, "{key} {flags:?}");
        }
        // The limit of the request counts each value, although the configured limit counts all of them together.
        for value in ["x2", "x1"] {
            let file = descriptor("file", value, Some((1, WEEK)));
            assert_eq!(check(&[file]).await, (Code::Ok, vec![0]), "{value} {flags:?}");
        }
        // A limit of the request counts in the counter of the configured limit with the same unit.
        assert_eq!(check(&[descriptor("base", "3", None)]).await, (Code::Ok, vec![4]));
        let same = descriptor("base", "3", Some((2, DAY)));
        assert_eq!(check(&[same]).await, (Code::Ok, vec![0]), "{flags:?}");
    }
}
