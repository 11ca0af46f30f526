//! A client connection with hyper, which sends the same request repeatedly.

use std::error::Error;
use std::net::SocketAddr;

use http_body_util::{BodyExt, Collected, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{CONTENT_LENGTH, DATE, HOST};
use hyper::http::response::Parts;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;

use crate::request::{BenchRequest, Protocol};

type RequestBody = Full<Bytes>;

/// A client connection. Hyper serves it in a separate task of the current runtime.
pub struct BenchConnection {
    sender: RequestSender,
    request: Request<RequestBody>,
}

/// The sending half of an HTTP/1.1 or HTTP/2 connection.
enum RequestSender {
    Http1(http1::SendRequest<RequestBody>),
    Http2(http2::SendRequest<RequestBody>),
}

/// A recorded response of slidegate. The headers that every HTTP server sets itself are removed.
#[derive(Serialize, Deserialize)]
pub struct RecordedResponse {
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl RecordedResponse {
    /// Serializes the response, to pass it to another process.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Box<dyn Error>> {
        Ok(serde_json::to_vec(self)?)
    }

    /// Deserializes a response from the bytes that [`to_bytes`](Self::to_bytes) returned.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Box<dyn Error>> {
        Ok(serde_json::from_slice(bytes)?)
    }

    /// Returns the bytes of the message in a gRPC response, without the frame header of 5 bytes.
    pub fn message(&self) -> Result<&[u8], Box<dyn Error>> {
        Ok(self.body.get(5..).ok_or("the response has no message")?)
    }
}

impl BenchConnection {
    /// Opens a connection to the server, on which [`send`](Self::send) sends this request.
    pub async fn connect(
        server: SocketAddr,
        request: &BenchRequest,
    ) -> Result<Self, Box<dyn Error>> {
        let sender = RequestSender::connect(server, request.protocol).await?;
        Ok(Self { sender, request: build_request(server, request)? })
    }

    /// Sends the request and waits for the complete response.
    ///
    /// # Errors
    /// If no response arrives, or if the status of the response is not success.
    pub async fn send(&mut self) -> Result<RecordedResponse, Box<dyn Error>> {
        let (head, body) = self.receive().await?;
        let kept_headers =
            head.headers.iter().filter(|(name, _)| **name != DATE && **name != CONTENT_LENGTH);
        let kept_headers =
            kept_headers.map(|(name, value)| Ok((name.to_string(), value.to_str()?.to_owned())));
        let headers = kept_headers.collect::<Result<_, Box<dyn Error>>>()?;
        Ok(RecordedResponse { headers, body: body.to_bytes().to_vec() })
    }

    /// Sends the request, waits for the complete response, and drops it.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub async fn send_and_drop_response(&mut self) -> Result<(), Box<dyn Error>> {
        self.receive().await.map(drop)
    }

    async fn receive(&mut self) -> Result<(Parts, Collected<Bytes>), Box<dyn Error>> {
        let (head, body) = self.sender.send(self.request.clone()).await?.into_parts();
        let body = body.collect().await?;
        // The gRPC status is in the headers if a call fails immediately, otherwise in the trailers. HTTP/1.1 has
        // none.
        let trailers = body.trailers().and_then(|trailers| trailers.get("grpc-status"));
        let status = trailers.or(head.headers.get("grpc-status"));
        if head.status != StatusCode::OK || status.is_some_and(|status| status != "0") {
            return Err(format!("unexpected response: {head:?}, {body:?}").into());
        }
        Ok((head, body))
    }
}

impl RequestSender {
    async fn connect(server: SocketAddr, protocol: Protocol) -> Result<Self, Box<dyn Error>> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let stream = TokioIo::new(stream);
        match protocol {
            Protocol::Http => {
                let (sender, connection) = http1::handshake(stream).await?;
                // The sender reports errors of the connection.
                tokio::spawn(async { drop(connection.await) });
                Ok(Self::Http1(sender))
            }
            Protocol::Grpc => {
                let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
                tokio::spawn(async { drop(connection.await) });
                Ok(Self::Http2(sender))
            }
        }
    }

    async fn send(&mut self, request: Request<RequestBody>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }
}

fn build_request(
    server: SocketAddr,
    request: &BenchRequest,
) -> Result<Request<RequestBody>, Box<dyn Error>> {
    let BenchRequest { protocol, path, headers, body } = request;
    let method = if body.is_empty() { Method::GET } else { Method::POST };
    let builder = match protocol {
        Protocol::Http => Request::builder().uri(*path).header(HOST, server.to_string()),
        Protocol::Grpc => Request::builder().uri(format!("http://{server}{path}")),
    };
    let builder =
        headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value));
    Ok(builder.method(method).body(RequestBody::from(body.clone()))?)
}
