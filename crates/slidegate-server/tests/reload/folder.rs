//! A folder with a policy file, and a server that reloads the policy when the file changes.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::common::{Server, slidegate_command};
use crate::http::client::Client;

/// A temporary folder for a policy file. The folder is removed when the value is dropped.
pub struct PolicyFolder(PathBuf);

impl PolicyFolder {
    pub fn new() -> Self {
        static NEXT_POLICY_FOLDER_NUMBER: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT_POLICY_FOLDER_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("reload-{}-{nth}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Creates a folder with the file `policy.yaml`, which contains this policy.
    pub fn with_policy(policy: &str) -> Self {
        let folder = Self::new();
        folder.overwrite_policy(policy);
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn policy_path(&self) -> PathBuf {
        self.path("policy.yaml")
    }

    /// Overwrites the existing policy file, in contrast to [`Self::replace_file`], which creates a new file.
    pub fn overwrite_policy(&self, text: &str) {
        fs::write(self.policy_path(), text).unwrap();
    }

    /// Overwrites the policy file with only the first part of a policy, and returns the open file.
    pub fn begin_write(&self, text: &str) -> File {
        let mut file = File::create(self.policy_path()).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    /// Replaces the policy file atomically: writes a new file and renames it.
    pub fn replace_file(&self, text: &str) {
        let new = self.path(".policy.yaml.new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.policy_path()).unwrap();
    }

    /// Updates the policy file as the kubelet updates a mounted ConfigMap: creates a new folder with the file,
    /// redirects a symbolic link to the new folder, and removes the old folder.
    pub fn mount_config_map(&self, version: &str, text: &str) {
        let (folder, data) = (format!("..2026_{version}"), self.path("..data"));
        let old = fs::read_link(&data);
        fs::create_dir(self.path(&folder)).unwrap();
        fs::write(self.path(&folder).join("policy.yaml"), text).unwrap();
        symlink(&folder, self.path("..data_tmp")).unwrap();
        fs::rename(self.path("..data_tmp"), data).unwrap();
        match old {
            Ok(old) => fs::remove_dir_all(self.path(old.to_str().unwrap())).unwrap(),
            Err(_) => symlink("..data/policy.yaml", self.policy_path()).unwrap(),
        }
    }

    /// Starts a server with the policy file in this folder.
    pub fn start_server(&self, flags: &[&str]) -> ReloadingServer {
        self.start_server_with_path(&self.policy_path(), flags)
    }

    /// Starts a server with the policy file at `path`.
    pub fn start_server_with_path(&self, path: &Path, flags: &[&str]) -> ReloadingServer {
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

/// A running server whose policy file changes during the test.
pub struct ReloadingServer {
    pub process: Server,
    pub client: Client,
    admin: Client,
}

impl ReloadingServer {
    pub fn new(process: Server) -> Self {
        let (client, admin) =
            (Client::new(&process), Client::with_address(process.admin_address()));
        Self { process, client, admin }
    }

    /// Sends a check request of the tenant `acme`. Returns the remaining units of the binding limit, or `None` if no
    /// rule applies.
    pub fn check_remaining(&self) -> Option<u64> {
        let response = self.client.check(&json!({"attributes": {"tenant": "acme"}}));
        assert!([200, 429].contains(&response.status), "{}", response.body);
        response.json()["remaining"].as_u64()
    }

    /// Returns the sum of all metric values whose line in `/metrics` begins with `prefix`.
    pub fn metric_sum(&self, prefix: &str) -> u64 {
        let metrics = self.admin.call("GET", "/metrics").body;
        let values = metrics
            .lines()
            .filter_map(|line| line.strip_prefix(prefix)?.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum::<f64>() as u64
    }

    pub fn reload_count(&self, result: &str) -> u64 {
        self.metric_sum(&format!("slidegate_policy_reloads_total{{result=\"{result}\"}}"))
    }

    /// Returns the field `policy` of the response of `/readyz`. Panics if the server is not ready.
    pub fn policy_status(&self) -> Value {
        let response = self.admin.call("GET", "/readyz");
        assert_eq!((response.status, &response.json()["ready"]), (200, &json!(true)));
        response.json()["policy"].clone()
    }

    /// Waits until the server has logged that a changed policy is active.
    #[track_caller]
    pub fn wait_for_reload(&self) {
        self.process.wait_for_log("the policy has changed");
        assert_eq!(self.policy_status()["problem"], Value::Null);
        assert_eq!(self.metric_sum("slidegate_policy_stale"), 0);
    }

    /// Waits until the server has rejected a policy file, and returns the problem that `/readyz` reports.
    #[track_caller]
    pub fn wait_for_rejection(&self) -> String {
        self.process.wait_for_log("policy reload failed");
        assert_eq!(self.metric_sum("slidegate_policy_stale"), 1);
        self.policy_status()["problem"].as_str().unwrap().to_owned()
    }
}
