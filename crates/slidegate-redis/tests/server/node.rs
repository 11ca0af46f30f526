//! A Redis server that takes part in replication, with access to its replication offsets.

use std::ops::{Deref, DerefMut};

use slidegate::Timestamp;
use slidegate::clock::{Clock, SystemClock};

use super::{Folder, Redis, wait_until};

/// A server with a log file.
pub struct Node {
    redis: Redis,
    log: String,
}

impl Node {
    /// Starts a server whose files are in a folder. `args` creates its arguments for each attempt to start it.
    pub fn start(folder: &Folder, name: &str, mut args: impl FnMut() -> Vec<String>) -> Self {
        let home = folder.file(name);
        std::fs::create_dir(&home).unwrap();
        let log = format!("{home}/log");
        let common = ["--dir", &home, "--logfile", &log, "--loglevel", "notice"]
            // No other replica will need the same copy soon.
            .into_iter()
            .chain(["--repl-diskless-sync-delay", "0"]);
        let common: Vec<String> = common.map(str::to_owned).collect();
        let redis = Redis::with_config(None, || [common.clone(), args()].concat());
        Self { redis, log }
    }

    pub fn is_master(&self) -> bool {
        self.info("role").is_some_and(|role| role == "master")
    }

    /// Returns `true` if the replica is connected to its master and has received the initial copy.
    pub fn is_in_sync(&self) -> bool {
        self.info("master_link_status").is_some_and(|status| status == "up")
    }

    /// Returns a field of `INFO replication`, or `None` if the server does not respond.
    pub fn info(&self, name: &str) -> Option<String> {
        let mut connection = self.try_connection().ok()?;
        let info: String = redis::cmd("INFO").arg("replication").query(&mut connection).ok()?;
        field(&info, name).map(str::to_owned)
    }

    fn read_numeric_info_field(&self, name: &str) -> u64 {
        self.info(name).and_then(|number| number.parse().ok()).unwrap()
    }

    /// Returns the replication offset in bytes: the number of bytes that a master has written for its replicas, or that
    /// a replica has applied.
    pub fn offset(&self) -> u64 {
        self.read_numeric_info_field("master_repl_offset")
    }

    /// Returns the replication offset at which the server became a master: the number of bytes of its former master
    /// that it had applied.
    pub fn offset_at_promotion(&self) -> u64 {
        self.read_numeric_info_field("second_repl_offset") - 1
    }

    /// Waits until the server is a master, and polls it continuously. Returns the time of the first poll that finds
    /// this.
    pub fn wait_until_promoted(&self, clock: &SystemClock) -> Timestamp {
        let mut connection = self.try_connection();
        wait_until("the node is a master", || {
            let role = connection
                .as_mut()
                .ok()
                .and_then(|connection| query_replication_role(connection).ok());
            if role.is_none() {
                // Sentinel closes all connections of a server that it promotes.
                connection = self.try_connection();
            }
            role.is_some_and(|role| role == "master")
        });
        clock.now()
    }

    /// Kills the server and returns its replication offset. A script first blocks the server, so that it executes no
    /// command after this offset.
    pub fn kill_at_known_offset(&mut self) -> u64 {
        const FINAL_OFFSET_LOG_PREFIX: &str = "the final offset is ";
        let halt = format!(
            "local info = redis.call('INFO', 'replication')
            redis.log(redis.LOG_WARNING, '{FINAL_OFFSET_LOG_PREFIX}' .. info:match('master_repl_offset:(%d+)'))
            while true do end"
        );
        let entries_before = self.log_texts_after_words(FINAL_OFFSET_LOG_PREFIX).len();
        let mut connection = self.connection();
        let halt = redis::cmd("EVAL").arg(halt).arg(0).get_packed_command();
        connection.send_packed_command(&halt).unwrap();
        wait_until("the offset is logged", || {
            self.log_texts_after_words(FINAL_OFFSET_LOG_PREFIX).len() > entries_before
        });
        self.kill();
        self.log_texts_after_words(FINAL_OFFSET_LOG_PREFIX).pop().unwrap().trim().parse().unwrap()
    }

    /// Returns the replication offset of a former master when it first requested to replicate from its new master.
    pub fn offset_at_demotion(&self) -> u64 {
        const RESYNCHRONIZATION_LOG_PREFIX: &str = "Trying a partial resynchronization (request ";
        wait_until("the node replicates from another", || {
            !self.log_texts_after_words(RESYNCHRONIZATION_LOG_PREFIX).is_empty()
        });
        let request = self.log_texts_after_words(RESYNCHRONIZATION_LOG_PREFIX).remove(0);
        // The next missing byte: `id:offset).`
        let (_, next) = request.split_once(':').unwrap();
        next.trim_end_matches(").").parse::<u64>().unwrap() - 1
    }

    /// Finds the log lines that contain `words`. Returns the rest of each of these lines, after the words.
    fn log_texts_after_words(&self, words: &str) -> Vec<String> {
        let log = std::fs::read_to_string(&self.log).unwrap();
        let behind = log.lines().filter_map(|line| Some(line.split_once(words)?.1.to_owned()));
        // An incomplete line has no line end yet.
        if log.ends_with('\n') { behind.collect() } else { Vec::new() }
    }

    /// Clears the log file.
    pub fn clear_log(&self) {
        std::fs::write(&self.log, "").unwrap();
    }
}

impl Deref for Node {
    type Target = Redis;

    fn deref(&self) -> &Redis {
        &self.redis
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut Redis {
        &mut self.redis
    }
}

fn query_replication_role(connection: &mut redis::Connection) -> redis::RedisResult<String> {
    let role: Vec<redis::Value> = redis::cmd("ROLE").query(connection)?;
    redis::from_redis_value(role.into_iter().next().unwrap_or(redis::Value::Nil))
        .map_err(Into::into)
}

/// Returns the value of a field in the response to `INFO`, or `None` if the field is missing.
pub fn field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}
