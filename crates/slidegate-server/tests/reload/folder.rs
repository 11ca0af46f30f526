//! A folder with a policy, and a server that follows it.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::client::Client;
use crate::common::{Server, slidegate};

/// A folder that goes when it is dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("reload-{}-{nth}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A folder with this as its `policy.yaml`.
    pub fn with(policy: &str) -> Self {
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

    /// Begins to write the policy in place.
    pub fn begin(&self, text: &str) -> File {
        let mut file = File::create(self.policy()).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    /// Puts a file in the place of the policy, in one step.
    pub fn put(&self, text: &str) {
        let new = self.path(".policy.yaml.new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.policy()).unwrap();
    }

    /// Mounts the policy as the kubelet does a ConfigMap: all of it in a new folder, then one link is swapped,
    /// then the old folder goes.
    pub fn mount(&self, version: &str, text: &str) {
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

    /// A server with this policy.
    pub fn serve(&self, flags: &[&str]) -> Followed {
        self.serve_path(&self.policy(), flags)
    }

    /// A server with the policy at a path.
    pub fn serve_path(&self, path: &Path, flags: &[&str]) -> Followed {
        let mut command = slidegate();
        command.arg("serve").arg("--policy").arg(path).args(["--http", "127.0.0.1:0"]);
        Followed::by(Server::spawn(command.args(["--admin", "127.0.0.1:0"]).args(flags)))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server whose policy changes.
pub struct Followed {
    pub server: Server,
    pub client: Client,
    admin: Client,
}

impl Followed {
    pub fn by(server: Server) -> Self {
        let (client, admin) = (Client::new(&server), Client::with_address(server.admin()));
        Self { server, client, admin }
    }

    /// Units that a check of `acme` leaves of the limit that it hangs on; none if no rule applies.
    pub fn left(&self) -> Option<u64> {
        let answer = self.client.check(&json!({"attributes": {"tenant": "acme"}}));
        assert!([200, 429].contains(&answer.status), "{}", answer.body);
        answer.json()["remaining"].as_u64()
    }

    /// A sum of metrics whose lines begin so.
    pub fn metric(&self, begin: &str) -> u64 {
        let metrics = self.admin.call("GET", "/metrics").body;
        let values = metrics
            .lines()
            .filter_map(|line| line.strip_prefix(begin)?.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum::<f64>() as u64
    }

    pub fn reloads(&self, result: &str) -> u64 {
        self.metric(&format!("slidegate_policy_reloads_total{{result=\"{result}\"}}"))
    }

    /// What `/readyz` says of the policy. It is ready whatever that is.
    pub fn policy(&self) -> Value {
        let answer = self.admin.call("GET", "/readyz");
        assert_eq!((answer.status, &answer.json()["ready"]), (200, &json!(true)));
        answer.json()["policy"].clone()
    }

    /// Waits until another policy holds.
    #[track_caller]
    pub fn await_change(&self) {
        self.server.wait_for_log("the policy has changed");
        assert_eq!(self.policy()["problem"], Value::Null);
        assert_eq!(self.metric("slidegate_policy_stale"), 0);
    }

    /// Waits until a file was refused: the problem, which is in the log, too.
    #[track_caller]
    pub fn await_refusal(&self) -> String {
        self.server.wait_for_log("policy reload failed");
        assert_eq!(self.metric("slidegate_policy_stale"), 1);
        self.policy()["problem"].as_str().unwrap().to_owned()
    }
}
