//! A gRPC client based directly on HTTP/2, which can also send invalid bytes.

use std::net::SocketAddr;

use axum::body::Bytes;
use axum::http::{HeaderMap, Request, Response};
use h2::client::{Builder, SendRequest, handshake};
use h2::{RecvStream, SendStream};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::grpc::client::{RateLimitRequest, RateLimitResponse, SHOULD_RATE_LIMIT_PATH};

/// An HTTP/2 connection for gRPC calls.
#[derive(Clone)]
pub struct RawGrpcConnection(SendRequest<Bytes>);

/// A gRPC call in progress, whose request body is still open.
pub struct Call {
    pub body: SendStream<Bytes>,
    response: h2::client::ResponseFuture,
}

/// The result of a gRPC call: status code, error message and response body.
#[derive(Debug)]
pub struct CallOutcome {
    pub code: String,
    pub message: String,
    /// The bytes of the response body.
    pub body: Vec<u8>,
}

impl RawGrpcConnection {
    /// Opens a connection to an address without TLS.
    pub async fn connect(address: SocketAddr) -> Self {
        let io = TcpStream::connect(address).await.unwrap();
        // Otherwise the end of each flow control window waits for an acknowledgement of the system.
        io.set_nodelay(true).unwrap();
        Self::with_io(io).await.unwrap()
    }

    /// Opens a connection without TLS, on which this number of calls can be open before the client has received the
    /// maximum number of the server.
    pub async fn with_open_calls(address: SocketAddr, open_calls: usize) -> Self {
        let io = TcpStream::connect(address).await.unwrap();
        let mut builder = Builder::new();
        // h2 ends a connection on which many small responses are unread, compared to its window.
        builder.initial_max_send_streams(open_calls).initial_connection_window_size(1 << 24);
        io.set_nodelay(true).unwrap();
        let (requests, connection) = builder.handshake(io).await.unwrap();
        tokio::spawn(connection);
        Self(requests)
    }

    /// Starts HTTP/2 on an open byte stream, for example a TLS connection.
    pub async fn with_io(
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Self, h2::Error> {
        let (requests, connection) = handshake(io).await?;
        tokio::spawn(connection);
        Ok(Self(requests.ready().await?))
    }

    /// Sends the head of a call, and leaves the request body open.
    pub async fn start_call(&self, path: &str) -> Result<Call, h2::Error> {
        self.start_call_with_headers(path, &[]).await
    }

    /// Sends the head of a call with further headers, and leaves the request body open.
    pub async fn start_call_with_headers(
        &self,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<Call, h2::Error> {
        let head = Request::post(format!("http://slidegate{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        let head = headers.iter().fold(head, |head, (name, value)| head.header(*name, *value));
        let mut requests = self.0.clone().ready().await?;
        let (response, body) = requests.send_request(head.body(()).unwrap(), false)?;
        Ok(Call { body, response })
    }

    /// Makes a call with this request body, which may be invalid, and returns the result.
    pub async fn call(&self, path: &str, body: impl Into<Bytes>) -> CallOutcome {
        let mut call = self.start_call(path).await.unwrap();
        // The server may respond before it has read the whole body.
        let _ = call.body.send_data(body.into(), true);
        call.finish().await.unwrap()
    }

    /// Calls `ShouldRateLimit` with a valid request, and returns the response. Panics if the call fails.
    pub async fn check(&self, message: &RateLimitRequest) -> RateLimitResponse {
        let outcome =
            self.call(SHOULD_RATE_LIMIT_PATH, frame_message(&message.encode_to_vec())).await;
        assert_eq!(outcome.code, "0", "{outcome:?}");
        RateLimitResponse::decode(&outcome.body[5..]).unwrap()
    }
}

impl Call {
    /// Waits until the response and its trailers are complete, and returns the result of the call.
    pub async fn finish(self) -> Result<CallOutcome, h2::Error> {
        let (head, mut body): (_, RecvStream) = Response::into_parts(self.response.await?);
        let mut bytes = Vec::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            body.flow_control().release_capacity(chunk.len())?;
            bytes.extend_from_slice(&chunk);
        }
        let trailers = body.trailers().await?.unwrap_or(head.headers);
        let (code, message) =
            (header_value(&trailers, "grpc-status"), header_value(&trailers, "grpc-message"));
        Ok(CallOutcome { code, message, body: bytes })
    }
}

/// Returns the value of a header, or an empty string if the header is missing.
fn header_value(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
}

/// Returns a message with the gRPC frame header (compression flag and length) in front.
pub fn frame_message(message: &[u8]) -> Vec<u8> {
    [&[0], &(message.len() as u32).to_be_bytes()[..], message].concat()
}
