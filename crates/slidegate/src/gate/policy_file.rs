//! A gate that follows a policy file: it replaces its policy when the file changes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use thiserror::Error;

use super::Gate;
use crate::policy::Policy;
use crate::policy::file::PolicyErrors;
use crate::store::Store;

/// The interval at which a policy file is read.
const READ_INTERVAL: Duration = Duration::from_secs(1);

/// The reason why a policy file cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PolicyFileError {
    /// The file cannot be read.
    #[error("cannot read the policy file {path}: {source}", path = path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The policy in the file is invalid.
    #[error("the policy file {path} is invalid:\n{source}", path = path.display())]
    Invalid {
        /// The path of the file.
        path: PathBuf,
        /// The errors in the policy, with their positions.
        source: PolicyErrors,
    },
    /// The thread that follows the file cannot be started.
    #[error("cannot start the thread that reloads the policy file: {0}")]
    Thread(io::Error),
}

impl<S: Store> Gate<S> {
    /// Creates a gate that enforces the policy in a file, and replaces the policy when the file changes.
    ///
    /// A thread reads the file once per second. A change takes effect when two successive reads have found the same
    /// valid policy, so that a partly written file has no effect. `on_reload` receives the new policy, or the reason
    /// why a change was rejected; the gate then keeps its policy. The thread ends when the gate is dropped.
    ///
    /// ```no_run
    /// use slidegate::{Descriptor, Gate, MemoryStore, Request};
    ///
    /// let gate = Gate::follow_policy_file("policy.yaml", MemoryStore::new(), |reload| match reload {
    ///     Ok(policy) => println!("the policy has {} rules now", policy.rules().len()),
    ///     Err(error) => eprintln!("the policy stays: {error}"),
    /// })?;
    /// let request = Request::new("default", Descriptor::new([("ip", "203.0.113.7")]));
    /// println!("{}", gate.check(&request).is_allowed());
    /// # Ok::<(), slidegate::gate::PolicyFileError>(())
    /// ```
    ///
    /// # Errors
    /// If the file cannot be read, if its policy is invalid or has a limit that the store does not support, or if no
    /// thread can be started.
    pub fn follow_policy_file(
        path: impl AsRef<Path>,
        store: S,
        on_reload: impl FnMut(Result<&Policy, &PolicyFileError>) + Send + 'static,
    ) -> Result<Arc<Self>, PolicyFileError> {
        let path = path.as_ref().to_owned();
        let text = read_text(&path)?;
        let gate = Arc::new(Self::new(parse_policy(&path, &text, &store)?, store));
        let follower = PolicyFileWatcher {
            gate: Arc::downgrade(&gate),
            path,
            active: Some(text.clone()),
            previous_text: Some(text),
            on_reload,
        };
        thread::Builder::new()
            .name("policy-file".into())
            .spawn(|| follower.run())
            .map_err(PolicyFileError::Thread)?;
        Ok(gate)
    }
}

/// The state of the thread that follows a policy file.
struct PolicyFileWatcher<S, F> {
    gate: Weak<Gate<S>>,
    path: PathBuf,
    /// The text that was accepted or rejected last, and is not processed again; `None` if the file could not be read.
    active: Option<String>,
    /// The text of the previous read. A change takes effect if the next read has the same text. `None` if the file
    /// could not be read.
    previous_text: Option<String>,
    on_reload: F,
}

impl<S: Store, F: FnMut(Result<&Policy, &PolicyFileError>)> PolicyFileWatcher<S, F> {
    fn run(mut self) {
        loop {
            thread::sleep(READ_INTERVAL);
            let Some(gate) = self.gate.upgrade() else { return };
            self.read_and_replace_policy(&gate);
        }
    }

    fn read_and_replace_policy(&mut self, gate: &Gate<S>) {
        let read = read_text(&self.path);
        let text = read.as_ref().ok().cloned();
        let is_stable = text == self.previous_text;
        self.previous_text.clone_from(&text);
        if !is_stable || text == self.active {
            return;
        }
        self.active = text;
        let policy = read.and_then(|text| parse_policy(&self.path, &text, gate.store()));
        if let Ok(policy) = &policy {
            gate.replace_policy(policy.clone());
        }
        (self.on_reload)(policy.as_ref());
    }
}

fn read_text(path: &Path) -> Result<String, PolicyFileError> {
    fs::read_to_string(path).map_err(|source| PolicyFileError::Read { path: path.into(), source })
}

fn parse_policy(path: &Path, text: &str, store: &impl Store) -> Result<Policy, PolicyFileError> {
    Policy::from_yaml_for(text, |limit| store.supports(limit))
        .map_err(|source| PolicyFileError::Invalid { path: path.into(), source })
}
