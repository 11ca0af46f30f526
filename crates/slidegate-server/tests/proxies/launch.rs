//! Starts nginx, Caddy, Traefik and HAProxy with their configuration files in `deploy/`.

use std::net::SocketAddr;
use std::process::Command;

use crate::proxies::installed_program;
use crate::proxies::process::{Proxy, free_address, write_deploy_file};
use crate::redis_server::Folder;

/// The addresses of the servers that a proxy calls, and changes to the configuration file of the proxy.
pub struct Backends {
    pub slidegate: SocketAddr,
    pub service: SocketAddr,
    /// Texts in the configuration file of the proxy, each with its replacement.
    pub edits: &'static [(&'static str, &'static str)],
}

impl Backends {
    /// Copies a configuration file from `deploy/` into a folder, and returns the path of the copy. Replaces the
    /// addresses of slidegate and the service in the copy, and also the texts in `edits` and `replacements`.
    fn write_deploy_file(
        &self,
        folder: &Folder,
        file: &str,
        replacements: &[(&str, &str)],
    ) -> String {
        let (slidegate, service) = (self.slidegate.to_string(), self.service.to_string());
        let addresses = [("127.0.0.1:8080", &*slidegate), ("127.0.0.1:9000", &*service)];
        write_deploy_file(folder, file, &[self.edits, &addresses, replacements].concat())
    }
}

/// Starts nginx with its configuration file in `deploy/`.
pub fn start_nginx(backends: &Backends) -> Proxy {
    start_nginx_with_file(backends, "nginx/slidegate.conf")
}

/// Starts nginx with a configuration file in `deploy/`.
pub fn start_nginx_with_file(backends: &Backends, file: &str) -> Proxy {
    let (folder, address) = (Folder::new(), free_address());
    let site =
        backends.write_deploy_file(&folder, file, &[("listen 80", &format!("listen {address}"))]);
    let folder_path = folder.path().to_str().unwrap();
    // The context that Debian's nginx.conf provides. One process, so that no worker outlives the test.
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {folder_path}/{kind};"))
        .join(" ");
    let main_config = format!(
        "daemon off; master_process off; pid {folder_path}/pid; error_log {folder_path}/error.log;\n\
         events {{ worker_connections 4096; }}\nhttp {{ access_log off; {temporary} include {site}; }}\n"
    );
    let config = folder.path().join("nginx.conf");
    std::fs::write(&config, main_config).unwrap();
    let mut command = Command::new(installed_program("debian/usr/sbin/nginx"));
    command.arg("-e").arg(folder.path().join("error.log")).arg("-c").arg(config);
    Proxy::start(&mut command, address, folder)
}

/// Starts Caddy with its configuration file in `deploy/`.
pub fn start_caddy(backends: &Backends) -> Proxy {
    let (folder, address) = (Folder::new(), free_address());
    let site = format!(":{} {{", address.port());
    let config = backends.write_deploy_file(&folder, "caddy/Caddyfile", &[(":80 {", &site)]);
    let mut command = Command::new(installed_program("caddy/bin/caddy"));
    command.args(["run", "--adapter", "caddyfile", "--config", &config]);
    command.env("HOME", folder.path()).env_remove("XDG_CONFIG_HOME").env_remove("XDG_DATA_HOME");
    command.env("CADDY_ADMIN", format!("unix/{}/admin", folder.path().display()));
    Proxy::start(&mut command, address, folder)
}

/// Starts Traefik with its configuration files in `deploy/`.
pub fn start_traefik(backends: &Backends) -> Proxy {
    start_traefik_with_entry_point(backends, "")
}

/// Starts Traefik with its configuration files in `deploy/`, and these further lines in the entry point.
pub fn start_traefik_with_entry_point(backends: &Backends, lines: &str) -> Proxy {
    let (folder, address) = (Folder::new(), free_address());
    backends.write_deploy_file(&folder, "traefik/slidegate.yml", &[]);
    let folder_path = folder.path().to_str().unwrap();
    let replacements = [("/etc/traefik", folder_path), (":80\"", &format!("{address}\"{lines}"))];
    let config = write_deploy_file(&folder, "traefik/traefik.yml", &replacements);
    let mut command = Command::new(installed_program("traefik/bin/traefik"));
    command.arg(format!("--configFile={config}"));
    Proxy::start(&mut command, address, folder)
}

/// Starts HAProxy with its configuration file and Lua script in `deploy/`.
pub fn start_haproxy(backends: &Backends) -> Proxy {
    let (folder, address) = (Folder::new(), free_address());
    write_deploy_file(&folder, "haproxy/slidegate.lua", &[]);
    let folder_path = folder.path().to_str().unwrap();
    let replacements = [("/etc/haproxy", folder_path), ("bind :80", &format!("bind {address}"))];
    let config = backends.write_deploy_file(&folder, "haproxy/haproxy.cfg", &replacements);
    let mut command = Command::new(installed_program("debian/usr/sbin/haproxy"));
    command.args(["-db", "-f", &config]);
    Proxy::start(&mut command, address, folder)
}
