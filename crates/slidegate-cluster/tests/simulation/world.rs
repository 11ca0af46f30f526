//! The run: one event after the other.

use std::time::Duration;

use fastrand::Rng;
use slidegate::{Hit, Key, OnPartition, Receipt, Scope, Timestamp, Value};
use slidegate_cluster::counters::{CapPolicy, FingerprintSecret};
use slidegate_cluster::pn_counter::{CounterUpdate, Incarnation};

use slidegate_cluster::replication::{Liveness, OutboundFrame};

use crate::agenda::{Agenda, Event};
use crate::detector::{BEAT_US, Rumours};
use crate::network::Network;
use crate::scenario::{MAX_CLOCK_SKEW, Scenario};
use crate::site::{Asked, Life, SECRET};
use crate::verdict::{Charged, Seen, hold_bound, hold_fixed};

const NAMES: [&str; 7] = ["ash", "birch", "cedar", "elm", "fir", "oak", "pine"];
const KEYS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// How long a request waits for others before it is denied.
const SYNC_WAIT_US: u64 = 20_000;

/// Who is there is known to all so long after the weather has become good, at the latest.
const PATIENCE_US: u64 = 10_000_000;

pub struct World {
    scenario: Scenario,
    rng: Rng,
    now_us: u64,
    agenda: Agenda,
    sites: Vec<Option<Life>>,
    lives: u64,
    network: Network,
    is_good_weather: bool,
    is_quiet: bool,
    scope: Scope,
    charges: Vec<Vec<Charged>>,
    /// The time of the last reset or refund of each key.
    taken_off_us: Vec<u64>,
    seen: Seen,
}

impl World {
    pub fn new(scenario: Scenario) -> Self {
        let mut rng = Rng::with_seed(scenario.seed ^ 0x5eed);
        let mut world = Self {
            now_us: 1_700_000_000_000_000 + rng.u64(..100_000_000),
            agenda: Agenda::default(),
            sites: (0..scenario.sites).map(|_| None).collect(),
            lives: 0,
            network: Network::calm(scenario.sites),
            is_good_weather: false,
            is_quiet: false,
            scope: Scope::new("domain", "rule", "limit", &["who"]).with_cluster(scenario.terms),
            charges: vec![Vec::new(); scenario.keys],
            taken_off_us: vec![0; scenario.keys],
            seen: Seen { runs: 1, ..Seen::default() },
            rng,
            scenario,
        };
        world.be_born(0);
        for site in 1..world.scenario.sites {
            let after_us = world.rng.u64(..3_000_000);
            world.at(after_us, Event::Birth(site));
        }
        for site in 0..world.scenario.sites {
            world.at(0, Event::Ask(site));
        }
        if world.scenario.takes_off {
            world.at(3_000_000, Event::TakeOff);
        }
        world.at(500_000, Event::Weather);
        world.at(2_000_000, Event::Death);
        world
    }

    fn at(&mut self, after_us: u64, event: Event) {
        self.agenda.add(self.now_us + after_us, event);
    }

    /// Runs it all.
    pub fn run(mut self) -> Result<Seen, String> {
        let bad_us = self.scenario.bad_weather.as_micros() as u64;
        self.run_until(self.now_us + bad_us);
        self.clear_up();
        let patience_us = self.now_us + PATIENCE_US;
        // What is under way still arrives late.
        self.run_until(self.now_us + 3_600_000);
        while !self.all_see_all() {
            if self.now_us > patience_us {
                return Err(format!("who is there is not known to all: {}", self.tell()));
            }
            self.run_until(self.now_us + 20_000);
        }
        self.is_quiet = true;
        let interval_us = self.scenario.interval.as_micros() as u64;
        self.run_until(self.now_us + SYNC_WAIT_US + 3 * interval_us);
        self.hold_agreement()?;
        self.hold_later_charges()?;
        self.run_until(self.now_us + 3 * interval_us);
        self.hold_rest()?;
        match self.scenario.terms.on_partition() {
            OnPartition::Bounded => self.hold_bounds()?,
            // Each part counts by itself, so only what one node lets in is bounded.
            OnPartition::Available => {}
        }
        Ok(self.seen)
    }

    fn run_until(&mut self, until_us: u64) {
        while let Some((at_us, event)) = self.agenda.next(until_us) {
            self.now_us = at_us;
            self.happen(event);
        }
        self.now_us = until_us;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Frame { from, to, frame } => {
                let now_us = self.now_us;
                if let Some(site) = self.site_of(to)
                    && let Some(life) = &mut self.sites[site]
                {
                    let frames = life.heard(from, &frame, now_us);
                    self.send(site, frames);
                }
            }
            Event::Gossip { to, rumours } => self.hear_gossip(to, &rumours),
            Event::Tick(site, life) => self.tick(site, life),
            Event::Beat(site, life) => self.beat(site, life),
            Event::Ask(site) => self.ask_at_random(site),
            Event::AskAgain { site, life, key, cost } => {
                if self.lives_at(site, life) {
                    self.ask(site, key, cost, CapPolicy::Deny);
                }
            }
            Event::Revert { site, life, key, nth, receipt } => {
                // The receipt of units that were refunded already would free other units.
                if self.lives_at(site, life)
                    && !self.is_quiet
                    && !self.charges[key][nth].is_given_back
                    && let Some(living) = &mut self.sites[site]
                {
                    living.counters.revert(&receipt, living.now(self.now_us));
                    self.charges[key][nth].is_given_back = true;
                }
            }
            Event::TakeOff => self.take_off_at_random(),
            Event::Weather if !self.is_good_weather => self.change_weather(),
            Event::Death if !self.is_good_weather => self.die_somewhere(),
            Event::Birth(site) if self.sites[site].is_none() => self.be_born(site),
            Event::Weather | Event::Death | Event::Birth(_) => {}
        }
    }

    fn site_of(&self, incarnation: Incarnation) -> Option<usize> {
        let lives =
            |life: &Option<Life>| life.as_ref().is_some_and(|life| life.incarnation == incarnation);
        self.sites.iter().position(lives)
    }

    fn lives_at(&self, site: usize, life: Incarnation) -> bool {
        self.site_of(life) == Some(site)
    }

    fn be_born(&mut self, site: usize) {
        self.lives += 1;
        let incarnation = Incarnation(self.lives);
        let ahead_us = self.rng.u64(0..=MAX_CLOCK_SKEW.as_micros() as u64);
        let own = (incarnation, NAMES[site]);
        let knows_others = self.lives > 1;
        let life = Life::begin(&self.scenario, own, ahead_us, knows_others, self.now_us);
        self.sites[site] = Some(life);
        let interval_us = self.scenario.interval.as_micros() as u64;
        let after_us = self.rng.u64(..interval_us);
        self.at(after_us, Event::Tick(site, incarnation));
        self.at(0, Event::Beat(site, incarnation));
    }

    fn tick(&mut self, site: usize, life: Incarnation) {
        let now_us = self.now_us;
        if let Some(living) = &mut self.sites[site]
            && living.incarnation == life
        {
            let frames = living.tick(now_us);
            self.send(site, frames);
            self.at(self.scenario.interval.as_micros() as u64, Event::Tick(site, life));
        }
    }

    /// Gossips with two others, and looks who is there.
    fn beat(&mut self, site: usize, life: Incarnation) {
        let now_us = self.now_us;
        let Some(living) = &mut self.sites[site] else { return };
        if living.incarnation != life {
            return;
        }
        let rumours = living.detector.beat();
        let frames = living.look_around(now_us);
        self.send(site, frames);
        for _ in 0..2 {
            self.gossip(site, &rumours);
        }
        let after_us = BEAT_US + self.rng.u64(..BEAT_US / 10);
        self.at(after_us, Event::Beat(site, life));
    }

    fn gossip(&mut self, from: usize, rumours: &Rumours) {
        let to = self.rng.usize(..self.scenario.sites);
        for delay in self.network.delays(0, &mut self.rng) {
            if self.network.carries_gossip(from, to) {
                let rumours = rumours.clone();
                self.at(delay.as_micros() as u64, Event::Gossip { to, rumours });
            }
        }
    }

    fn hear_gossip(&mut self, to: usize, rumours: &Rumours) {
        let now_us = self.now_us;
        if let Some(life) = &mut self.sites[to] {
            let own_us = life.now(now_us).as_micros();
            life.detector.hear(rumours, own_us);
            let frames = life.look_around(now_us);
            self.send(to, frames);
        }
    }

    fn send(&mut self, from: usize, frames: Vec<OutboundFrame>) {
        let Some(sender) = self.sites[from].as_ref().map(|life| life.incarnation) else { return };
        for (to, frame) in frames {
            self.seen.frames += 1;
            let Some(site) = self.site_of(to) else { continue };
            for delay in self.network.delays(frame.len(), &mut self.rng) {
                if self.network.carries_counts(from, site) {
                    let frame = frame.clone();
                    let event = Event::Frame { from: sender, to, frame };
                    self.at(delay.as_micros() as u64, event);
                }
            }
        }
    }

    fn change_weather(&mut self) {
        let Scenario { may_partition, may_lose, .. } = self.scenario;
        self.network.change(&mut self.rng, may_partition, may_lose);
        self.seen.partitions += u64::from(self.network.is_parted());
        let lasts_us = self.rng.u64(500_000..=8_000_000);
        self.at(lasts_us, Event::Weather);
    }

    /// Kills a node, without a word or with one, if the others can do without it.
    fn die_somewhere(&mut self) {
        let after_us = self.rng.u64(500_000..5_000_000);
        self.at(after_us, Event::Death);
        let site = self.rng.usize(..self.scenario.sites);
        let now_us = self.now_us;
        let is_settled = |life: &Life| life.engine.status(life.now(now_us)).is_settled;
        let others = self.sites.iter().enumerate().filter(|(nth, _)| *nth != site);
        let can_do = others.filter_map(|(_, life)| life.as_ref()).any(is_settled);
        if !self.scenario.may_restart || !can_do {
            return;
        }
        let Some(life) = &mut self.sites[site] else { return };
        if self.rng.bool() {
            let frames = life.leave(now_us);
            let rumours = life.detector.leave();
            self.send(site, frames);
            (0..4).for_each(|_| self.gossip(site, &rumours));
            self.seen.left += 1;
        }
        self.sites[site] = None;
        self.seen.restarts += 1;
        let dead_us = [0, 300_000, 3_000_000, 9_000_000][self.rng.usize(..4)];
        self.at(dead_us, Event::Birth(site));
    }

    fn ask_at_random(&mut self, site: usize) {
        if self.is_quiet {
            return;
        }
        let mean_us = 1_000_000 / self.scenario.rate;
        // Bursts, and pauses between them.
        let after_us = match self.rng.u32(..10) {
            0..=4 => self.rng.u64(..=mean_us / 10),
            5..=8 => self.rng.u64(..=2 * mean_us),
            _ => self.rng.u64(..=8 * mean_us),
        };
        self.at(after_us, Event::Ask(site));
        let key = self.rng.usize(..self.scenario.keys);
        let cost = self.rng.u64(1..=self.scenario.largest_cost);
        self.ask(site, key, cost, CapPolicy::Wait);
    }

    /// Resets or refunds one key on several nodes at the same time. Each node knows other charges.
    fn take_off_at_random(&mut self) {
        if self.is_quiet {
            return;
        }
        let key = self.rng.usize(..self.scenario.keys);
        let units = self.rng.u64(1..=self.scenario.limit.quota().max());
        let resets = self.rng.bool();
        for site in 0..self.scenario.sites {
            if self.rng.u32(..3) == 0 {
                continue;
            }
            let Some(life) = &self.sites[site] else { continue };
            let (value, limit) = ([Value::Text(KEYS[key])], self.scenario.limit);
            let own = Key::new(&self.scope, &value);
            let hit = Hit::new(own, &limit, units);
            let now = life.now(self.now_us);
            match resets {
                true => life.counters.reset(&[hit], now).unwrap(),
                false => drop(life.counters.refund(&[hit], now).unwrap()),
            }
        }
        // Any of these charges may be refunded now.
        self.charges[key].iter_mut().for_each(|charged| charged.is_given_back = true);
        self.taken_off_us[key] = self.now_us;
        let after_us = self.rng.u64(200_000..3_000_000);
        self.at(after_us, Event::TakeOff);
    }

    fn ask(&mut self, site: usize, key: usize, cost: u64, at_cap: CapPolicy) {
        let now_us = self.now_us;
        let Some(life) = &mut self.sites[site] else { return };
        let value = [Value::Text(KEYS[key])];
        let limit = self.scenario.limit;
        let own = Key::new(&self.scope, &value);
        let hit = Hit::new(own, &limit, cost);
        match life.ask(&hit, at_cap, now_us) {
            Asked::Denied => self.seen.denied += 1,
            Asked::Unsynced => {
                self.seen.unsynced += 1;
                let frames = life.flush(now_us);
                let life = life.incarnation;
                self.send(site, frames);
                self.at(SYNC_WAIT_US, Event::AskAgain { site, life, key, cost });
            }
            Asked::Allowed(receipt) => {
                let nodes = life.counters.progress().load().nodes;
                let charged = Charged {
                    at_us: now_us,
                    date_us: life.now(now_us).as_micros(),
                    units: cost,
                    by: life.incarnation,
                    most_unsynced: self.scenario.most_unsynced(nodes),
                    is_given_back: false,
                };
                self.note_allowed(site, key, charged, receipt);
            }
        }
    }

    fn note_allowed(&mut self, site: usize, key: usize, charged: Charged, receipt: Receipt) {
        self.seen.allowed += 1;
        let nth = self.charges[key].len();
        self.charges[key].push(charged);
        let Some(life) = &self.sites[site] else { return };
        let progress = life.counters.progress().load();
        let span_us = 2 * self.scenario.window().as_micros() as u64;
        let now = life.now(self.now_us);
        let waits_for = progress.acknowledged_flush(now, span_us, OnPartition::Bounded);
        self.seen.went_on_without += u64::from(waits_for > progress.flush_acknowledged_by_all());
        let every = self.scenario.given_back_every;
        if every.is_some_and(|every| self.rng.u64(..every) == 0) {
            let window_us = self.scenario.window().as_micros() as u64;
            let after_us = self.rng.u64(..window_us);
            let life = charged.by;
            self.at(after_us, Event::Revert { site, life, key, nth, receipt });
        }
    }

    /// The weather becomes good for good: everybody lives, and links come up again.
    fn clear_up(&mut self) {
        self.is_good_weather = true;
        self.network = Network::calm(self.scenario.sites);
        for site in 0..self.scenario.sites {
            if self.sites[site].is_none() {
                self.be_born(site);
            }
        }
        let all: Vec<Incarnation> =
            self.sites.iter().flatten().map(|life| life.incarnation).collect();
        for site in 0..self.scenario.sites {
            for to in &all {
                let now_us = self.now_us;
                let Some(life) = &mut self.sites[site] else { continue };
                let frames = life.link_up(*to, now_us);
                self.send(site, frames);
            }
        }
    }

    /// Whether every engine has been told of exactly those that live.
    fn all_see_all(&self) -> bool {
        let all: Vec<Incarnation> =
            self.sites.iter().flatten().map(|life| life.incarnation).collect();
        self.sites.iter().flatten().all(|life| {
            let status = life.engine.status(life.now(self.now_us));
            let alive = status.members.iter().filter(|member| member.liveness == Liveness::Alive);
            alive.count() + 1 == all.len() && status.members.len() + 1 == all.len()
        })
    }

    /// All nodes know the same of what still counts.
    fn hold_agreement(&mut self) -> Result<(), String> {
        let latest = Timestamp::from_micros(self.now_us).after(MAX_CLOCK_SKEW);
        let mut all: Vec<_> =
            self.sites.iter().flatten().map(|life| life.tallies(latest)).collect();
        for key in 0..self.scenario.keys {
            // The clock of a counter may be ahead of the nodes'.
            let (fingerprint, ahead_us) = self.counter_of(key);
            let latest_us = latest.as_micros() + ahead_us;
            let counts = |told: &CounterUpdate| {
                told.key != fingerprint || told.layout.bucket_expires_us(told.bucket) > latest_us
            };
            all.iter_mut().for_each(|tallies| tallies.retain(counts));
        }
        self.seen.agreed_on += all[0].len() as u64;
        for (nth, tallies) in all.iter().enumerate() {
            if let Some(odd) = all[0].iter().find(|tally| !tallies.contains(tally)) {
                let known: Vec<_> = tallies.iter().filter(|told| told.key == odd.key).collect();
                return Err(format!(
                    "{} does not know {odd:?}, but {known:?}: {}",
                    NAMES[nth],
                    self.tell()
                ));
            }
            if let Some(odd) = tallies.iter().find(|tally| !all[0].contains(tally)) {
                return Err(format!("{} alone knows {odd:?}: {}", NAMES[nth], self.tell()));
            }
        }
        Ok(())
    }

    /// Checks that all charges after the last reset or refund are counted.
    fn hold_later_charges(&mut self) -> Result<(), String> {
        let latest = Timestamp::from_micros(self.now_us).after(MAX_CLOCK_SKEW);
        let Some(life) = self.sites.iter().flatten().next() else { return Ok(()) };
        let tallies = life.tallies(latest);
        for key in (0..self.scenario.keys).filter(|key| self.taken_off_us[*key] > 0) {
            let (fingerprint, ahead_us) = self.counter_of(key);
            let own: Vec<&CounterUpdate> =
                tallies.iter().filter(|told| told.key == fingerprint).collect();
            let Some(layout) = own.first().map(|told| told.layout) else { continue };
            let counts = |date_us: u64| {
                let bucket = layout.bucket(Timestamp::from_micros(date_us + ahead_us));
                layout.bucket_expires_us(bucket) > latest.as_micros() + ahead_us
            };
            let (charged, removed) = own.iter().fold((0, 0), |(charged, removed), told| {
                (charged + told.units.charged, removed + told.units.removed)
            });
            let lives = |by: Incarnation| self.site_of(by).is_some();
            let later = self.charges[key].iter().filter(|charged| {
                charged.at_us > self.taken_off_us[key]
                    && !charged.is_given_back
                    && lives(charged.by)
                    && counts(charged.date_us)
            });
            let later: u64 = later.map(|charged| charged.units).sum();
            self.seen.counted_after += later;
            if charged.saturating_sub(removed) < later {
                return Err(format!(
                    "{later} units were charged to {} after the last refund, and {charged} less {removed} count: {}",
                    KEYS[key],
                    self.tell()
                ));
            }
        }
        Ok(())
    }

    /// Nobody waits for anybody any more, and nothing was refused.
    fn hold_rest(&self) -> Result<(), String> {
        for life in self.sites.iter().flatten() {
            let status = life.engine.status(life.now(self.now_us));
            let waits = status.members.iter().any(|member| member.lag > Duration::ZERO);
            let refused = status
                .members
                .iter()
                .any(|member| member.rejected_frames + member.rejected_updates > 0);
            if status.is_joining || !status.is_settled || !status.is_majority || waits || refused {
                return Err(format!("no rest: {}", self.tell()));
            }
        }
        Ok(())
    }

    fn hold_bounds(&mut self) -> Result<(), String> {
        for (key, charges) in self.charges.iter().enumerate() {
            hold_bound(&self.scenario.limit, charges, &mut self.seen)?;
            let (_, ahead_us) = self.counter_of(key);
            hold_fixed(&self.scenario.limit, charges, ahead_us)?;
        }
        Ok(())
    }

    /// The fingerprint of a key, and what its counter's clock is ahead of the nodes'.
    fn counter_of(&self, key: usize) -> (u64, u64) {
        let value = [Value::Text(KEYS[key])];
        let (key, limit) = (Key::new(&self.scope, &value), &self.scenario.limit);
        (key.fingerprint(&FingerprintSecret::from(SECRET), limit.shape()), limit.phase_us(&key))
    }

    fn tell(&self) -> String {
        let lives = self.sites.iter().flatten();
        let told = lives.map(|life| format!("{:#?}", life.engine.status(life.now(self.now_us))));
        told.collect::<Vec<_>>().join("\n")
    }
}
