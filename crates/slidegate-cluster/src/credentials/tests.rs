use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::TrustAnchor;

use super::*;

/// A certificate with one name that has signed itself, and its key.
fn self_signed(name: &str) -> Certificates {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new([name.to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    Certificates {
        chain_pem: certificate.clone().into(),
        key_pem: key.serialize_pem().into(),
        ca_pem: certificate.into(),
        name: name.to_owned(),
    }
}

#[test]
fn unusable_certificates_have_errors() {
    let valid = self_signed(DEFAULT_CERTIFICATE_NAME);
    assert_eq!(valid.check(), Ok(()));
    let other = self_signed(DEFAULT_CERTIFICATE_NAME);
    let broken_base64 = b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n".to_vec();
    let no_certificate = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec();
    let name = |name: &str| Certificates { name: name.to_owned(), ..valid.clone() };
    let chain = |chain_pem| Certificates { chain_pem, ..valid.clone() };
    let ca = |ca_pem| Certificates { ca_pem, ..valid.clone() };
    let key = |key_pem| Certificates { key_pem, ..valid.clone() };
    let cases = [
        (chain(Vec::new()), "the certificate has no certificate in PEM;"),
        (chain(valid.key_pem.clone()), "the certificate has no certificate in PEM;"),
        (chain(broken_base64.clone()), "the certificate has no certificate in PEM ("),
        (chain(no_certificate.clone()), "the certificate cannot be used: "),
        (ca(Vec::new()), "the CA has no usable certificate in PEM;"),
        (ca(valid.key_pem.clone()), "the CA has no usable certificate in PEM;"),
        (ca(broken_base64), "the CA has no usable certificate in PEM ("),
        (ca(no_certificate), "the CA has no usable certificate in PEM ("),
        (key(Vec::new()), "the key has no private key in PEM: "),
        (key(valid.chain_pem.clone()), "the key has no private key in PEM: "),
        (key(other.key_pem), "the certificate cannot be used: "),
        (name("not a name"), "`not a name` is not a DNS name;"),
        (name(""), "`` is not a DNS name;"),
        (name("other"), "the certificate is not valid for the DNS name `other`,"),
    ];
    for (certificates, expected) in cases {
        let error = certificates.check().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}; expected {expected}");
    }
}

#[test]
fn unusable_keys_have_errors() {
    let error = |keys: &[&str]| {
        let keys = keys.iter().copied().map(str::to_owned).collect();
        NodeTls::new(&Credentials::Keys(keys)).unwrap_err()
    };
    let key = "a key of 20 letters.";
    assert_eq!(error(&[]), CredentialsError::KeyCount(0));
    assert_eq!(error(&[key, key, key]), CredentialsError::KeyCount(3));
    assert_eq!(error(&["short"]), CredentialsError::ShortKey(5));
    assert_eq!(error(&[key, &key[..15]]), CredentialsError::ShortKey(15));
}

/// Nodes of different versions must derive the same values, so the expected ones never change. They were computed with
/// Python and OpenSSL: the name and the public key of the authority, and the key of fingerprints.
#[test]
fn derived_secrets_are_same_in_each_version() {
    let key = "a key that never changes";
    let mut roots = RootCertStore::empty();
    roots.add(derive_authority(key).unwrap().certificate).unwrap();
    let TrustAnchor { subject, subject_public_key_info, .. } = &roots.roots[0];
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(subject), "311e301c06035504030c15736c6964656761746520636c7573746572206b6579");
    assert_eq!(
        hex(subject_public_key_info),
        "300506032b65700321001795344b894319ea2fa03d2e85e3734a45d1b353ec77cfce00b11e26877e2e34"
    );
    assert_eq!(hex(&derive_fingerprint_secret(key).unwrap()), "09f1eb73938e37ed0bb975a8195d0ffa");
}

#[test]
fn debug_output_contains_no_key() {
    let certificates = self_signed(DEFAULT_CERTIFICATE_NAME);
    assert_eq!(format!("{certificates:?}"), r#"Certificates { name: "slidegate-cluster", .. }"#);
    let keys = Credentials::Keys(vec!["a key that is secret".to_owned()]);
    assert_eq!(format!("{keys:?}"), "Keys(1)");
}
