//! One connection by hyper, on which one question is asked after another.

use std::error::Error;
use std::net::SocketAddr;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{CONTENT_LENGTH, DATE, HOST};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

use crate::question::{Face, Question};

type Body = Full<Bytes>;

/// A connection, driven while it is asked.
pub struct Caller {
    runtime: Runtime,
    sender: Sender,
    request: Request<Body>,
}

enum Sender {
    One(http1::SendRequest<Body>),
    Two(http2::SendRequest<Body>),
}

/// What was answered: headers without those that every server sets itself.
#[derive(Serialize, Deserialize)]
pub struct Answer {
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    /// For another process.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Box<dyn Error>> {
        Ok(serde_json::to_vec(self)?)
    }

    /// What [`to_bytes`](Self::to_bytes) made.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Box<dyn Error>> {
        Ok(serde_json::from_slice(bytes)?)
    }

    /// The message of a call.
    pub fn message(&self) -> Result<&[u8], Box<dyn Error>> {
        Ok(self.body.get(5..).ok_or("an answer without a message")?)
    }
}

impl Caller {
    /// Connects, to ask this.
    pub fn connect(server: SocketAddr, question: &Question) -> Result<Self, Box<dyn Error>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let sender = runtime.block_on(Sender::connect(server, question.face))?;
        Ok(Self { runtime, sender, request: request(server, question)? })
    }

    /// Asks, and waits for the whole answer.
    ///
    /// # Errors
    /// If it is not answered, or with another status than that all is well.
    pub fn ask(&mut self) -> Result<Answer, Box<dyn Error>> {
        let request = self.request.clone();
        self.runtime.block_on(async {
            let (head, body) = self.sender.send(request).await?.into_parts();
            let body = body.collect().await?;
            // A call that fails at once says so in its head, else behind its body. HTTP/1.1 says nothing of that.
            let trailers = body.trailers().and_then(|trailers| trailers.get("grpc-status"));
            let status = trailers.or(head.headers.get("grpc-status"));
            if head.status != StatusCode::OK || status.is_some_and(|status| status != "0") {
                return Err(format!("another answer was expected: {head:?}, {body:?}").into());
            }
            let told =
                head.headers.iter().filter(|(name, _)| **name != DATE && **name != CONTENT_LENGTH);
            let told = told.map(|(name, value)| Ok((name.to_string(), value.to_str()?.to_owned())));
            let headers = told.collect::<Result<_, Box<dyn Error>>>()?;
            Ok(Answer { headers, body: body.to_bytes().to_vec() })
        })
    }
}

impl Sender {
    async fn connect(server: SocketAddr, face: Face) -> Result<Self, Box<dyn Error>> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let stream = TokioIo::new(stream);
        match face {
            Face::Http => {
                let (sender, connection) = http1::handshake(stream).await?;
                // How it ends, who asks is told.
                tokio::spawn(async { drop(connection.await) });
                Ok(Self::One(sender))
            }
            Face::Grpc => {
                let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
                tokio::spawn(async { drop(connection.await) });
                Ok(Self::Two(sender))
            }
        }
    }

    async fn send(&mut self, request: Request<Body>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::One(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Two(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }
}

fn request(server: SocketAddr, question: &Question) -> Result<Request<Body>, Box<dyn Error>> {
    let Question { face, path, headers, body } = question;
    let method = if body.is_empty() { Method::GET } else { Method::POST };
    let begun = match face {
        Face::Http => Request::builder().uri(*path).header(HOST, server.to_string()),
        Face::Grpc => Request::builder().uri(format!("http://{server}{path}")),
    };
    let begun = headers.iter().fold(begun, |request, (name, value)| request.header(*name, *value));
    Ok(begun.method(method).body(Body::from(body.clone()))?)
}
