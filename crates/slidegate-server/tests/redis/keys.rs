//! Tests that the length of Redis keys is bounded, even if client requests contain long values.

use std::iter;

use ureq::http::Request;

use crate::common::Server;
use crate::http::client::Client;
use crate::redis_server::Redis;

/// Maximum length of a Redis key in bytes. A key contains the prefix, the domain, the rule, the limit, and at most
/// 2 * 1,280 bytes of attribute names and values.
const MAX_REDIS_KEY_BYTES: usize = 2_700;

const POLICY: &str = "
rules:
  - { name: one, per: [header.a], limits: [10/h] }
  - { name: all, per: [header.a, header.b, header.c], limits: [10/h], algorithm: sliding_log }
  - name: placed
    per: [header.a, header.b, header.c]
    limits: [10/h]
    redis: { slot_by: [header.c] }
";

#[test]
fn long_header_values_keep_redis_keys_short() {
    let redis = Redis::start();
    let flags = ["--store", &redis.address(), "--redis-timeout", "30s"];
    let server = Server::start_with(POLICY, &flags);
    let client = Client::new(&server);
    for value in [vec![b'*'; 15_000], vec![b'*'; 1_024], vec![0xff; 1_024], vec![b'a'; 1_025]] {
        let headers = iter::zip(["a", "b", "c"], iter::repeat(&*value));
        let request =
            headers.fold(Request::get("/v1/auth"), |all, (name, value)| all.header(name, value));
        let response = client.send(request.body(Vec::new()).unwrap());
        assert_eq!(response.status, 200, "{}", response.body);
    }
    let keys = redis.keys();
    assert_eq!(keys.len(), 12, "three for each value");
    let longest = keys.iter().map(String::len).max().unwrap();
    assert!(longest < MAX_REDIS_KEY_BYTES, "{longest}");
}
