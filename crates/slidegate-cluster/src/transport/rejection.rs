//! Reasons for which connections and frames are rejected, and their counters.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustls::{CertificateError, Error as TlsError};
use tokio::time::Instant;
use tracing::{debug, warn};

/// Minimum time between two warnings about the same reason.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The reason for the rejection of a connection or frame. Rejections are counted in [`RejectCounters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// The other side does not use TLS, or sent invalid TLS messages.
    NotTls,
    /// The other side uses another version of TLS or of the protocol between nodes.
    WrongVersion,
    /// The other side presented no certificate.
    NoCertificate,
    /// No trusted authority has signed the certificate: the other side has another key or another CA.
    ForeignCertificate,
    /// The certificate has expired, or is not valid yet.
    ExpiredCertificate,
    /// The certificate is not valid for the name of the nodes.
    WrongName,
    /// The other side rejected the certificate of this node.
    RejectedByPeer,
    /// A frame is longer than the maximum.
    TooLong,
    /// A frame has invalid content.
    Malformed,
    /// The connection leads to another node than expected: the node has restarted or moved.
    WrongNode,
    /// The connection leads to this node itself. This also happens if one of the seeds of this node refers to it.
    Reflected,
    /// The maximum number of connections is reached.
    Crowded,
    /// The handshake was not completed in time.
    TooSlow,
}

impl RejectReason {
    /// All reasons, in display order.
    pub const ALL: [Self; 13] = [
        Self::NotTls,
        Self::WrongVersion,
        Self::NoCertificate,
        Self::ForeignCertificate,
        Self::ExpiredCertificate,
        Self::WrongName,
        Self::RejectedByPeer,
        Self::TooLong,
        Self::Malformed,
        Self::WrongNode,
        Self::Reflected,
        Self::Crowded,
        Self::TooSlow,
    ];

    /// Returns the name of the reason in metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotTls => "not_tls",
            Self::WrongVersion => "wrong_version",
            Self::NoCertificate => "no_certificate",
            Self::ForeignCertificate => "foreign_certificate",
            Self::ExpiredCertificate => "expired_certificate",
            Self::WrongName => "wrong_name",
            Self::RejectedByPeer => "rejected_by_peer",
            Self::TooLong => "too_long",
            Self::Malformed => "malformed",
            Self::WrongNode => "wrong_node",
            Self::Reflected => "reflected",
            Self::Crowded => "crowded",
            Self::TooSlow => "too_slow",
        }
    }

    /// Returns the text of the log message.
    const fn message(self) -> &'static str {
        match self {
            Self::NotTls => {
                "a cluster connection does not use TLS; only nodes may connect to the cluster port"
            }
            Self::WrongVersion => {
                "a cluster connection uses another version; run the same version on all nodes"
            }
            Self::NoCertificate => {
                "a cluster connection has no certificate; only nodes may connect to the cluster port"
            }
            Self::ForeignCertificate => {
                "no trusted authority has signed the certificate of a cluster connection; give all nodes the same cluster key or CA"
            }
            Self::ExpiredCertificate => {
                "the certificate of a cluster connection has expired or is not valid yet; renew it, and compare the clocks"
            }
            Self::WrongName => {
                "the certificate of a cluster connection has another name; issue it for the name of --cluster-tls-name"
            }
            Self::RejectedByPeer => {
                "another node rejects the certificate of this node; its log says why"
            }
            Self::TooLong | Self::Malformed => {
                "a cluster node sends invalid frames; run the same version on all nodes"
            }
            Self::WrongNode => "a cluster connection leads to another node than expected",
            Self::Reflected => "a cluster connection leads to this node itself",
            Self::Crowded => {
                "too many connections to the cluster port; the oldest handshake was aborted"
            }
            Self::TooSlow => "a cluster connection did not complete its handshake in time",
        }
    }

    /// Returns `true` if healthy clusters have rejections for this reason too, so that no warning is logged.
    const fn is_expected_in_healthy_cluster(self) -> bool {
        matches!(self, Self::WrongNode | Self::Reflected)
    }

    /// Returns the reason if `error` is an error of TLS and not of the connection.
    pub(super) fn from_io_error(error: &io::Error) -> Option<Self> {
        let error = error.get_ref()?.downcast_ref::<TlsError>()?;
        Some(Self::from_tls_error(error))
    }

    pub(super) fn from_tls_error(error: &TlsError) -> Self {
        match error {
            TlsError::NoCertificatesPresented => Self::NoCertificate,
            TlsError::InvalidCertificate(
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. },
            ) => Self::ExpiredCertificate,
            TlsError::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => Self::WrongName,
            TlsError::InvalidCertificate(_) => Self::ForeignCertificate,
            TlsError::AlertReceived(_) => Self::RejectedByPeer,
            TlsError::PeerIncompatible(_) | TlsError::NoApplicationProtocol => Self::WrongVersion,
            _ => Self::NotTls,
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for RejectReason {}

/// The number of rejections for each reason since the start. All connections of a node share these counters.
#[derive(Debug, Default)]
pub struct RejectCounters {
    counts: [AtomicU64; RejectReason::ALL.len()],
    warned_at: Mutex<[Option<Instant>; RejectReason::ALL.len()]>,
}

impl RejectCounters {
    /// Counts one rejection, and logs a warning at most once a minute for each reason. `peer` is the address of the
    /// other side, and `error` is the error with its details.
    pub fn report(&self, reason: RejectReason, peer: impl fmt::Display, error: impl fmt::Display) {
        self.counts[reason as usize].fetch_add(1, Ordering::Relaxed);
        if reason.is_expected_in_healthy_cluster() || !self.should_warn(reason) {
            debug!(%peer, error = error.to_string(), "{}", reason.message());
        } else {
            warn!(%peer, error = error.to_string(), "{}", reason.message());
        }
    }

    fn should_warn(&self, reason: RejectReason) -> bool {
        let (now, warned_at) = (Instant::now(), &mut self.warned_at.lock()[reason as usize]);
        let is_due = warned_at.is_none_or(|warned_at| now - warned_at >= WARNING_INTERVAL);
        if is_due {
            *warned_at = Some(now);
        }
        is_due
    }

    /// Returns the number of rejections for a reason.
    pub fn get(&self, reason: RejectReason) -> u64 {
        self.counts[reason as usize].load(Ordering::Relaxed)
    }

    /// Returns an iterator over all reasons and their counts.
    pub fn iter(&self) -> impl Iterator<Item = (RejectReason, u64)> {
        RejectReason::ALL.into_iter().map(|reason| (reason, self.get(reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reasons_have_unique_names_and_counters() {
        let reject_counters = RejectCounters::default();
        for (times, reason) in RejectReason::ALL.into_iter().enumerate() {
            (0..times).for_each(|_| reject_counters.report(reason, "peer", "error"));
        }
        let counted: Vec<u64> = reject_counters.iter().map(|(_, count)| count).collect();
        assert_eq!(counted, (0..RejectReason::ALL.len() as u64).collect::<Vec<_>>());
        let names: std::collections::HashSet<_> = RejectReason::ALL.map(RejectReason::name).into();
        assert_eq!(names.len(), RejectReason::ALL.len());
    }

    #[tokio::test(start_paused = true)]
    async fn each_reason_is_warned_about_once_a_minute() {
        let reject_counters = RejectCounters::default();
        let warned = |reason| reject_counters.should_warn(reason);
        assert!(warned(RejectReason::NotTls) && warned(RejectReason::TooSlow));
        assert!(!warned(RejectReason::NotTls));
        tokio::time::advance(WARNING_INTERVAL).await;
        assert!(warned(RejectReason::NotTls) && !warned(RejectReason::NotTls));
    }
}
