//! One of several servers that copy from each other, and what it says of how far it has come.

use std::ops::{Deref, DerefMut};

use slidegate::{Clock, SystemClock, Timestamp};

use super::{Folder, Redis, wait_until};

/// A server with a log.
pub struct Node {
    redis: Redis,
    log: String,
}

impl Node {
    /// One whose files are in a folder, under a name. Its arguments are made anew for each attempt.
    pub fn start(folder: &Folder, name: &str, mut args: impl FnMut() -> Vec<String>) -> Self {
        let home = folder.file(name);
        std::fs::create_dir(&home).unwrap();
        let log = format!("{home}/log");
        let common = ["--dir", &home, "--logfile", &log, "--loglevel", "notice"]
            // Nobody else will want the same copy soon.
            .into_iter()
            .chain(["--repl-diskless-sync-delay", "0"]);
        let common: Vec<String> = common.map(str::to_owned).collect();
        let redis = Redis::with_config(None, || [common.clone(), args()].concat());
        Self { redis, log }
    }

    pub fn is_master(&self) -> bool {
        self.info("role").is_some_and(|role| role == "master")
    }

    /// Whether it copies, and has begun with all that there was.
    pub fn is_in_sync(&self) -> bool {
        self.info("master_link_status").is_some_and(|status| status == "up")
    }

    /// A field of `INFO replication`, if it answers.
    pub fn info(&self, name: &str) -> Option<String> {
        let mut connection = self.try_connection().ok()?;
        let info: String = redis::cmd("INFO").arg("replication").query(&mut connection).ok()?;
        field(&info, name).map(str::to_owned)
    }

    fn number(&self, name: &str) -> u64 {
        self.info(name).and_then(|number| number.parse().ok()).unwrap()
    }

    /// How many bytes it has written for its replicas, or as a replica has read and done.
    pub fn offset(&self) -> u64 {
        self.number("master_repl_offset")
    }

    /// How many bytes it had done of its master when it took its place.
    pub fn offset_at_promotion(&self) -> u64 {
        self.number("second_repl_offset") - 1
    }

    /// Waits until it is a master. The moment at which that was seen, and it is looked for all the time.
    pub fn wait_until_promoted(&self, clock: &SystemClock) -> Timestamp {
        let mut connection = self.try_connection();
        wait_until("it is a master", || {
            let role = connection.as_mut().ok().and_then(|connection| role(connection).ok());
            if role.is_none() {
                // Sentinel cuts all connections of whom it promotes.
                connection = self.try_connection();
            }
            role.is_some_and(|role| role == "master")
        });
        clock.now()
    }

    /// Ends it at once, like `kill`, at a known offset: nothing was done, written or answered after it.
    pub fn kill_at_known_offset(&mut self) -> u64 {
        const END: &str = "the end is at ";
        let halt = format!(
            "local info = redis.call('INFO', 'replication')
            redis.log(redis.LOG_WARNING, '{END}' .. info:match('master_repl_offset:(%d+)'))
            while true do end"
        );
        let ends = self.log_entries(END).len();
        let mut connection = self.connection();
        let halt = redis::cmd("EVAL").arg(halt).arg(0).get_packed_command();
        connection.send_packed_command(&halt).unwrap();
        wait_until("it has said its offset", || self.log_entries(END).len() > ends);
        self.kill();
        self.log_entries(END).pop().unwrap().trim().parse().unwrap()
    }

    /// How far it had come as a master when, as a replica, it asked for the first time to go on from there.
    pub fn offset_at_demotion(&self) -> u64 {
        const REQUEST: &str = "Trying a partial resynchronization (request ";
        wait_until("it copies from another", || !self.log_entries(REQUEST).is_empty());
        let request = self.log_entries(REQUEST).remove(0);
        // The next byte that it lacks: `id:offset).`
        let (_, next) = request.split_once(':').unwrap();
        next.trim_end_matches(").").parse::<u64>().unwrap() - 1
    }

    /// What stands behind some words in the lines of the log.
    fn log_entries(&self, words: &str) -> Vec<String> {
        let log = std::fs::read_to_string(&self.log).unwrap();
        let behind = log.lines().filter_map(|line| Some(line.split_once(words)?.1.to_owned()));
        // What is only begun ends without a line's end.
        match log.ends_with('\n') {
            true => behind.collect(),
            false => Vec::new(),
        }
    }

    /// Forgets what it has logged.
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

fn role(connection: &mut redis::Connection) -> redis::RedisResult<String> {
    let role: Vec<redis::Value> = redis::cmd("ROLE").query(connection)?;
    redis::from_redis_value(role.into_iter().next().unwrap_or(redis::Value::Nil))
        .map_err(Into::into)
}

/// A field of what INFO says.
pub fn field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}
