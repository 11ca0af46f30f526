//! Compiles fields with a single value, and checks the names of domains, rules, limits, costs and attributes.

use super::compiler::Compiler;
use super::deserialize::Field;
use super::spec::{AlgorithmSpec, ModeSpec};
use super::suggest::missing_field_message;
use crate::algorithm::Algorithm;
use crate::key::DEFAULT_DOMAIN;
use crate::policy::error::SourceSpan;
use crate::policy::mode::Mode;

impl Compiler<'_> {
    /// Returns the domain of a rule, or the default domain. Reports a name with an invalid length.
    pub(super) fn domain_from_field<'f>(&mut self, domain: &'f Field<String>) -> &'f str {
        match domain.value_and_span() {
            None => DEFAULT_DOMAIN,
            Some((name, at)) => {
                if name.is_empty() || name.len() > 128 {
                    self.report_invalid_name_length("domain", name, at);
                }
                name
            }
        }
    }

    /// Reports an error if a name has an invalid length or characters that are not allowed in headers, metrics and
    /// keys. `kind` is the kind of the named item, such as `rule`, for the error message.
    pub(super) fn report_invalid_name(&mut self, kind: &str, name: &str, at: SourceSpan) {
        let is_allowed =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
        if name.is_empty() || name.len() > 128 || !name.bytes().all(is_allowed) {
            let suggestion: String = (name.to_lowercase().chars())
                .map(|char| if char.is_ascii() && is_allowed(char as u8) { char } else { '-' })
                .take(128)
                .collect();
            let example = match suggestion.trim_matches('-') {
                "" => String::new(),
                _ => format!(", for example `{suggestion}`"),
            };
            let message = format_args!(
                "invalid {kind} name `{name}`; use 1 to 128 of the characters a-z, 0-9, `.`, `_` and `-`{example}"
            );
            self.report(at, message);
        }
    }

    fn report_invalid_name_length(&mut self, kind: &str, name: &str, at: SourceSpan) {
        let message = match name {
            "" => format!("the {kind} name is empty; write 1 to 128 bytes"),
            _ => format!("the {kind} name has {} bytes; the maximum is 128", name.len()),
        };
        self.report(at, message);
    }

    pub(super) fn report_invalid_attribute_name(&mut self, name: &str, at: SourceSpan) {
        if name.is_empty() || name.len() > 128 {
            self.report_invalid_name_length("attribute", name, at);
        } else if name.starts_with("header.") && name.bytes().any(|b| b.is_ascii_uppercase()) {
            let lower_case_name = name.to_ascii_lowercase();
            let message =
                format_args!("header names are lower-case; did you mean `{lower_case_name}`?");
            self.report(at, message);
        }
    }

    /// Returns the IPv6 prefix length in a field. Reports a length that is not from 1 to 128 bits.
    pub(super) fn ipv6_prefix_from_field(&mut self, prefix: &Field<u64>) -> Option<u8> {
        let (&bits, at) = prefix.value_and_span()?;
        let valid_bits = u8::try_from(bits).ok().filter(|bits| (1..=128).contains(bits));
        let message = || format!("{bits} is not an IPv6 prefix length; write 1 to 128");
        self.ok_or_report(at, valid_bits.ok_or_else(message))
    }

    /// Compiles the HTTP status of denied requests. A status below 400 is an error, since a proxy would allow the
    /// request.
    pub(super) fn deny_status_from_field(&mut self, status: &Field<u64>) -> Option<u16> {
        let (&status, at) = status.value_and_span()?;
        let valid_status = u16::try_from(status).ok().filter(|status| (400..=599).contains(status));
        let message = || format!("{status} is not an error status; write 400 to 599");
        self.ok_or_report(at, valid_status.ok_or_else(message))
    }

    /// Converts the field `mode` of a rule or an override. Reports an invalid percentage.
    pub(super) fn mode_from_field(&mut self, mode: &Field<ModeSpec>) -> Option<Mode> {
        Some(match mode.get()? {
            ModeSpec::Enforce => Mode::Enforce,
            ModeSpec::Jointly => Mode::Jointly,
            ModeSpec::Observe => Mode::Observe,
            ModeSpec::Off => Mode::Off,
            ModeSpec::For(map) => {
                if map.enforce.is_absent() {
                    self.report(mode.span(), missing_field_message("enforce: 5%"));
                }
                let (share, at) = map.enforce.value_and_span()?;
                Mode::EnforceFor(self.ok_or_report(at, share.parse())?)
            }
        })
    }
}

pub(super) fn algorithm_from_field(name: &Field<AlgorithmSpec>) -> Option<Algorithm> {
    name.get().map(|AlgorithmSpec(algorithm)| *algorithm)
}
