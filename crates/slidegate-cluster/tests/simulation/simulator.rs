//! Simulator of a cluster. It processes events in order of time, and then checks the guarantees of the cluster.

use std::time::Duration;

use fastrand::Rng;
use slidegate::Timestamp;
use slidegate::store::{Adjustment, Hit, Key, OnPartition, Receipt, Scope, Value};
use slidegate_cluster::counters::{FingerprintSecret, MaxUnsyncedAction};
use slidegate_cluster::node_info::NodeInfo;
use slidegate_cluster::pn_counter::{CounterUpdate, Incarnation};
use slidegate_cluster::replication::{Liveness, OutboundFrame};

use crate::simulation::checks::{AllowedCharge, RunStats, check_bound, check_fixed_windows};
use crate::simulation::clocks::HostClock;
use crate::simulation::event_queue::{Event, EventQueue};
use crate::simulation::network_conditions::NetworkConditions;
use crate::simulation::scenario::{MAX_CLOCK_SKEW, Scenario};
use crate::simulation::sim_node::{
    FINGERPRINT_SECRET, HEARTBEAT_INTERVAL_US, RequestOutcome, SimNode,
};

const NODE_NAMES: [&str; 7] = ["ash", "birch", "cedar", "elm", "fir", "oak", "pine"];
const KEY_ATTRIBUTE_VALUES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

/// The time for which a request waits for acknowledgements before it is denied.
const SYNC_WAIT_US: u64 = 20_000;

/// Maximum time after the end of the faults until every node knows all others.
const CONVERGENCE_TIMEOUT_US: u64 = 10_000_000;

/// A simulated cluster.
pub struct Simulator {
    scenario: Scenario,
    rng: Rng,
    /// The time of the simulation, in microseconds since the Unix epoch.
    now_us: u64,
    events: EventQueue,
    /// The running node of each host.
    hosts: Vec<Option<SimNode>>,
    /// Number of nodes started so far, which is also the incarnation of the latest node.
    started_nodes: u64,
    network: NetworkConditions,
    /// Whether the faults have ended.
    is_healed: bool,
    /// Whether the simulation no longer sends requests.
    has_stopped_requests: bool,
    scope: Scope,
    /// The allowed charges of each key.
    charges: Vec<Vec<AllowedCharge>>,
    /// The time of the last reset or refund of each key; 0 without reset or refund.
    removed_at_us: Vec<u64>,
    stats: RunStats,
}

impl Simulator {
    /// Creates a cluster whose nodes start within three seconds, and schedules the first requests and faults.
    pub fn new(scenario: Scenario) -> Self {
        let mut rng = Rng::with_seed(scenario.seed ^ 0x5eed);
        let mut simulator = Self {
            now_us: 1_700_000_000_000_000 + rng.u64(..100_000_000),
            events: EventQueue::default(),
            hosts: (0..scenario.hosts).map(|_| None).collect(),
            started_nodes: 0,
            network: NetworkConditions::without_faults(scenario.hosts),
            is_healed: false,
            has_stopped_requests: false,
            scope: Scope::new("domain", "rule", "limit", &["who"])
                .with_cluster(scenario.cluster_options),
            charges: vec![Vec::new(); scenario.keys],
            removed_at_us: vec![0; scenario.keys],
            stats: RunStats { runs: 1, ..RunStats::default() },
            rng,
            scenario,
        };
        simulator.start_node(0);
        for host in 1..simulator.scenario.hosts {
            let after_us = simulator.rng.u64(..3_000_000);
            simulator.schedule_event_after(after_us, Event::StartNode(host));
        }
        for host in 0..simulator.scenario.hosts {
            simulator.schedule_event_after(0, Event::Request(host));
        }
        if simulator.scenario.has_removals {
            simulator.schedule_event_after(3_000_000, Event::RemoveUnits);
        }
        if simulator.scenario.can_set_clocks {
            simulator.schedule_event_after(4_000_000, Event::SetClock);
        }
        simulator.schedule_event_after(500_000, Event::ChangeNetwork);
        simulator.schedule_event_after(2_000_000, Event::StopNode);
        simulator
    }

    /// Schedules an event that occurs after `after_us` microseconds.
    fn schedule_event_after(&mut self, after_us: u64, event: Event) {
        self.events.add(self.now_us + after_us, event);
    }

    /// Runs the simulation and checks the guarantees.
    ///
    /// # Errors
    ///
    /// Returns a description of the violated guarantee.
    pub fn run(mut self) -> Result<RunStats, String> {
        let faults_us = self.scenario.fault_duration.as_micros() as u64;
        self.run_until(self.now_us + faults_us);
        self.end_faults();
        let deadline_us = self.now_us + CONVERGENCE_TIMEOUT_US;
        // Messages that were sent before still arrive late.
        self.run_until(self.now_us + 3_600_000);
        while !self.has_full_membership() {
            if self.now_us > deadline_us {
                return Err(format!(
                    "members are not known to all nodes: {}",
                    self.describe_nodes()
                ));
            }
            self.run_until(self.now_us + 20_000);
        }
        self.has_stopped_requests = true;
        let interval_us = self.scenario.interval.as_micros() as u64;
        self.run_until(self.now_us + SYNC_WAIT_US + 3 * interval_us);
        // Nodes reject charges with a wrong time until this time has come.
        if !self.scenario.can_set_clocks {
            self.check_nodes_have_same_counters()?;
            self.check_charges_after_reset_or_refund()?;
            self.run_until(self.now_us + 3 * interval_us);
            self.check_cluster_is_idle()?;
        }
        match self.scenario.cluster_options.on_partition() {
            OnPartition::Bounded => self.check_overshoot_bounds()?,
            // Each partition limits separately, so the bound of the cluster does not apply.
            OnPartition::Available => {}
        }
        Ok(self.stats)
    }

    /// Processes all events up to `until_us`, and then sets the simulated time to `until_us`.
    fn run_until(&mut self, until_us: u64) {
        while let Some((event_us, event)) = self.events.next(until_us) {
            self.now_us = event_us;
            self.run_event(event);
        }
        self.now_us = until_us;
    }

    /// Processes one event.
    fn run_event(&mut self, event: Event) {
        match event {
            Event::Frame { from, to, frame } => {
                let now_us = self.now_us;
                if let Some(host) = self.find_host_of_incarnation(to)
                    && let Some(node) = &mut self.hosts[host]
                {
                    let frames = node.on_frame_received(from, frame, now_us);
                    self.send_frames(host, frames);
                }
            }
            Event::Tick(host, incarnation) => self.tick(host, incarnation),
            Event::Heartbeat(host, incarnation) => self.heartbeat(host, incarnation),
            Event::Request(host) => self.send_random_request(host),
            Event::Retry { host, incarnation, key, cost } => {
                if self.is_running_on(host, incarnation) {
                    self.send_request(host, key, cost, MaxUnsyncedAction::Deny);
                }
            }
            Event::Revert { host, incarnation, key, nth, receipt } => {
                // If the units have been refunded already, the receipt would revert other units.
                if self.is_running_on(host, incarnation)
                    && !self.has_stopped_requests
                    && !self.charges[key][nth].is_reverted
                    && let Some(node) = &mut self.hosts[host]
                {
                    node.counters.revert(
                        receipt.charges_to_revert(Adjustment::Revert),
                        node.now(self.now_us),
                    );
                    self.charges[key][nth].is_reverted = true;
                }
            }
            Event::RemoveUnits => self.reset_or_refund_random_key(),
            Event::SetClock if !self.is_healed => self.set_random_clock(),
            Event::ChangeNetwork if !self.is_healed => self.change_network_conditions(),
            Event::StopNode if !self.is_healed => self.stop_random_node(),
            Event::StartNode(host) if self.hosts[host].is_none() => self.start_node(host),
            Event::SetClock | Event::ChangeNetwork | Event::StopNode | Event::StartNode(_) => {}
        }
    }

    /// Returns the index of the host on which an incarnation is running; `None` if the incarnation has stopped.
    fn find_host_of_incarnation(&self, incarnation: Incarnation) -> Option<usize> {
        let is_match = |node: &Option<SimNode>| {
            node.as_ref().is_some_and(|node| node.incarnation == incarnation)
        };
        self.hosts.iter().position(is_match)
    }

    /// Returns `true` if an incarnation is running on a host.
    fn is_running_on(&self, host: usize, incarnation: Incarnation) -> bool {
        self.find_host_of_incarnation(incarnation) == Some(host)
    }

    /// Starts a node with a random clock offset on a host.
    fn start_node(&mut self, host: usize) {
        self.started_nodes += 1;
        let incarnation = Incarnation(self.started_nodes);
        let clock = HostClock::draw(&mut self.rng);
        let identity = (incarnation, NODE_NAMES[host]);
        let expects_peers = self.started_nodes > 1;
        let node = SimNode::start(&self.scenario, identity, clock, expects_peers, self.now_us);
        self.hosts[host] = Some(node);
        let interval_us = self.scenario.interval.as_micros() as u64;
        let after_us = self.rng.u64(..interval_us);
        self.schedule_event_after(after_us, Event::Tick(host, incarnation));
        self.schedule_event_after(0, Event::Heartbeat(host, incarnation));
    }

    /// Runs the replication tick of a node, and schedules its next tick.
    fn tick(&mut self, host: usize, incarnation: Incarnation) {
        let now_us = self.now_us;
        if let Some(node) = &mut self.hosts[host]
            && node.incarnation == incarnation
        {
            let frames = node.tick(now_us);
            self.send_frames(host, frames);
            self.schedule_event_after(
                self.scenario.interval.as_micros() as u64,
                Event::Tick(host, incarnation),
            );
        }
    }

    /// Sends the list of members, looks for other nodes, updates the members of the node, and schedules its next
    /// heartbeat.
    fn heartbeat(&mut self, host: usize, incarnation: Incarnation) {
        let now_us = self.now_us;
        let Some(node) = &mut self.hosts[host] else { return };
        if node.incarnation != incarnation {
            return;
        }
        let mut frames = node.heartbeat(now_us);
        frames.extend(node.update_members(now_us));
        self.send_frames(host, frames);
        self.look_for_nodes(host);
        let after_us = HEARTBEAT_INTERVAL_US + self.rng.u64(..HEARTBEAT_INTERVAL_US / 10);
        self.schedule_event_after(after_us, Event::Heartbeat(host, incarnation));
    }

    /// Introduces a node to a random host, as nodes do with their seeds.
    fn look_for_nodes(&mut self, host: usize) {
        let other = self.rng.usize(..self.scenario.hosts);
        if host == other || !self.network.can_connect(host, other) {
            return;
        }
        let node_info = |host: usize| {
            let incarnation = self.hosts[host].as_ref()?.incarnation;
            Some(NodeInfo { incarnation, name: NODE_NAMES[host].into(), address: None })
        };
        let (Some(node), Some(other_node)) = (node_info(host), node_info(other)) else { return };
        for (at, met) in [(host, other_node), (other, node)] {
            let Some(node) = &mut self.hosts[at] else { continue };
            let frames = node.meet(met, self.now_us);
            self.send_frames(at, frames);
        }
    }

    /// Sets the clock of a random host to a wrong time, or the wrong clock to the right one.
    fn set_random_clock(&mut self) {
        let is_wrong =
            |node: &Option<SimNode>| node.as_ref().is_some_and(|node| node.clock.jump_us != 0);
        let wrong = self.hosts.iter().position(is_wrong);
        let host = wrong.unwrap_or_else(|| self.rng.usize(..self.scenario.hosts));
        if let Some(node) = &mut self.hosts[host] {
            node.clock.jump(&mut self.rng);
            self.stats.set_clocks += 1;
        }
        let after_us = self.rng.u64(500_000..6_000_000);
        self.schedule_event_after(after_us, Event::SetClock);
    }

    /// Sends frames from host `from` to the hosts of their recipients, with random faults.
    fn send_frames(&mut self, from: usize, frames: Vec<OutboundFrame>) {
        let Some(sender) = self.hosts[from].as_ref().map(|node| node.incarnation) else { return };
        for (to, frame) in frames {
            self.stats.frames += 1;
            let Some(host) = self.find_host_of_incarnation(to) else { continue };
            for delay in self.network.draw_delays(frame.len(), &mut self.rng) {
                if self.network.can_carry_frames(from, host) {
                    let frame = frame.clone();
                    let event = Event::Frame { from: sender, to, frame };
                    self.schedule_event_after(delay.as_micros() as u64, event);
                }
            }
        }
    }

    /// Draws new network conditions and the time of the next change.
    fn change_network_conditions(&mut self) {
        let Scenario { can_partition, can_lose_frames, .. } = self.scenario;
        self.network.randomize(&mut self.rng, can_partition, can_lose_frames);
        self.stats.partitions += u64::from(self.network.is_partitioned());
        let duration_us = self.rng.u64(500_000..=8_000_000);
        self.schedule_event_after(duration_us, Event::ChangeNetwork);
    }

    /// Stops the node of a random host, and schedules its restart. The node may announce its departure or stop without
    /// notice. Does nothing if no other settled node is running.
    fn stop_random_node(&mut self) {
        let after_us = self.rng.u64(500_000..5_000_000);
        self.schedule_event_after(after_us, Event::StopNode);
        let host = self.rng.usize(..self.scenario.hosts);
        let now_us = self.now_us;
        let is_settled = |node: &SimNode| node.engine.status(node.now(now_us)).is_settled;
        let others = self.hosts.iter().enumerate().filter(|(nth, _)| *nth != host);
        let has_settled_peer = others.filter_map(|(_, node)| node.as_ref()).any(is_settled);
        if !self.scenario.can_restart || !has_settled_peer {
            return;
        }
        let Some(node) = &mut self.hosts[host] else { return };
        if self.rng.bool() {
            let frames = node.leave(now_us);
            self.send_frames(host, frames);
            self.stats.left += 1;
        }
        self.hosts[host] = None;
        self.stats.stopped += 1;
        let downtime_us = [0, 300_000, 3_000_000, 9_000_000][self.rng.usize(..4)];
        self.schedule_event_after(downtime_us, Event::StartNode(host));
    }

    /// Sends a random request to a host and schedules the next one.
    fn send_random_request(&mut self, host: usize) {
        if self.has_stopped_requests {
            return;
        }
        let mean_us = 1_000_000 / self.scenario.rate;
        // Bursts with pauses between them.
        let after_us = match self.rng.u32(..10) {
            0..=4 => self.rng.u64(..=mean_us / 10),
            5..=8 => self.rng.u64(..=2 * mean_us),
            _ => self.rng.u64(..=8 * mean_us),
        };
        self.schedule_event_after(after_us, Event::Request(host));
        let key = self.rng.usize(..self.scenario.keys);
        let cost = self.rng.u64(1..=self.scenario.max_cost);
        self.send_request(host, key, cost, MaxUnsyncedAction::Wait);
    }

    /// Resets or refunds a random key on several nodes at the same time. Each node knows different charges.
    fn reset_or_refund_random_key(&mut self) {
        if self.has_stopped_requests {
            return;
        }
        let key = self.rng.usize(..self.scenario.keys);
        let units = self.rng.u64(1..=self.scenario.limit.quota().max());
        let is_reset = self.rng.bool();
        for host in 0..self.scenario.hosts {
            if self.rng.u32(..3) == 0 {
                continue;
            }
            let Some(node) = &self.hosts[host] else { continue };
            let (value, limit) = ([Value::Text(KEY_ATTRIBUTE_VALUES[key])], self.scenario.limit);
            let hit_key = Key::new(&self.scope, &value);
            let hit = Hit::new(hit_key, &limit, units);
            let now = node.now(self.now_us);
            let edited = if is_reset {
                node.counters.reset(&[hit], now)
            } else {
                node.counters.refund(&[hit], now)
            };
            assert!(edited.is_ok());
        }
        // Any earlier charge of the key may have been removed.
        self.charges[key].iter_mut().for_each(|charge| charge.is_reverted = true);
        self.removed_at_us[key] = self.now_us;
        let after_us = self.rng.u64(200_000..3_000_000);
        self.schedule_event_after(after_us, Event::RemoveUnits);
    }

    /// Sends a request to the node of a host. Schedules a retry if the request is unsynced.
    fn send_request(&mut self, host: usize, key: usize, cost: u64, cap_policy: MaxUnsyncedAction) {
        let now_us = self.now_us;
        let Some(node) = &mut self.hosts[host] else { return };
        let value = [Value::Text(KEY_ATTRIBUTE_VALUES[key])];
        let limit = self.scenario.limit;
        let hit_key = Key::new(&self.scope, &value);
        let hit = Hit::new(hit_key, &limit, cost);
        match node.take(&hit, cap_policy, now_us) {
            RequestOutcome::Denied => self.stats.denied += 1,
            RequestOutcome::Unsynced => {
                self.stats.unsynced += 1;
                let frames = node.flush(now_us);
                let incarnation = node.incarnation;
                self.send_frames(host, frames);
                self.schedule_event_after(
                    SYNC_WAIT_US,
                    Event::Retry { host, incarnation, key, cost },
                );
            }
            RequestOutcome::Allowed(receipt) => {
                let nodes = node.counters.progress().load().nodes;
                let charge = AllowedCharge {
                    true_time_us: now_us,
                    timestamp_us: node.clock.right_time_us(now_us),
                    units: cost,
                    incarnation: node.incarnation,
                    clock_jumps: node.clock.jumps,
                    max_unsynced: self.scenario.max_unsynced(nodes),
                    is_reverted: false,
                };
                self.record_charge(host, key, charge, receipt);
            }
        }
    }

    /// Records an allowed charge and randomly schedules its revert.
    fn record_charge(&mut self, host: usize, key: usize, charge: AllowedCharge, receipt: Receipt) {
        self.stats.allowed += 1;
        let nth = self.charges[key].len();
        self.charges[key].push(charge);
        let Some(node) = &self.hosts[host] else { return };
        let progress = node.counters.progress().load();
        let lifetime_us = 2 * self.scenario.window().as_micros() as u64;
        let now = node.now(self.now_us);
        let acknowledged_flush =
            progress.acknowledged_flush(now, lifetime_us, OnPartition::Bounded);
        self.stats.proceeded_without_silent +=
            u64::from(acknowledged_flush > progress.last_flush_acknowledged_by_all());
        let one_in = self.scenario.revert_one_in;
        if one_in.is_some_and(|one_in| self.rng.u64(..one_in) == 0) {
            let window_us = self.scenario.window().as_micros() as u64;
            let after_us = self.rng.u64(..window_us);
            let incarnation = charge.incarnation;
            self.schedule_event_after(
                after_us,
                Event::Revert { host, incarnation, key, nth, receipt },
            );
        }
    }

    /// Ends all faults, starts a node on each host that has none, and reports all links as up.
    fn end_faults(&mut self) {
        self.is_healed = true;
        self.network = NetworkConditions::without_faults(self.scenario.hosts);
        for host in 0..self.scenario.hosts {
            match &mut self.hosts[host] {
                Some(node) if node.clock.jump_us != 0 => node.clock.jump(&mut self.rng),
                Some(_) => {}
                None => self.start_node(host),
            }
        }
        let running: Vec<Incarnation> =
            self.hosts.iter().flatten().map(|node| node.incarnation).collect();
        for host in 0..self.scenario.hosts {
            for to in &running {
                let now_us = self.now_us;
                let Some(node) = &mut self.hosts[host] else { continue };
                let frames = node.on_link_up(*to, now_us);
                self.send_frames(host, frames);
            }
        }
    }

    /// Returns `true` if each node sees exactly the running nodes as members, and sees all of them as alive.
    fn has_full_membership(&self) -> bool {
        let running: Vec<Incarnation> =
            self.hosts.iter().flatten().map(|node| node.incarnation).collect();
        self.hosts.iter().flatten().all(|node| {
            let status = node.engine.status(node.now(self.now_us));
            let alive = status.members.iter().filter(|member| member.liveness == Liveness::Alive);
            alive.count() + 1 == running.len() && status.members.len() + 1 == running.len()
        })
    }

    /// Checks that all nodes have the same unexpired counters.
    fn check_nodes_have_same_counters(&mut self) -> Result<(), String> {
        let latest = Timestamp::from_micros(self.now_us).after(MAX_CLOCK_SKEW);
        let mut all_counters: Vec<_> =
            self.hosts.iter().flatten().map(|node| node.unexpired_counters(latest)).collect();
        for key in 0..self.scenario.keys {
            // The windows of a key may be shifted against the clock.
            let (fingerprint, phase_us) = self.fingerprint_and_phase(key);
            let latest_us = latest.as_micros() + phase_us;
            let is_unexpired = |update: &CounterUpdate| {
                update.key != fingerprint
                    || update.layout.bucket_expires_us(update.bucket) > latest_us
            };
            all_counters.iter_mut().for_each(|counters| counters.retain(is_unexpired));
        }
        self.stats.compared_counters += all_counters[0].len() as u64;
        for (nth, counters) in all_counters.iter().enumerate() {
            if let Some(unmatched) =
                all_counters[0].iter().find(|update| !counters.contains(update))
            {
                let known: Vec<_> =
                    counters.iter().filter(|update| update.key == unmatched.key).collect();
                return Err(format!(
                    "{} lacks {unmatched:?}, has {known:?}: {}",
                    NODE_NAMES[nth],
                    self.describe_nodes()
                ));
            }
            if let Some(unmatched) =
                counters.iter().find(|update| !all_counters[0].contains(update))
            {
                return Err(format!(
                    "only {} has {unmatched:?}: {}",
                    NODE_NAMES[nth],
                    self.describe_nodes()
                ));
            }
        }
        Ok(())
    }

    /// Checks that all charges after the last reset or refund are counted.
    fn check_charges_after_reset_or_refund(&mut self) -> Result<(), String> {
        let latest = Timestamp::from_micros(self.now_us).after(MAX_CLOCK_SKEW);
        let Some(node) = self.hosts.iter().flatten().next() else { return Ok(()) };
        let counters = node.unexpired_counters(latest);
        for key in (0..self.scenario.keys).filter(|key| self.removed_at_us[*key] > 0) {
            let (fingerprint, phase_us) = self.fingerprint_and_phase(key);
            let updates: Vec<&CounterUpdate> =
                counters.iter().filter(|update| update.key == fingerprint).collect();
            let Some(layout) = updates.first().map(|update| update.layout) else { continue };
            let is_unexpired = |timestamp_us: u64| {
                let bucket = layout.bucket(Timestamp::from_micros(timestamp_us + phase_us));
                layout.bucket_expires_us(bucket) > latest.as_micros() + phase_us
            };
            let (charged, removed) = updates.iter().fold((0, 0), |(charged, removed), update| {
                (charged + update.units.charged, removed + update.units.removed)
            });
            let is_running =
                |incarnation: Incarnation| self.find_host_of_incarnation(incarnation).is_some();
            let later = self.charges[key].iter().filter(|charge| {
                charge.true_time_us > self.removed_at_us[key]
                    && !charge.is_reverted
                    && is_running(charge.incarnation)
                    && is_unexpired(charge.timestamp_us)
            });
            let later: u64 = later.map(|charge| charge.units).sum();
            self.stats.charged_after_removal += later;
            if charged.saturating_sub(removed) < later {
                return Err(format!(
                    "{later} units charged to {} after the last removal, only {charged} - {removed} counted: {}",
                    KEY_ATTRIBUTE_VALUES[key],
                    self.describe_nodes()
                ));
            }
        }
        Ok(())
    }

    /// Checks that all nodes are settled, no flush is unacknowledged, and no frame or update was rejected.
    fn check_cluster_is_idle(&self) -> Result<(), String> {
        for node in self.hosts.iter().flatten() {
            let status = node.engine.status(node.now(self.now_us));
            let has_lag = status.members.iter().any(|member| member.lag > Duration::ZERO);
            let has_rejected = status
                .members
                .iter()
                .any(|member| member.rejected_frames + member.rejected_updates > 0);
            if status.is_joining
                || !status.is_settled
                || !status.is_majority
                || has_lag
                || has_rejected
            {
                return Err(format!("the cluster is not idle: {}", self.describe_nodes()));
            }
        }
        Ok(())
    }

    /// Checks the charges of every key against the overshoot bounds.
    fn check_overshoot_bounds(&mut self) -> Result<(), String> {
        for (key, charges) in self.charges.iter().enumerate() {
            check_bound(&self.scenario.limit, charges, &mut self.stats)?;
            let (_, phase_us) = self.fingerprint_and_phase(key);
            check_fixed_windows(&self.scenario.limit, charges, phase_us)?;
        }
        Ok(())
    }

    /// Returns the fingerprint of a key and the phase of its windows.
    fn fingerprint_and_phase(&self, key: usize) -> (u64, u64) {
        let value = [Value::Text(KEY_ATTRIBUTE_VALUES[key])];
        let (key, limit) = (Key::new(&self.scope, &value), &self.scenario.limit);
        (
            key.fingerprint(
                &FingerprintSecret::from(FINGERPRINT_SECRET),
                limit.cluster_counter_shape(),
            ),
            limit.phase_us(&key, Timestamp::from_micros(self.now_us)),
        )
    }

    /// Returns the status of all running nodes as text.
    fn describe_nodes(&self) -> String {
        let nodes = self.hosts.iter().flatten();
        let statuses =
            nodes.map(|node| format!("{:#?}", node.engine.status(node.now(self.now_us))));
        statuses.collect::<Vec<_>>().join("\n")
    }
}
