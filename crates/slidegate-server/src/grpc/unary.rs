//! The messages of unary gRPC calls: a frame header of five bytes, and the message.
//!
//! tonic's `Grpc` reads and writes a unary call as a stream of messages, which took more instructions than the decision.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame};
use prost::Message;
use prost::bytes::{Buf, BufMut, BytesMut};
use tonic::Status;
use tonic::metadata::GRPC_CONTENT_TYPE;

use crate::bounds::MAX_BODY_BYTES;

/// Length in bytes of the header of a message: a compression flag, and the length of the message.
const FRAME_HEADER_BYTES: usize = 5;

/// The compression flag of a message that is not compressed.
const NOT_COMPRESSED: u8 = 0;

/// The header that names the compression of the messages of a call.
const ENCODING_HEADER: &str = "grpc-encoding";

/// The trailer with the status of a call.
const STATUS_TRAILER: HeaderName = HeaderName::from_static("grpc-status");

/// The body of a successful response: a message, and the trailers with the status.
pub struct UnaryBody {
    message: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

/// Receives the body of a call, and returns its only message. `headers` are the headers of the call.
pub async fn receive_message(
    headers: &HeaderMap,
    body: impl Body<Data = Bytes, Error = Status> + Unpin,
) -> Result<Bytes, Status> {
    let mut body = receive_body(body).await?;
    let (flag, length) = read_frame_header(&body)?.ok_or_else(|| match body.is_empty() {
        true => Status::internal("missing message; send one message"),
        false => unexpected_end(),
    })?;
    if flag != NOT_COMPRESSED {
        return Err(compressed_status(flag, headers));
    }
    body.advance(FRAME_HEADER_BYTES);
    match body.len() {
        received if received < length => Err(unexpected_end()),
        received if received > length => {
            Err(Status::internal("the call has bytes after its message; send one message"))
        }
        _ => Ok(body),
    }
}

/// Receives a body until it ends, or until it is longer than one message.
async fn receive_body(
    mut body: impl Body<Data = Bytes, Error = Status> + Unpin,
) -> Result<Bytes, Status> {
    let Some(first) = receive_data(&mut body).await? else { return Ok(Bytes::new()) };
    // Most bodies are one frame, which needs no copy.
    if body.is_end_stream() {
        return Ok(first);
    }
    let mut received = BytesMut::from(first);
    loop {
        let header = read_frame_header(&received)?;
        if header.is_some_and(|(_, length)| received.len() > FRAME_HEADER_BYTES + length) {
            break;
        }
        match receive_data(&mut body).await? {
            Some(data) => received.extend_from_slice(&data),
            None => break,
        }
    }
    Ok(received.freeze())
}

/// Receives the next data of a body. Returns `None` at the end of the body.
async fn receive_data(
    body: &mut (impl Body<Data = Bytes, Error = Status> + Unpin),
) -> Result<Option<Bytes>, Status> {
    while let Some(frame) = body.frame().await {
        // gRPC clients send no trailers.
        if let Ok(data) = frame?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// Reads the compression flag and the length of a message. Returns `None` if the header is incomplete.
fn read_frame_header(mut body: &[u8]) -> Result<Option<(u8, usize)>, Status> {
    let (Ok(flag), Ok(length)) = (body.try_get_u8(), body.try_get_u32()) else { return Ok(None) };
    let length = length as usize;
    match length > MAX_BODY_BYTES {
        true => Err(Status::out_of_range(format!(
            "the message of {length} bytes is too large; send at most {MAX_BODY_BYTES} bytes"
        ))),
        false => Ok(Some((flag, length))),
    }
}

fn unexpected_end() -> Status {
    Status::internal("unexpected EOF: the call ended before its message was complete")
}

fn compressed_status(flag: u8, headers: &HeaderMap) -> Status {
    match headers.get(ENCODING_HEADER) {
        Some(encoding) if flag == 1 => Status::unimplemented(format!(
            "messages with {ENCODING_HEADER} {encoding:?} are not supported; send messages without compression"
        )),
        _ => Status::internal(format!(
            "compression flag {flag} without {ENCODING_HEADER}; send messages without compression"
        )),
    }
}

/// Returns the response with this message.
pub fn respond(message: &impl Message) -> Response<UnaryBody> {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(FRAME_HEADER_BYTES + length);
    framed.put_u8(NOT_COMPRESSED);
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut framed);
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(STATUS_TRAILER, HeaderValue::from_static("0"));
    let body = UnaryBody { message: Some(framed.freeze()), trailers: Some(trailers) };
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
    response
}

impl Body for UnaryBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let message = self.message.take().map(Frame::data);
        let frame = message.or_else(|| self.trailers.take().map(Frame::trailers));
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.message.is_none() && self.trailers.is_none()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::StreamBody;
    use tonic::Code;

    use super::*;

    /// Receives a message from a body with these frames, and from a body with a frame for each byte.
    async fn receive(frames: &[&[u8]], encoding: Option<&'static str>) -> Result<Bytes, Status> {
        let headers =
            encoding.map(|name| (ENCODING_HEADER.parse().unwrap(), name.parse().unwrap()));
        let headers = HeaderMap::from_iter(headers);
        let receive = |parts: Vec<&[u8]>| {
            let data = parts.into_iter().map(Bytes::copy_from_slice).map(Frame::data);
            let body = StreamBody::new(stream::iter(data.map(Ok).collect::<Vec<_>>()));
            receive_message(&headers, body)
        };
        let bytes = frames.concat();
        let from_bytes = receive(bytes.chunks(1).collect()).await;
        let received = receive(frames.to_vec()).await;
        let outcome = |received: &Result<Bytes, Status>| received.clone().map_err(|it| it.code());
        assert_eq!(outcome(&from_bytes), outcome(&received), "{bytes:?}");
        received
    }

    #[tokio::test]
    async fn message_is_received_in_any_number_of_frames() {
        for frames in [&[&b"\0\0\0\0\x03abc"[..]][..], &[b"", b"\0\0\0\0", b"\x03a", b"bc", b""]] {
            assert_eq!(receive(frames, None).await.unwrap(), "abc");
        }
        assert_eq!(receive(&[b"\0\0\0\0\0"], Some("gzip")).await.unwrap(), "");
    }

    #[tokio::test]
    async fn call_without_single_plain_message_is_rejected() {
        let one_byte_too_long = u32::try_from(MAX_BODY_BYTES + 1).unwrap().to_be_bytes();
        for (body, encoding, code, expected) in [
            (&b""[..], None, Code::Internal, "missing message"),
            (b"\0\0\0\0", None, Code::Internal, "unexpected EOF"),
            (b"\0\0\0\0\x02a", None, Code::Internal, "unexpected EOF"),
            (b"\0\0\0\0\x01ab", None, Code::Internal, "bytes after its message"),
            (b"\x01\0\0\0\0", None, Code::Internal, "compression flag 1 without grpc-encoding"),
            (b"\x02\0\0\0\0", Some("gzip"), Code::Internal, "compression flag 2"),
            (b"\x01\0\0\0\0", Some("gzip"), Code::Unimplemented, "grpc-encoding \"gzip\""),
            (&[&[0], &one_byte_too_long[..]].concat(), None, Code::OutOfRange, "too large"),
        ] {
            let status = receive(&[body], encoding).await.unwrap_err();
            assert_eq!(status.code(), code, "{body:?}");
            assert!(status.message().contains(expected), "{status:?}");
        }
    }

    #[tokio::test]
    async fn response_is_message_and_trailers() {
        let body = respond(&"ab".to_owned()).into_body().collect().await.unwrap();
        assert_eq!(body.trailers().unwrap()[STATUS_TRAILER], "0");
        // The string is field 1 of the message.
        assert_eq!(body.to_bytes(), &b"\0\0\0\0\x04\x0a\x02ab"[..]);
    }
}
