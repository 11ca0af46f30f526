//! Tests of connections to Redis with passwords, users, databases, sockets and TLS, and of the errors if a connection
//! fails.

mod rights;

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slidegate::store::{Hit, Key, Scope, Value};
use slidegate::{Algorithm, Limit, Store, StoreError};
use slidegate_redis::{ClientCertificate, ConnectError, RedisSettings, RedisStore};
use tracing_subscriber::fmt::MakeWriter;

use crate::server::{Folder, LONG, Redis, free_port};

/// Takes one unit of a limit, and returns the number of units that remain.
async fn take_one_unit(store: &RedisStore) -> Result<u64, StoreError> {
    let scope = Scope::new("access", "rule", "limit", &["client"]);
    let limit = Limit::new("10/h".parse().unwrap(), Algorithm::SlidingLog).unwrap();
    let key = Key::new(&scope, &[Value::Text("all")]);
    let hit = Hit::new(key, &limit, 1);
    Ok(store.charge_async(&[hit]).await?.outcomes[0].remaining())
}

fn settings_with_long_timeout() -> RedisSettings {
    RedisSettings { timeout: LONG, ..RedisSettings::default() }
}

async fn open_store_and_take_one_unit(
    address: &str,
    settings: RedisSettings,
) -> Result<u64, StoreError> {
    take_one_unit(&RedisStore::open(address, settings).unwrap()).await
}

#[tokio::test]
async fn store_connects_with_password() {
    let redis = Redis::with_args(&["--requirepass", "se cret/@:1"]);
    let address = redis.address().replace("//", "//:se%20cret%2F%40%3A1@");
    assert_eq!(open_store_and_take_one_unit(&address, settings_with_long_timeout()).await, Ok(9));
}

#[tokio::test]
async fn store_uses_database_number_of_address() {
    let redis = Redis::start();
    assert_eq!(
        open_store_and_take_one_unit(
            &format!("{}3", redis.address()),
            settings_with_long_timeout()
        )
        .await,
        Ok(9)
    );
    assert!(redis.keys().is_empty(), "none in database 0");
    let mut third = redis.connection();
    redis::cmd("SELECT").arg(3).exec(&mut third).unwrap();
    let keys: u64 = redis::cmd("DBSIZE").query(&mut third).unwrap();
    assert_eq!(keys, 1);
}

#[tokio::test]
async fn store_connects_over_unix_socket() {
    let redis = Redis::start();
    assert_eq!(
        open_store_and_take_one_unit(&redis.unix_socket_address(), settings_with_long_timeout())
            .await,
        Ok(9)
    );
}

/// Creates a private certificate authority and a server certificate that it signs, and writes both to files.
fn write_certificates(folder: &Folder) {
    let write = |name: &str, text: String| std::fs::write(folder.file(name), text).unwrap();
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    write("ca.pem", authority.self_signed(&authority_key).unwrap().pem());
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let server_key = rcgen::KeyPair::generate().unwrap();
    let server = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    write("server.pem", server.signed_by(&server_key, &issuer).unwrap().pem());
    write("server.key", server_key.serialize_pem());
    let client_key = rcgen::KeyPair::generate().unwrap();
    let mut client = rcgen::CertificateParams::new(Vec::new()).unwrap();
    // OpenSSL takes a certificate whose subject is the name of its issuer as self-signed.
    client.distinguished_name.push(rcgen::DnType::CommonName, "slidegate");
    write("client.pem", client.signed_by(&client_key, &issuer).unwrap().pem());
    write("client.key", client_key.serialize_pem());
}

#[tokio::test]
async fn tls_connection_requires_trusted_authority() {
    let folder = Folder::new();
    write_certificates(&folder);
    let port = free_port();
    let file = |name: &str| folder.file(name);
    let _redis = start_tls_redis(&folder, "server", "ca", port, "no");
    let address = format!("rediss://localhost:{port}/");
    let trusting =
        RedisSettings { ca_file: Some(file("ca.pem").into()), ..settings_with_long_timeout() };
    assert_eq!(open_store_and_take_one_unit(&address, trusting).await, Ok(9));
    let timeout = Duration::from_millis(500);
    let error = open_store_and_take_one_unit(
        &address,
        RedisSettings { timeout, ..RedisSettings::default() },
    )
    .await
    .unwrap_err();
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
}

#[tokio::test]
async fn redis_that_requires_client_certificate_accepts_it() {
    let folder = Folder::new();
    write_certificates(&folder);
    write_own_authority(&folder, "other", 4000);
    let port = free_port();
    let file = |name: &str| folder.file(name);
    let _redis = start_tls_redis(&folder, "server", "ca", port, "yes");
    let address = format!("rediss://localhost:{port}/");
    let settings = |certificate: Option<(&str, &str)>, timeout| RedisSettings {
        ca_file: Some(file("ca.pem").into()),
        client_certificate: certificate.map(|(cert, key)| ClientCertificate {
            cert_file: file(cert).into(),
            key_file: file(key).into(),
        }),
        timeout,
        ..RedisSettings::default()
    };
    let valid = Some(("client.pem", "client.key"));
    assert_eq!(open_store_and_take_one_unit(&address, settings(valid, LONG)).await, Ok(9));
    for rejected in [None, Some(("other.pem", "other.key"))] {
        let settings = settings(rejected, Duration::from_millis(500));
        assert!(open_store_and_take_one_unit(&address, settings).await.is_err(), "{rejected:?}");
    }
    for (address, certificate, cause) in [
        (&*address, ("client.pem", "other.key"), "client certificate"),
        (&address, ("none.pem", "other.key"), "none.pem"),
        (&address, ("client.pem", "client.pem"), "client.pem"),
        ("redis://localhost", ("client.pem", "client.key"), "which begins with rediss"),
    ] {
        let settings = settings(Some(certificate), LONG);
        let error = RedisStore::open(address, settings).unwrap_err().to_string();
        assert!(error.contains(cause), "{certificate:?}: {error}");
    }
}

/// Creates a certificate for `localhost` that is its own certificate authority, as `openssl req -x509` does, and writes
/// it with its key to files.
fn write_own_authority(folder: &Folder, name: &str, end_year: i32) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    certificate.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    certificate.not_after = rcgen::date_time_ymd(end_year, 1, 1);
    let pem = certificate.self_signed(&key).unwrap().pem();
    std::fs::write(folder.file(&format!("{name}.pem")), pem).unwrap();
    std::fs::write(folder.file(&format!("{name}.key")), key.serialize_pem()).unwrap();
}

/// Starts a Redis with TLS on `port`, with the certificate `name.pem` and its key. Clients whose certificate is of the
/// authority `ca` are accepted; `auth_clients` is `yes` if clients need a certificate, else `no`.
fn start_tls_redis(folder: &Folder, name: &str, ca: &str, port: u16, auth_clients: &str) -> Redis {
    let file = |name: &str, suffix| folder.file(&format!("{name}.{suffix}"));
    Redis::with_args(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &file(name, "pem"),
        "--tls-key-file",
        &file(name, "key"),
        "--tls-ca-cert-file",
        &file(ca, "pem"),
        "--tls-auth-clients",
        auth_clients,
    ])
}

#[tokio::test]
async fn certificate_that_is_its_own_authority_is_pinned() {
    let folder = Folder::new();
    for (name, end_year) in [("own", 4000), ("other", 4000), ("expired", 2001)] {
        write_own_authority(&folder, name, end_year);
    }
    let (port, expired_port) = (free_port(), free_port());
    let _redis = start_tls_redis(&folder, "own", "own", port, "no");
    let _expired = start_tls_redis(&folder, "expired", "expired", expired_port, "no");
    let take = async |host: &str, port: u16, name: &str, timeout: Duration| {
        let ca_file = Some(folder.file(&format!("{name}.pem")).into());
        let settings = RedisSettings { ca_file, timeout, ..RedisSettings::default() };
        open_store_and_take_one_unit(&format!("rediss://{host}:{port}/"), settings).await
    };
    assert_eq!(take("localhost", port, "own", LONG).await, Ok(9));
    for (host, port, name, cause) in [
        ("127.0.0.1", port, "own", "not valid for name"),
        ("localhost", port, "other", "CaUsedAsEndEntity"),
        ("localhost", expired_port, "expired", "certificate expired"),
    ] {
        let error = take(host, port, name, Duration::from_millis(500)).await.unwrap_err();
        assert!(error.to_string().contains(cause), "{host} {name}: {error}");
    }
}

#[tokio::test]
async fn store_open_fails_with_unusable_certificate_file() {
    let folder = Folder::new();
    std::fs::write(folder.file("not.pem"), "-----BEGIN CERTIFICATE-----\n?").unwrap();
    for (address, name) in
        [("rediss://h", "missing.pem"), ("rediss://h", "not.pem"), ("redis://h", "not.pem")]
    {
        let ca_file = Some(Path::new(&folder.file(name)).to_owned());
        let error =
            RedisStore::open(address, RedisSettings { ca_file, ..settings_with_long_timeout() })
                .unwrap_err();
        assert!(matches!(error, ConnectError::Ca { .. }), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

/// A log writer that keeps its text in memory.
#[derive(Clone, Default)]
struct InMemoryLogWriter(Arc<Mutex<Vec<u8>>>);

impl Write for InMemoryLogWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for InMemoryLogWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn wrong_password_is_absent_from_errors_and_log() {
    let log = InMemoryLogWriter::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let redis = Redis::with_args(&["--requirepass", "right"]);
    let timeout = Duration::from_millis(200);
    for user in ["//:wr0ng@", "//gate:wr0ng@", "//"] {
        let address = redis.address().replace("//", user);
        let store =
            RedisStore::open(&address, RedisSettings { timeout, ..RedisSettings::default() })
                .unwrap();
        for _ in 0..7 {
            let error = take_one_unit(&store).await.unwrap_err();
            if error != StoreError::BreakerOpen {
                let text = error.to_string().to_lowercase();
                assert!(text.contains("auth"), "{text}");
                assert!(!text.contains("wr0ng"), "{text}");
            }
        }
        assert!(store.is_breaker_open());
        let reason = store.unreachable_reason().unwrap().to_string();
        // Without a password, Redis accepts the connection and rejects each call.
        assert!(user == "//" || reason.contains("correct the user"), "{reason}");
        assert!(!reason.contains("wr0ng"), "{reason}");
        assert!(!format!("{store:?}").contains("wr0ng"));
    }
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.matches("circuit breaker opened").count(), 3, "{text}");
    assert!(!text.contains("wr0ng"), "{text}");
}

/// A library logs a foreign value without the values of clients. A server logs the key itself.
#[tokio::test]
async fn foreign_value_is_logged_once_without_client_values() {
    let log = InMemoryLogWriter::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let redis = Redis::start();
    for logs_foreign_values in [true, false] {
        let settings = RedisSettings { logs_foreign_values, ..settings_with_long_timeout() };
        let store = RedisStore::open(&redis.address(), settings).unwrap();
        redis.command(&["FLUSHALL"]);
        take_one_unit(&store).await.unwrap();
        let key = redis.keys().remove(0);
        redis.command(&["SET", &key, "foreign"]);
        for _ in 0..5 {
            let error = take_one_unit(&store).await.unwrap_err();
            assert_eq!(
                (error.class(), error.keys_with_foreign_values()),
                ("foreign", Some(&*key)),
                "{error}"
            );
            assert!(error.to_string().contains(error.remedy()), "{error}");
        }
        assert!(!store.is_breaker_open());
    }
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("class=\"foreign\"")).collect();
    assert!(
        matches!(&lines[..], [line] if line.contains("keys=\"slidegate:access:rule:\"")),
        "{text}"
    );
    assert!(lines[0].contains("remedy=\"delete the key"), "{text}");
    assert!(!text.contains("client="), "{text}");
}

#[tokio::test]
async fn invalid_address_error_has_no_password() {
    for address in
        ["http://:s3cret@h/", "redis://:s3cret@h:port/", "s3cret", "unix:", "redis://u:s3cret@"]
    {
        let Err(error) = RedisStore::open(address, RedisSettings::default()) else {
            panic!("`{address}` is an address");
        };
        assert!(address == "s3cret" || !error.to_string().contains("s3cret"), "{error}");
    }
}
