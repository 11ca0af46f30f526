//! The authority that all nodes derive from a shared key.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519,
};
use ring::hkdf;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::{CredentialsError, signing_error};

/// Minimum length of a shared key's text, in bytes.
pub const MIN_KEY_BYTES: usize = 16;

/// Separates the derivation of the authority from other uses of the key.
const DERIVATION_LABEL: &[u8] = b"slidegate cluster: Ed25519 key of the authority, version 1";

/// The first bytes of an Ed25519 private key in PKCS #8 (RFC 8410, section 7), before its 32 secret bytes.
const ED25519_PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// An authority that signs the certificates of nodes.
pub(super) struct Authority {
    /// The certificate of the authority, identical on every node.
    pub(super) certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// Derives the authority from a shared key, identically on every node. All bytes of the text count, including white
/// space.
pub(super) fn derive_authority(shared_key: &str) -> Result<Authority, CredentialsError> {
    let mut pkcs8 = [0; ED25519_PKCS8_PREFIX.len() + 32];
    let (prefix, secret) = pkcs8.split_at_mut(ED25519_PKCS8_PREFIX.len());
    prefix.copy_from_slice(&ED25519_PKCS8_PREFIX);
    derive_secret(shared_key, DERIVATION_LABEL, secret)?;
    let key = KeyPair::try_from(&pkcs8[..]).map_err(signing_error)?;
    let params = authority_params("slidegate cluster key", 1);
    let certificate = params.self_signed(&key).map_err(signing_error)?.into();
    Ok(Authority { certificate, issuer: Issuer::new(params, key) })
}

fn authority_params(name: &str, max_intermediates: u8) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(max_intermediates));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

/// Makes a private key for a node, and the chain of its certificates. None of them is stored, so they are valid without
/// end.
///
/// An authority of the node's own signs the certificate of the node, and each of `authorities` signs a certificate of
/// that authority. So nodes with any of the shared keys trust the node. If the authorities signed each other instead,
/// nodes without the old key would still trust it.
pub(super) fn create_node_certificate(
    authorities: &[Authority],
    name: &str,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), CredentialsError> {
    let own_key = KeyPair::generate_for(&PKCS_ED25519).map_err(signing_error)?;
    let own_params = authority_params("slidegate node", 0);
    let own_certificates = authorities
        .iter()
        .map(|authority| own_params.signed_by(&own_key, &authority.issuer))
        .collect::<Result<Vec<_>, _>>()
        .map_err(signing_error)?;
    let own = Issuer::new(own_params, own_key);
    let key = KeyPair::generate_for(&PKCS_ED25519).map_err(signing_error)?;
    let mut params = CertificateParams::new([name.to_owned()]).map_err(signing_error)?;
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, &own).map_err(signing_error)?;
    let chain = std::iter::once(certificate).chain(own_certificates).map(Into::into).collect();
    Ok((chain, PrivatePkcs8KeyDer::from(key.serialize_der()).into()))
}

/// Derives secret bytes from a text of at least [`MIN_KEY_BYTES`] with HKDF-SHA-256 (RFC 5869). The label separates
/// different uses.
pub(super) fn derive_secret(
    text: &str,
    label: &[u8],
    secret: &mut [u8],
) -> Result<(), CredentialsError> {
    if text.len() < MIN_KEY_BYTES {
        return Err(CredentialsError::ShortKey(text.len()));
    }
    struct Length(usize);
    impl hkdf::KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let pseudorandom_key =
        hkdf::Salt::new(hkdf::HKDF_SHA256, b"slidegate cluster").extract(text.as_bytes());
    pseudorandom_key
        .expand(&[label], Length(secret.len()))
        .and_then(|derived| derived.fill(secret))
        .map_err(signing_error)
}
