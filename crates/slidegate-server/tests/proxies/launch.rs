//! Starts nginx, Caddy, Traefik and HAProxy with their files of `deploy/`.

use std::net::SocketAddr;
use std::process::Command;

use crate::installed;
use crate::process::{Proxy, deploy, free_address};
use crate::servers::Folder;

/// The servers behind a proxy.
pub struct Behind {
    pub slidegate: SocketAddr,
    pub service: SocketAddr,
    /// Text of the proxy's file in `deploy/`, and what replaces it.
    pub edits: &'static [(&'static str, &'static str)],
}

impl Behind {
    /// Writes a file of `deploy/` that has these addresses in it.
    fn deploy(&self, folder: &Folder, file: &str, places: &[(&str, &str)]) -> String {
        let (slidegate, service) = (self.slidegate.to_string(), self.service.to_string());
        let both = [("127.0.0.1:8080", &*slidegate), ("127.0.0.1:9000", &*service)];
        deploy(folder, file, &[self.edits, &both, places].concat())
    }
}

/// Starts it with the file of `deploy/`.
pub fn nginx(behind: &Behind) -> Proxy {
    let (folder, address) = (Folder::new(), free_address());
    let site = behind.deploy(
        &folder,
        "nginx/slidegate.conf",
        &[("listen 80;", &format!("listen {address};"))],
    );
    let at = folder.path().to_str().unwrap();
    // What Debian's nginx.conf has around it; one process, so that none outlives it.
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {at}/{kind};"))
        .join(" ");
    let whole = format!(
        "daemon off; master_process off; pid {at}/pid; error_log {at}/error.log;\n\
         events {{}}\nhttp {{ access_log off; {temporary} include {site}; }}\n"
    );
    let config = folder.path().join("nginx.conf");
    std::fs::write(&config, whole).unwrap();
    let mut command = Command::new(installed("debian/usr/sbin/nginx"));
    command.arg("-e").arg(folder.path().join("error.log")).arg("-c").arg(config);
    Proxy::start(&mut command, address, folder)
}

/// Starts it with the file of `deploy/`.
pub fn caddy(behind: &Behind) -> Proxy {
    let (folder, address) = (Folder::new(), free_address());
    let site = format!(":{} {{", address.port());
    let config = behind.deploy(&folder, "caddy/Caddyfile", &[(":80 {", &site)]);
    let mut command = Command::new(installed("caddy/bin/caddy"));
    command.args(["run", "--adapter", "caddyfile", "--config", &config]);
    command.env("HOME", folder.path()).env_remove("XDG_CONFIG_HOME").env_remove("XDG_DATA_HOME");
    command.env("CADDY_ADMIN", format!("unix/{}/admin", folder.path().display()));
    Proxy::start(&mut command, address, folder)
}

/// Starts it with the file of `deploy/`.
pub fn traefik(behind: &Behind) -> Proxy {
    let (folder, address) = (Folder::new(), free_address());
    behind.deploy(&folder, "traefik/slidegate.yml", &[]);
    let at = folder.path().to_str().unwrap();
    let places = [("/etc/traefik", at), (":80\"", &format!("{address}\""))];
    let config = deploy(&folder, "traefik/traefik.yml", &places);
    let mut command = Command::new(installed("traefik/bin/traefik"));
    command.arg(format!("--configFile={config}"));
    Proxy::start(&mut command, address, folder)
}

/// Starts it with the file of `deploy/`.
pub fn haproxy(behind: &Behind) -> Proxy {
    let (folder, address) = (Folder::new(), free_address());
    deploy(&folder, "haproxy/slidegate.lua", &[]);
    let at = folder.path().to_str().unwrap();
    let places = [("/etc/haproxy", at), ("bind :80", &format!("bind {address}"))];
    let config = behind.deploy(&folder, "haproxy/haproxy.cfg", &places);
    let mut command = Command::new(installed("debian/usr/sbin/haproxy"));
    command.args(["-db", "-f", &config]);
    Proxy::start(&mut command, address, folder)
}
