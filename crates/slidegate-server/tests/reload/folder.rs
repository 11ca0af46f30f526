//! A folder with a policy file, and a server that reloads the policy when it changes.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::client::Client;
use crate::common::{Server, slidegate_command};

/// A temporary folder with a policy. It is removed when dropped.
pub struct PolicyFolder(PathBuf);

impl PolicyFolder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("reload-{}-{nth}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Creates a folder with a `policy.yaml`.
    pub fn with_policy(policy: &str) -> Self {
        let folder = Self::new();
        folder.write(policy);
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn policy(&self) -> PathBuf {
        self.path("policy.yaml")
    }

    /// Writes the policy in place.
    pub fn write(&self, text: &str) {
        fs::write(self.policy(), text).unwrap();
    }

    /// Writes the beginning of the policy in place, and returns the open file.
    pub fn begin_write(&self, text: &str) -> File {
        let mut file = File::create(self.policy()).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    /// Replaces the policy atomically by a new file.
    pub fn replace_file(&self, text: &str) {
        let new = self.path(".policy.yaml.new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.policy()).unwrap();
    }

    /// Updates the policy as the kubelet updates a ConfigMap: it writes a new folder, swaps a link to the folder, and
    /// removes the old folder.
    pub fn mount_config_map(&self, version: &str, text: &str) {
        let (folder, data) = (format!("..2026_{version}"), self.path("..data"));
        let old = fs::read_link(&data);
        fs::create_dir(self.path(&folder)).unwrap();
        fs::write(self.path(&folder).join("policy.yaml"), text).unwrap();
        symlink(&folder, self.path("..data_tmp")).unwrap();
        fs::rename(self.path("..data_tmp"), data).unwrap();
        match old {
            Ok(old) => fs::remove_dir_all(self.path(old.to_str().unwrap())).unwrap(),
            Err(_) => symlink("..data/policy.yaml", self.policy()).unwrap(),
        }
    }

    /// Starts a server with the policy of this folder.
    pub fn serve(&self, flags: &[&str]) -> ReloadingServer {
        self.serve_path(&self.policy(), flags)
    }

    /// Starts a server with the policy at a path.
    pub fn serve_path(&self, path: &Path, flags: &[&str]) -> ReloadingServer {
        let mut command = slidegate_command();
        command.arg("serve").arg("--policy").arg(path).args(["--http", "127.0.0.1:0"]);
        ReloadingServer::new(Server::spawn(command.args(["--admin", "127.0.0.1:0"]).args(flags)))
    }
}

impl Drop for PolicyFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A running server whose policy changes.
pub struct ReloadingServer {
    pub process: Server,
    pub client: Client,
    admin: Client,
}

impl ReloadingServer {
    pub fn new(process: Server) -> Self {
        let (client, admin) = (Client::new(&process), Client::with_address(process.admin()));
        Self { process, client, admin }
    }

    /// Checks a request of the tenant `acme`, and returns the remaining units of the binding limit, or `None` if no
    /// rule applies.
    pub fn check_remaining(&self) -> Option<u64> {
        let response = self.client.check(&json!({"attributes": {"tenant": "acme"}}));
        assert!([200, 429].contains(&response.status), "{}", response.body);
        response.json()["remaining"].as_u64()
    }

    /// Returns the sum of the series whose lines begin with a prefix.
    pub fn metric(&self, prefix: &str) -> u64 {
        let metrics = self.admin.call("GET", "/metrics").body;
        let values = metrics
            .lines()
            .filter_map(|line| line.strip_prefix(prefix)?.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum::<f64>() as u64
    }

    pub fn reloads(&self, result: &str) -> u64 {
        self.metric(&format!("slidegate_policy_reloads_total{{result=\"{result}\"}}"))
    }

    /// Returns the policy status of `/readyz`. The server must be ready in any case.
    pub fn policy_status(&self) -> Value {
        let response = self.admin.call("GET", "/readyz");
        assert_eq!((response.status, &response.json()["ready"]), (200, &json!(true)));
        response.json()["policy"].clone()
    }

    /// Waits until a changed policy is active.
    #[track_caller]
    pub fn wait_for_reload(&self) {
        self.process.wait_for_log("the policy has changed");
        assert_eq!(self.policy_status()["problem"], Value::Null);
        assert_eq!(self.metric("slidegate_policy_stale"), 0);
    }

    /// Waits until a file is rejected, and returns the problem that `/readyz` reports.
    #[track_caller]
    pub fn wait_for_rejection(&self) -> String {
        self.process.wait_for_log("policy reload failed");
        assert_eq!(self.metric("slidegate_policy_stale"), 1);
        self.policy_status()["problem"].as_str().unwrap().to_owned()
    }
}
