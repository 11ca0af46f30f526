//! A gRPC service with tonic: each client may send three health checks per minute.
//!
//! ```sh
//! cargo run -p slidegate-tower --features tonic --example grpc_health
//! grpcurl -v -plaintext 127.0.0.1:50051 grpc.health.v1.Health/Check
//! ```

use std::error::Error;

use slidegate::{Gate, MemoryStore, Policy};
use slidegate_tower::{Attributes, Grpc, RateLimitLayer, TrustedProxies, extract};
use tonic::transport::Server;
use tonic_health::pb::FILE_DESCRIPTOR_SET;
use tonic_reflection::server::Builder;

const POLICY: &str = "
rules:
  - name: health
    when: { path: /grpc.health.v1.Health/* }    # reflection requests of tools are not counted
    per: [ip]
    limits: [3/min]
";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let gate = Gate::new(Policy::from_yaml(POLICY)?, MemoryStore::new());
    let attributes = Attributes::new()
        .with("path", extract::path())
        .with("ip", extract::client_ip(TrustedProxies::none()));
    let layer = RateLimitLayer::new(gate, attributes).respond_with(Grpc);

    // Replace this with your own tonic service.
    let (_, health) = tonic_health::server::health_reporter();
    let schema = || Builder::configure().register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET);
    Server::builder()
        .layer(layer)
        .add_service(health)
        .add_service(schema().build_v1()?)
        .add_service(schema().build_v1alpha()?) // older releases of grpcurl support only this version
        .serve("127.0.0.1:50051".parse()?)
        .await?;
    Ok(())
}
