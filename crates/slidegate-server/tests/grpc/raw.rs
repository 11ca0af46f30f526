//! A client that may send anything: HTTP/2, and gRPC by hand.

use std::net::SocketAddr;

use axum::body::Bytes;
use axum::http::{HeaderMap, Request, Response};
use h2::client::{SendRequest, handshake};
use h2::{RecvStream, SendStream};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::client::{PATH, RateLimitRequest, RateLimitResponse};

/// A connection.
#[derive(Clone)]
pub struct Raw(SendRequest<Bytes>);

/// A call that has begun.
pub struct Call {
    pub body: SendStream<Bytes>,
    response: h2::client::ResponseFuture,
}

/// How a call ended.
#[derive(Debug)]
pub struct Ended {
    pub code: String,
    pub message: String,
    /// The bytes of the body.
    pub body: Vec<u8>,
}

impl Raw {
    pub async fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).await.unwrap()).await.unwrap()
    }

    /// Over any bytes.
    pub async fn over(
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Self, h2::Error> {
        let (requests, connection) = handshake(io).await?;
        tokio::spawn(connection);
        Ok(Self(requests.ready().await?))
    }

    /// Begins a call.
    pub async fn begin(&self, path: &str) -> Result<Call, h2::Error> {
        let head = Request::post(format!("http://slidegate{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        let mut requests = self.0.clone().ready().await?;
        let (response, body) = requests.send_request(head.body(()).unwrap(), false)?;
        Ok(Call { body, response })
    }

    /// Makes a call with this body, whatever it is.
    pub async fn call(&self, path: &str, body: impl Into<Bytes>) -> Ended {
        let mut call = self.begin(path).await.unwrap();
        // The server may have answered before it has read everything.
        let _ = call.body.send_data(body.into(), true);
        call.end().await.unwrap()
    }

    /// Asks as a client should.
    pub async fn ask(&self, message: &RateLimitRequest) -> RateLimitResponse {
        let ended = self.call(PATH, framed(&message.encode_to_vec())).await;
        assert_eq!(ended.code, "0", "{ended:?}");
        RateLimitResponse::decode(&ended.body[5..]).unwrap()
    }
}

impl Call {
    /// Waits for the end.
    pub async fn end(self) -> Result<Ended, h2::Error> {
        let (head, mut body): (_, RecvStream) = Response::into_parts(self.response.await?);
        let mut bytes = Vec::new();
        while let Some(part) = body.data().await {
            let part = part?;
            body.flow_control().release_capacity(part.len())?;
            bytes.extend_from_slice(&part);
        }
        let trailers = body.trailers().await?.unwrap_or(head.headers);
        let (code, message) = (value(&trailers, "grpc-status"), value(&trailers, "grpc-message"));
        Ok(Ended { code, message, body: bytes })
    }
}

fn value(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
}

/// A message as it goes over the wire.
pub fn framed(message: &[u8]) -> Vec<u8> {
    [&[0], &(message.len() as u32).to_be_bytes()[..], message].concat()
}
