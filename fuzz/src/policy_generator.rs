//! Generated policies: fields and values of the policy language, most of them valid, some of them invalid.

use std::fmt::Write;

use libfuzzer_sys::arbitrary::{Arbitrary, Result, Unstructured};

/// The text of a policy.
#[derive(Debug)]
pub struct GeneratedPolicy(pub String);

const NAMES: &[&str] = &["a", "b", "per-client", "x.y_z", "A", "''"];
const DOMAINS: &[&str] = &["default", "api", "''"];
const ATTRIBUTES: &[&str] =
    &["ip", "path", "route", "method", "tenant", "plan", "header.x-key", "header.X", "''"];
const PER: &[&str] = &["ip", "tenant", "'plan|ip'", "'a|b|c'", "path", "route", "ip|ip", "'a|'"];
const PATTERNS: &[&str] = &[
    "POST",
    "post",
    "/v1/*",
    "/users/{id}",
    "'*'",
    "'*a*b*'",
    "free",
    "'a*'",
    "10.0.0.0/8",
    "10.1.0.0/16",
    "'::1'",
    "'2001:db8::/32'",
    "0.0.0.0/0",
    "10.0.0.0/33",
    "'::ffff:1.2.3.4'",
    "1e3",
    "true",
    "''",
];
const ROUTES: &[&str] = &[
    "/",
    "'/users/{id}'",
    "'/users/{name}'",
    "'/f/{*p}'",
    "/v1",
    "'/{a}/{b}'",
    "'/é'",
    "'/è{a}'",
    "'/{a}é'",
    "'/{a}è'",
    "'/{{a}}'",
    "'/}}{a}'",
    "'/{'",
    "v1",
    "'/*'",
];
const ALGORITHMS: &[&str] =
    &["sliding_log", "sliding_buckets", "sliding_window", "fixed_window", "token_bucket", "leaky"];
const LIMITS: &[&str] = &[
    "1/s",
    "10/min",
    "0/s",
    "100/15m",
    "536870912/w",
    "536870913/w",
    "1/0s",
    "1/1ms",
    "9/99999999w",
    "x",
    "7/7d",
];
const MAXES: &[&str] = &["0", "1", "100", "536870912", "99999999999999999999", "many", "-1"];
const WINDOWS: &[&str] = &["s", "1ms", "7s", "1m", "1d", "52w", "0s", "10fortnights", "''"];
const MODES: &[&str] = &[
    "enforce",
    "jointly",
    "observe",
    "'off'",
    "{ enforce: 5% }",
    "{ enforce: 0.01% }",
    "{ enforce: 101% }",
    "on",
];
const ON_ERROR: &[&str] = &["allow", "deny", "local", "never"];
const MISSING: &[&str] = &["skip", "deny", "fail"];
const ON_PARTITION: &[&str] = &["bounded", "available", "split"];
const SLOT_BY: &[&str] = &["ip", "tenant", "'plan|ip'", "'a|b|c'", "path", "unlisted"];
const PARTS: &[&str] = &["2", "3", "8", "1024", "1", "1025", "-1"];
const SAMPLES: &[&str] = &["50%", "33.33%", "10%", "1%", "30%", "100%", "0%", "0.1"];
const BITS: &[&str] = &["1", "64", "128", "0", "129", "-1"];
const STATUSES: &[&str] = &["403", "429", "599", "600", "200", "x"];
const COSTS: &[&str] = &["1", "tokens", "100", "0", "536870913", "Tokens", "''"];
const CHARGES: &[&str] = &["if_admitted", "always", "never"];

impl<'a> Arbitrary<'a> for GeneratedPolicy {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let mut text = String::new();
        if u.ratio(1, 2)? {
            let _ = writeln!(text, "defaults: {}", fields(u, DEFAULTS)?);
        }
        if u.ratio(1, 3)? {
            let _ = writeln!(text, "routes: {}", list(u, |u| choose(u, ROUTES))?);
        }
        text.push_str("rules:\n");
        for _ in 0..u.int_in_range(0..=8)? {
            let _ = writeln!(text, "  - {}", fields(u, RULE)?);
        }
        // Attribute values of requests.
        let _ = write!(text, "# {}", u.arbitrary::<&str>()?.replace(char::is_control, " "));
        Ok(Self(text))
    }
}

/// Name of a field, whether the field is optional, and the function that generates its value.
type FieldGenerator = (&'static str, bool, fn(&mut Unstructured<'_>) -> Result<String>);

const DEFAULTS: &[FieldGenerator] = &[
    ("algorithm", true, |u| choose(u, ALGORITHMS)),
    ("when_missing", true, |u| choose(u, MISSING)),
    ("mode", true, |u| choose(u, MODES)),
    ("required", true, |u| choose(u, MAXES)),
    ("on_store_error", true, |u| choose(u, ON_ERROR)),
    ("ipv6_prefix", true, |u| choose(u, BITS)),
];

const RULE: &[FieldGenerator] = &[
    ("name", false, |u| choose(u, NAMES)),
    ("limits", false, limits),
    ("domain", true, |u| choose(u, DOMAINS)),
    ("when", true, when),
    ("per", true, |u| list(u, |u| choose(u, PER))),
    ("overrides", true, |u| list(u, |u| fields(u, OVERRIDE))),
    ("algorithm", true, |u| choose(u, ALGORITHMS)),
    ("when_missing", true, |u| choose(u, MISSING)),
    ("mode", true, |u| choose(u, MODES)),
    ("on_store_error", true, |u| choose(u, ON_ERROR)),
    ("deny_status", true, |u| choose(u, STATUSES)),
    ("cost", true, |u| choose(u, COSTS)),
    ("required", true, |u| choose(u, MAXES)),
    ("charge", true, |u| choose(u, CHARGES)),
    ("ipv6_prefix", true, |u| choose(u, BITS)),
    ("redis", true, |u| fields(u, REDIS)),
    ("cluster", true, |u| fields(u, CLUSTER)),
];

const CLUSTER: &[FieldGenerator] = &[
    ("max_unsynced", true, |u| choose(u, MAXES)),
    ("on_partition", true, |u| choose(u, ON_PARTITION)),
];

const REDIS: &[FieldGenerator] = &[
    ("slot_by", true, |u| list(u, |u| choose(u, SLOT_BY))),
    ("split", true, |u| fields(u, SPLIT)),
    ("sample", true, |u| choose(u, SAMPLES)),
];

const SPLIT: &[FieldGenerator] =
    &[("by", false, |u| list(u, |u| choose(u, ATTRIBUTES))), ("into", false, |u| choose(u, PARTS))];

const OVERRIDE: &[FieldGenerator] = &[
    ("when", false, when),
    ("limits", true, limits),
    ("name", true, |u| choose(u, NAMES)),
    ("algorithm", true, |u| choose(u, ALGORITHMS)),
    ("mode", true, |u| choose(u, MODES)),
];

const LIMIT: &[FieldGenerator] = &[
    ("max", false, |u| choose(u, MAXES)),
    ("window", false, |u| choose(u, WINDOWS)),
    ("name", true, |u| choose(u, NAMES)),
    ("algorithm", true, |u| choose(u, ALGORITHMS)),
    ("precision", true, |u| choose(u, WINDOWS)),
    ("burst", true, |u| choose(u, MAXES)),
    ("align", true, |u| choose(u, &["clock", "key", "moon"])),
];

/// Generates a YAML flow mapping. Optional fields are often omitted, required fields rarely.
fn fields(u: &mut Unstructured<'_>, fields: &[FieldGenerator]) -> Result<String> {
    let mut entries = Vec::new();
    for (name, is_optional, value) in fields {
        let is_omitted = if *is_optional { u.ratio(3, 4)? } else { u.ratio(1, 40)? };
        if !is_omitted {
            entries.push(format!("{name}: {}", value(u)?));
        }
    }
    Ok(format!("{{ {} }}", entries.join(", ")))
}

/// Generates a YAML flow sequence of at most three items.
fn list(
    u: &mut Unstructured<'_>,
    mut item: impl FnMut(&mut Unstructured<'_>) -> Result<String>,
) -> Result<String> {
    let items = (0..u.int_in_range(0..=3)?).map(|_| item(u)).collect::<Result<Vec<_>>>()?;
    Ok(format!("[{}]", items.join(", ")))
}

/// Generates the limits of a rule.
fn limits(u: &mut Unstructured<'_>) -> Result<String> {
    match u.int_in_range(0..=9)? {
        0 => Ok("unlimited".to_owned()),
        1 => Ok("denied".to_owned()),
        _ => list(u, |u| if u.arbitrary()? { choose(u, LIMITS) } else { fields(u, LIMIT) }),
    }
}

/// Generates the conditions of a rule.
fn when(u: &mut Unstructured<'_>) -> Result<String> {
    let mut entries = Vec::new();
    for _ in 0..u.int_in_range(0..=3)? {
        let name = choose(u, ATTRIBUTES)?;
        let patterns = match u.arbitrary()? {
            true => choose(u, PATTERNS)?,
            false => list(u, |u| choose(u, PATTERNS))?,
        };
        entries.push(match u.ratio(1, 4)? {
            true => format!("{name}: {{ not: {patterns} }}"),
            false => format!("{name}: {patterns}"),
        });
    }
    Ok(format!("{{ {} }}", entries.join(", ")))
}

/// Returns one of the choices, occasionally arbitrary text.
fn choose(u: &mut Unstructured<'_>, choices: &[&str]) -> Result<String> {
    Ok(match u.ratio(1, 24)? {
        true => format!("'{}'", u.arbitrary::<&str>()?.replace('\'', "''")),
        false => (*u.choose(choices)?).to_owned(),
    })
}
