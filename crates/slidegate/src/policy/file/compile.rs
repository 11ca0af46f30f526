//! Makes rules of what a policy file says, and notes every mistake.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use super::descriptor::Naming;
use super::deserialize::Field;
use super::limits::Counted;
use super::rule_context::RuleContext;
use super::spec::{AlgorithmName, DefaultsSpec, ModeSpec, PolicySpec, RuleSpec};
use super::suggest::did_you_mean;
use super::{
    Diagnostics, LimitCheck, MAX_COMBINATIONS, MAX_HITS, MAX_PER, MAX_ROUTES, MAX_RULES,
    MAX_SCOPES, SourceSpan,
};
use crate::algorithm::Algorithm;
use crate::limit::Limit;
use crate::policy::mode::{Mode, OnStoreError, WhenMissing};
use crate::policy::pattern::Pattern;
use crate::policy::per::Per;
use crate::policy::route::Routes;
use crate::policy::rule::{Rule, RuleLimit, RuleSettings};
use crate::request::DEFAULT_DOMAIN;

/// The version of the language.
const VERSION: u64 = 1;

/// The prefix by which IPv6 addresses are counted: what one site commonly has.
const IPV6_PREFIX: u8 = 64;

/// Steps of comparing things with each other that are made to find what can never be, and what was meant
/// instead: a second or so. In a policy that would need more, some of that is not found.
const PATIENCE: usize = 200_000_000;

/// Makes rules of entries, and collects what is wrong with them.
pub(super) struct Compiler<'s> {
    diagnostics: &'s Diagnostics<'s>,
    supports: &'s LimitCheck<'s>,
    routes: Routes,
    /// How many the rules have.
    scopes: usize,
    /// Steps of comparing that may still be made.
    patience: usize,
    /// Whether the rule is for descriptors, which have attributes of their own making.
    pub(super) is_of_descriptors: bool,
}

/// What holds where a rule says nothing.
#[derive(Clone, Copy, Default)]
struct Defaults {
    algorithm: Algorithm,
    when_missing: WhenMissing,
    mode: Mode,
    required: Option<u64>,
    on_store_error: OnStoreError,
    ipv6_prefix: Option<u8>,
}

impl<'s> Compiler<'s> {
    /// Goes on where the reading of the entries ended.
    pub(super) fn new(diagnostics: &'s Diagnostics<'s>, supports: &'s LimitCheck<'s>) -> Self {
        Self {
            diagnostics,
            supports,
            routes: Routes::default(),
            scopes: 0,
            patience: PATIENCE,
            is_of_descriptors: false,
        }
    }

    pub(super) fn wrong(&mut self, at: SourceSpan, message: impl fmt::Display) {
        self.diagnostics.note(at, message);
    }

    /// The value, if there is one; else its error is noted.
    pub(super) fn or_wrong<T>(
        &mut self,
        at: SourceSpan,
        result: Result<T, impl fmt::Display>,
    ) -> Option<T> {
        result.map_err(|error| self.wrong(at, error)).ok()
    }

    /// Sees that the store can count by a limit.
    pub(super) fn supports(&mut self, limit: &Limit, at: SourceSpan) {
        self.or_wrong(at, (self.supports)(limit));
    }

    /// Whether so many steps of comparing may be made. They then are.
    pub(super) fn has_patience(&mut self, steps: usize) -> bool {
        let left = self.patience.checked_sub(steps);
        self.patience = left.unwrap_or(self.patience);
        left.is_some()
    }

    /// The rules and routes; true only if nothing was wrong.
    pub(super) fn policy(&mut self, entry: &PolicySpec, at: SourceSpan) -> (Vec<Rule>, Routes) {
        if let Some((version, at)) =
            entry.version.given().filter(|(version, _)| **version != VERSION)
        {
            let message =
                format_args!("version {version} is not known: write `version: {VERSION}`");
            self.wrong(at, message);
        }
        let templates = entry.routes.get().map_or(&[][..], |routes| routes);
        if templates.len() > MAX_ROUTES {
            let message =
                format_args!("{} routes are too many: at most {MAX_ROUTES}", templates.len());
            self.wrong(entry.routes.place(), message);
        }
        for route in templates.iter().take(MAX_ROUTES) {
            if let Some((template, at)) = route.given() {
                let added = self.routes.add(template);
                self.or_wrong(at, added);
            }
        }
        let defaults = entry.defaults.get().map_or_else(Defaults::default, |e| self.defaults(e));
        if entry.rules.is_absent() {
            self.wrong(at, "a policy needs `rules:`, a list of rules");
        }
        let entries = entry.rules.get().map_or(&[][..], |rules| rules);
        if entries.len() > MAX_RULES {
            let message = format_args!("{} rules are too many: at most {MAX_RULES}", entries.len());
            self.wrong(entry.rules.place(), message);
        }
        let (mut names, mut hits) = (HashMap::new(), HashMap::new());
        let rules = entries.iter().take(MAX_RULES).filter_map(|rule| {
            let (entry, at) = rule.given()?;
            let rule = self.rule(entry, at, &defaults, &mut names);
            self.count_hits(&rule, at, &mut hits);
            Some(rule)
        });
        let mut rules: Vec<Rule> = rules.collect();
        self.replaces(entry, &mut rules);
        self.one_for_requested(entry, &rules);
        (rules, std::mem::take(&mut self.routes))
    }

    /// Reports the first rule of a domain with which a request could have too many limits.
    fn count_hits(&mut self, rule: &Rule, at: SourceSpan, hits: &mut HashMap<Box<str>, usize>) {
        let overrides = rule.overrides().iter().map(|other| other.settings().limits().len());
        let most = overrides.chain([rule.settings().limits().len()]).max().unwrap_or_default();
        let sum = hits.entry(rule.domain().into()).or_default();
        let before = *sum;
        *sum += most;
        if before <= MAX_HITS && *sum > MAX_HITS {
            let message = format_args!(
                "the rules of domain `{}` have too many limits together: a request is held against at most {MAX_HITS}, so give some of the rules another `domain`",
                rule.domain()
            );
            self.wrong(at, message);
        }
    }

    fn defaults(&mut self, entry: &DefaultsSpec) -> Defaults {
        Defaults {
            algorithm: algorithm(&entry.algorithm).unwrap_or_default(),
            when_missing: entry.when_missing.get().copied().unwrap_or_default(),
            mode: self.mode(&entry.mode).unwrap_or_default(),
            required: self.units(&entry.required),
            on_store_error: entry.on_store_error.get().copied().unwrap_or_default(),
            ipv6_prefix: self.ipv6_prefix(&entry.ipv6_prefix),
        }
    }

    fn rule<'f>(
        &mut self,
        entry: &'f RuleSpec,
        at: SourceSpan,
        defaults: &Defaults,
        names: &mut HashMap<(&'f str, &'f str), SourceSpan>,
    ) -> Rule {
        self.is_of_descriptors = !entry.descriptor.is_absent();
        let domain = self.domain(&entry.domain);
        let name = self.rule_name(&entry.name, at, domain, names);
        let per = self.per(entry, defaults);
        let when = self.when(&entry.when);
        let mode = self.mode(&entry.mode).unwrap_or(defaults.mode);
        let by_default = algorithm(&entry.algorithm).unwrap_or(defaults.algorithm);
        let combinations = per.entries().iter().map(|entry| entry.names().count()).product();
        let redis = self.redis(entry, &per);
        let cluster = self.cluster(entry);
        let context = RuleContext {
            domain,
            rule: name,
            per: &per,
            combinations,
            redis: redis.as_ref(),
            cluster,
        };
        if entry.limits.is_absent() {
            self.wrong(at, "a rule needs `limits`, for example `limits: [100/min]`");
        }
        let charge = self.charge(entry, defaults.required);
        let limits = self.limits(&entry.limits, by_default);
        self.supported(&limits, None);
        self.charge_fits(&charge, &limits);
        let settings = RuleSettings { mode, limits: self.rule_limits(limits, &context, at) };
        let overrides = self.overrides(entry, (by_default, mode, &charge), &when, &context);
        let modes = [mode].into_iter().chain(overrides.iter().map(|other| other.settings.mode));
        self.share_of_keys(entry, at, modes, &per);
        let missing = self.missing(entry, defaults, &context);
        let descriptor = self.descriptor(entry);
        let naming =
            Naming { when: &when, per: &per, overrides: &overrides, redis: redis.as_ref() };
        Rule {
            named: naming.names(descriptor.as_deref()),
            descriptor,
            replaces: Box::default(),
            requested: self.requested(entry, by_default, at),
            algorithm: by_default,
            identities: context.scopes("", None),
            name: name.into(),
            domain: domain.into(),
            when,
            on_store_error: entry.on_store_error.get().copied().unwrap_or(defaults.on_store_error),
            charge,
            deny_status: self.deny_status(&entry.deny_status),
            settings,
            overrides: overrides.into(),
            missing,
            redis: redis.map(Box::new),
            cluster,
            per,
        }
    }

    fn domain<'f>(&mut self, domain: &'f Field<String>) -> &'f str {
        match domain.given() {
            None => DEFAULT_DOMAIN,
            Some((name, at)) => {
                if name.is_empty() || name.len() > 128 {
                    self.wrong(at, "the name of a domain has 1 to 128 bytes");
                }
                name
            }
        }
    }

    fn rule_name<'f>(
        &mut self,
        name: &'f Field<String>,
        rule_at: SourceSpan,
        domain: &'f str,
        names: &mut HashMap<(&'f str, &'f str), SourceSpan>,
    ) -> &'f str {
        let Some((text, at)) = name.given() else {
            if name.is_absent() {
                self.wrong(rule_at, "a rule needs a `name`, for example `name: per-client`");
            }
            return "";
        };
        self.name("rule", text, at);
        if let Some(other) = names.insert((domain, text), at) {
            let message = format_args!(
                "a rule `{text}` stands in domain `{domain}` already, in line {}: give it another name",
                other.line
            );
            self.wrong(at, message);
        }
        text
    }

    /// Names stand in headers, metrics and keys.
    pub(super) fn name(&mut self, what: &str, name: &str, at: SourceSpan) {
        let plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
        if name.is_empty() || name.len() > 128 || !name.bytes().all(plain) {
            let plainer: String = (name.to_lowercase().chars())
                .map(|char| if char.is_ascii() && plain(char as u8) { char } else { '-' })
                .take(128)
                .collect();
            let closest_match = match plainer.trim_matches('-') {
                "" => String::new(),
                _ => format!(", for example `{plainer}`"),
            };
            let message = format_args!(
                "`{name}` cannot name a {what}: use 1 to 128 of a-z, 0-9, `.`, `_` and `-`{closest_match}"
            );
            self.wrong(at, message);
        }
    }

    fn per(&mut self, entry: &RuleSpec, defaults: &Defaults) -> Per {
        let mut entries: Vec<Vec<Box<str>>> = Vec::new();
        let mut known = HashSet::new();
        for entry in entry.per.get().into_iter().flatten() {
            let Some((text, at)) = entry.given() else { continue };
            let names = text.split('|').map(str::trim);
            for name in names.clone() {
                self.attribute_name(name, at);
                if !known.insert(name) {
                    self.wrong(at, format_args!("`{name}` stands in `per` twice: take one away"));
                }
            }
            entries.push(names.map(Into::into).collect());
        }
        let combinations =
            entries.iter().try_fold(1usize, |all, names| all.checked_mul(names.len()));
        if entries.len() > MAX_PER {
            self.wrong(entry.per.place(), format_args!("at most {MAX_PER} attributes in `per`"));
            entries.clear();
        } else if combinations.is_none_or(|all| all > MAX_COMBINATIONS) {
            let message = format_args!(
                "too many combinations of names in `per`: at most {MAX_COMBINATIONS}, and `[a|b, c|d]` has four"
            );
            self.wrong(entry.per.place(), message);
            entries.clear();
        }
        let prefix = self.ipv6_prefix(&entry.ipv6_prefix).or(defaults.ipv6_prefix);
        Per::new(entries, prefix.unwrap_or(IPV6_PREFIX))
    }

    fn ipv6_prefix(&mut self, prefix: &Field<u64>) -> Option<u8> {
        let (&bits, at) = prefix.given()?;
        let valid = u8::try_from(bits).ok().filter(|bits| (1..=128).contains(bits));
        self.or_wrong(at, valid.ok_or("an IPv6 prefix has 1 to 128 bits"))
    }

    /// A status below 400 would make proxies allow the request.
    fn deny_status(&mut self, status: &Field<u64>) -> Option<u16> {
        let (&status, at) = status.given()?;
        let valid = u16::try_from(status).ok().filter(|status| (400..=599).contains(status));
        self.or_wrong(at, valid.ok_or("the status of a denial is an error, from 400 to 599"))
    }

    pub(super) fn mode(&mut self, mode: &Field<ModeSpec>) -> Option<Mode> {
        Some(match mode.get()? {
            ModeSpec::Enforce => Mode::Enforce,
            ModeSpec::Jointly => Mode::Jointly,
            ModeSpec::Observe => Mode::Observe,
            ModeSpec::Off => Mode::Off,
            ModeSpec::For(map) => {
                if map.enforce.is_absent() {
                    self.wrong(mode.place(), "write the share of the keys: { enforce: 5% }");
                }
                let (share, at) = map.enforce.given()?;
                Mode::EnforceFor(self.or_wrong(at, share.parse())?)
            }
        })
    }

    /// A share of the keys needs keys to share out.
    fn share_of_keys(
        &mut self,
        entry: &RuleSpec,
        at: SourceSpan,
        mut modes: impl Iterator<Item = Mode>,
        per: &Per,
    ) {
        let none = per.entries().is_empty() && entry.per.get().is_none_or(Vec::is_empty);
        if none && modes.any(|mode| matches!(mode, Mode::EnforceFor(_))) {
            let at = if entry.mode.is_absent() { at } else { entry.mode.place() };
            self.wrong(
                at,
                "{ enforce: … } picks some of the keys, but without `per` a rule has only one: give it a `per`",
            );
        }
    }

    fn missing(
        &mut self,
        entry: &RuleSpec,
        defaults: &Defaults,
        context: &RuleContext<'_>,
    ) -> Option<RuleLimit> {
        let when_missing = entry.when_missing.get().copied().unwrap_or(defaults.when_missing);
        let nothing = context.per.entries().is_empty() && entry.per.is_absent();
        if nothing && entry.when_missing.get() == Some(&WhenMissing::Deny) {
            let message =
                "without `per` nothing can be missing: say per which attribute, or leave it out";
            self.wrong(entry.when_missing.place(), message);
        }
        (when_missing == WhenMissing::Deny && !nothing).then(|| context.missing())
    }

    /// The limits with their scopes, unless these are too many for the memory.
    pub(super) fn rule_limits(
        &mut self,
        limits: Vec<Counted>,
        context: &RuleContext<'_>,
        at: SourceSpan,
    ) -> Box<[RuleLimit]> {
        let before = self.scopes;
        self.scopes += limits.len() * context.combinations;
        if self.scopes > MAX_SCOPES {
            if before <= MAX_SCOPES {
                let message = format_args!(
                    "too much to count: the limits of all rules and overrides, each times the combinations of names in `per`, are at most {MAX_SCOPES}"
                );
                self.wrong(at, message);
            }
            return Box::default();
        }
        let limits = limits.into_iter().map(|counted| {
            let settings = context.redis.map(|redis| redis.settings.for_limit(&counted.limit));
            let settings = settings.and_then(|settings| self.or_wrong(counted.at, settings));
            (counted, settings.map(Arc::new))
        });
        context.limits(limits.collect())
    }

    pub(super) fn attribute_name(&mut self, name: &str, at: SourceSpan) {
        if name.is_empty() || name.len() > 128 {
            self.wrong(at, "the name of an attribute has 1 to 128 bytes");
        } else if name.starts_with("header.") && name.bytes().any(|b| b.is_ascii_uppercase()) {
            let closest_match = name.to_ascii_lowercase();
            let message = format_args!(
                "names of headers are lower-case here: did you mean `{closest_match}`?"
            );
            self.wrong(at, message);
        }
    }

    /// A route that no path can have is a mistake, if paths get their routes here.
    pub(super) fn route(&mut self, text: &str, pattern: &Pattern, at: SourceSpan) {
        let known = self.routes.templates().len();
        let bytes: usize = self.routes.templates().map(str::len).sum();
        let (is_one, steps): (&dyn Fn(&str) -> bool, _) = match pattern {
            Pattern::Glob(glob) => (&|route| glob.matches(route), bytes),
            _ => (&|route| route == text, known),
        };
        if known == 0 || !self.has_patience(steps) {
            return;
        }
        if self.routes.templates().any(is_one) {
            return;
        }
        // To find further mistakes is worth more than to guess.
        let can_guess = self.patience > PATIENCE / 2;
        let hint = match can_guess && self.has_patience(text.len().saturating_mul(bytes)) {
            true => did_you_mean(text, self.routes.templates()),
            false => String::new(),
        };
        self.wrong(at, format_args!("`{text}` is none of `routes`{hint}"));
    }
}

pub(super) fn algorithm(name: &Field<AlgorithmName>) -> Option<Algorithm> {
    name.get().map(|AlgorithmName(algorithm)| *algorithm)
}
