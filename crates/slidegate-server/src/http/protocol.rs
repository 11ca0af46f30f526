//! HTTP/1.1 on a connection.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::connect_info::ConnectInfo;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use hyper_util::service::TowerToHyperService;
use tower_layer::Layer;

use super::stream::ClientStream;
use super::{MAX_BODY, MAX_HEAD};
use crate::connections::{ClientIo, Protocol};

/// HTTP/1.1, and what answers.
#[derive(Clone)]
pub struct Http {
    http: http1::Builder,
    router: Router,
}

impl Http {
    /// `patience` is how long a head may take, and how long a connection may be idle.
    pub fn new(router: Router, patience: Duration) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            // From when a head can be read until it has been: it bounds idle connections too.
            .header_read_timeout(patience)
            .max_header_size(MAX_HEAD)
            .max_buf_size(MAX_BODY)
            // A client may send its last request, say that it is the last, and then read its answers.
            .half_close(true);
        Self { http, router }
    }
}

impl Protocol for Http {
    fn connection(
        &self,
        io: ClientIo,
        peer: SocketAddr,
    ) -> impl GracefulConnection<Error = hyper::Error> + Send + 'static {
        let service = Extension(ConnectInfo(peer)).layer(self.router.clone());
        let io = TokioIo::new(ClientStream::new(io));
        self.http.serve_connection(io, TowerToHyperService::new(service))
    }
}
