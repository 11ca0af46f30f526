//! The settings of a layer, which it shares with its services.

use std::sync::Arc;

use http::StatusCode;
use slidegate::Decision;

use crate::backend::Backend;
use crate::extract::RequestHead;
use crate::header_writer::HeaderWriter;
use crate::request_options::RequestOptions;
use crate::settlement::{OnDrop, ResponseHead, Settlement};

/// The configuration of a layer, shared by all services that the layer creates.
pub(crate) struct LayerConfig<R> {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) options: Arc<RequestOptions>,
    pub(crate) header_writer: HeaderWriter,
    pub(crate) respond: Arc<R>,
    pub(crate) settle: SettleTime,
    pub(crate) on_drop: OnDrop,
    pub(crate) inspect: Option<InspectCallback>,
    /// The status of denials for which a missing extension is the reason; `None` for the status of other denials.
    pub(crate) missing_extension_status: Option<StatusCode>,
}

/// The time at which the final cost of a request is known.
#[derive(Clone)]
pub(crate) enum SettleTime {
    /// The charge stays as it is.
    Never,
    /// A callback determines the cost from the head of the response.
    Response(SettleCallback),
    /// Each allowed request gets a [`RequestReservation`](crate::RequestReservation), which is settled when the body of the
    /// response has ended.
    EndOfBody,
}

impl SettleTime {
    pub(crate) fn is_set(&self) -> bool {
        !matches!(self, Self::Never)
    }
}

/// The callback that determines the final cost of a request from the head of its response.
type SettleCallback = Arc<dyn Fn(&ResponseHead<'_>) -> Settlement + Send + Sync>;

/// The callback that receives each decision before the request is allowed or denied.
type InspectCallback = Arc<dyn Fn(RequestHead<'_>, &Decision<'_>) + Send + Sync>;

impl<R> Clone for LayerConfig<R> {
    fn clone(&self) -> Self {
        Self {
            backend: self.backend.clone(),
            options: self.options.clone(),
            header_writer: self.header_writer.clone(),
            respond: self.respond.clone(),
            settle: self.settle.clone(),
            on_drop: self.on_drop,
            inspect: self.inspect.clone(),
            missing_extension_status: self.missing_extension_status,
        }
    }
}
