//! A generator of policies from the fields and values of the policy language. Most of the values are valid, some are
//! invalid.

use std::fmt::Write;

use libfuzzer_sys::arbitrary::{Arbitrary, Result, Unstructured};

/// The YAML text of a generated policy.
#[derive(Debug)]
pub struct GeneratedPolicy(pub String);

const RULE_NAMES: &[&str] = &["a", "b", "per-client", "x.y_z", "A", "''"];
const DOMAINS: &[&str] = &["default", "api", "''"];
const ATTRIBUTES: &[&str] =
    &["ip", "path", "route", "method", "tenant", "plan", "header.x-key", "header.X", "''"];
const PER_ENTRIES: &[&str] =
    &["ip", "tenant", "'plan|ip'", "'a|b|c'", "path", "route", "ip|ip", "'a|'"];
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
const ALGORITHMS: &[&str] = &[
    "sliding_log",
    "sliding_buckets",
    "sliding_window",
    "sliding_counter",
    "fixed_window",
    "token_bucket",
    "leaky",
];
const LIMIT_TEXTS: &[&str] = &[
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
const UNIT_COUNTS: &[&str] = &["0", "1", "100", "536870912", "99999999999999999999", "many", "-1"];
/// The smallest and the largest resolution, and values that are not one.
const RESOLUTIONS: &[&str] =
    &["8", "100", "1024", "7", "1025", "0", "99999999999999999999", "many", "-1"];
const WINDOW_LENGTHS: &[&str] = &["s", "1ms", "7s", "1m", "1d", "52w", "0s", "10fortnights", "''"];
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
const ON_STORE_ERROR_OPTIONS: &[&str] = &["allow", "deny", "local", "never"];
const WHEN_MISSING_OPTIONS: &[&str] = &["skip", "deny", "fail"];
const NORMALIZE_STEPS: &[&str] = &["trim", "nfkc", "lowercase", "trailing_slash", "double_slash", "case"];
const ON_PARTITION_OPTIONS: &[&str] = &["bounded", "available", "split"];
const SLOT_BY_ENTRIES: &[&str] = &["ip", "tenant", "'plan|ip'", "'a|b|c'", "path", "unlisted"];
const SPLIT_COUNTS: &[&str] = &["2", "3", "8", "1024", "1", "1025", "-1"];
const SAMPLE_PERCENTAGES: &[&str] = &["50%", "33.33%", "10%", "1%", "30%", "100%", "0%", "0.1"];
const IPV6_PREFIXES: &[&str] = &["1", "64", "128", "0", "129", "-1"];
const DENY_STATUSES: &[&str] = &["403", "429", "599", "600", "200", "x"];
const PROBLEMS: &[&str] = &["quota-exceeded", "abnormal-usage-detected", "banned"];
const BOOLEANS: &[&str] = &["true", "false", "no"];
const COSTS: &[&str] = &["1", "tokens", "100", "0", "536870913", "Tokens", "''"];
const CHARGE_OPTIONS: &[&str] = &["if_admitted", "always", "never"];

impl<'a> Arbitrary<'a> for GeneratedPolicy {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let mut text = String::new();
        if u.ratio(1, 2)? {
            let _ = writeln!(text, "defaults: {}", generate_mapping(u, DEFAULTS_FIELDS)?);
        }
        if u.ratio(1, 3)? {
            let _ =
                writeln!(text, "routes: {}", generate_sequence(u, |u| choose_value(u, ROUTES))?);
        }
        if u.ratio(1, 6)? {
            let _ = writeln!(text, "attributes: {}", generate_attributes(u)?);
        }
        if u.ratio(1, 6)? {
            let _ = writeln!(text, "normalize: {}", generate_normalize(u)?);
        }
        text.push_str("rules:\n");
        for _ in 0..u.int_in_range(0..=8)? {
            let _ = writeln!(text, "  - {}", generate_mapping(u, RULE_FIELDS)?);
        }
        // Attribute values of requests.
        let _ = write!(text, "# {}", u.arbitrary::<&str>()?.replace(char::is_control, " "));
        Ok(Self(text))
    }
}

/// A generator of one field: the name of the field, whether the field is optional, and the function that generates its
/// value.
type FieldGenerator = (&'static str, bool, fn(&mut Unstructured<'_>) -> Result<String>);

const DEFAULTS_FIELDS: &[FieldGenerator] = &[
    ("algorithm", true, |u| choose_value(u, ALGORITHMS)),
    ("when_missing", true, |u| choose_value(u, WHEN_MISSING_OPTIONS)),
    ("mode", true, |u| choose_value(u, MODES)),
    ("required", true, |u| choose_value(u, UNIT_COUNTS)),
    ("on_store_error", true, |u| choose_value(u, ON_STORE_ERROR_OPTIONS)),
    ("ipv6_prefix", true, |u| choose_value(u, IPV6_PREFIXES)),
];

const RULE_FIELDS: &[FieldGenerator] = &[
    ("name", false, |u| choose_value(u, RULE_NAMES)),
    ("limits", false, generate_limits),
    ("domain", true, |u| choose_value(u, DOMAINS)),
    ("when", true, generate_when),
    ("per", true, |u| generate_sequence(u, |u| choose_value(u, PER_ENTRIES))),
    ("overrides", true, |u| generate_sequence(u, |u| generate_mapping(u, OVERRIDE_FIELDS))),
    ("algorithm", true, |u| choose_value(u, ALGORITHMS)),
    ("when_missing", true, |u| choose_value(u, WHEN_MISSING_OPTIONS)),
    ("mode", true, |u| choose_value(u, MODES)),
    ("on_store_error", true, |u| choose_value(u, ON_STORE_ERROR_OPTIONS)),
    ("deny_status", true, |u| choose_value(u, DENY_STATUSES)),
    ("problem", true, |u| choose_value(u, PROBLEMS)),
    ("headers", true, |u| choose_value(u, BOOLEANS)),
    ("cost", true, |u| choose_value(u, COSTS)),
    ("required", true, |u| choose_value(u, UNIT_COUNTS)),
    ("charge", true, |u| choose_value(u, CHARGE_OPTIONS)),
    ("ipv6_prefix", true, |u| choose_value(u, IPV6_PREFIXES)),
    ("redis", true, |u| generate_mapping(u, REDIS_FIELDS)),
    ("cluster", true, |u| generate_mapping(u, CLUSTER_FIELDS)),
];

const CLUSTER_FIELDS: &[FieldGenerator] = &[
    ("max_unsynced", true, |u| choose_value(u, UNIT_COUNTS)),
    ("on_partition", true, |u| choose_value(u, ON_PARTITION_OPTIONS)),
];

const REDIS_FIELDS: &[FieldGenerator] = &[
    ("slot_by", true, |u| generate_sequence(u, |u| choose_value(u, SLOT_BY_ENTRIES))),
    ("split", true, |u| generate_mapping(u, SPLIT_FIELDS)),
    ("sample", true, |u| choose_value(u, SAMPLE_PERCENTAGES)),
];

const SPLIT_FIELDS: &[FieldGenerator] = &[
    ("by", false, |u| generate_sequence(u, |u| choose_value(u, ATTRIBUTES))),
    ("into", false, |u| choose_value(u, SPLIT_COUNTS)),
];

const OVERRIDE_FIELDS: &[FieldGenerator] = &[
    ("when", false, generate_when),
    ("limits", true, generate_limits),
    ("name", true, |u| choose_value(u, RULE_NAMES)),
    ("algorithm", true, |u| choose_value(u, ALGORITHMS)),
    ("mode", true, |u| choose_value(u, MODES)),
];

const LIMIT_FIELDS: &[FieldGenerator] = &[
    ("max", false, |u| choose_value(u, UNIT_COUNTS)),
    ("window", false, |u| choose_value(u, WINDOW_LENGTHS)),
    ("name", true, |u| choose_value(u, RULE_NAMES)),
    ("algorithm", true, |u| choose_value(u, ALGORITHMS)),
    ("precision", true, |u| choose_value(u, WINDOW_LENGTHS)),
    ("resolution", true, |u| choose_value(u, RESOLUTIONS)),
    ("burst", true, |u| choose_value(u, UNIT_COUNTS)),
    ("calendar", true, |u| choose_value(u, &["day", "week", "month", "quarter", "year", "moon"])),
    ("timezone", true, |u| choose_value(u, &["UTC", "Europe/Berlin", "Asia/Beirut", "Moon/Base"])),
    ("week_starts", true, |u| choose_value(u, &["monday", "sunday", "moonday"])),
    ("starts", true, |u| choose_value(u, &["15", "31", "06:00", "04-06", "'15 06:00'", "noon"])),
    ("align", true, |u| choose_value(u, &["clock", "key", "moon"])),
];

/// Generates a YAML flow mapping with these fields. Optional fields are often omitted, required fields rarely.
fn generate_mapping(u: &mut Unstructured<'_>, fields: &[FieldGenerator]) -> Result<String> {
    let mut entries = Vec::new();
    for (name, is_optional, value) in fields {
        let is_omitted = if *is_optional { u.ratio(3, 4)? } else { u.ratio(1, 40)? };
        if !is_omitted {
            entries.push(format!("{name}: {}", value(u)?));
        }
    }
    Ok(format!("{{ {} }}", entries.join(", ")))
}

/// Generates a YAML flow sequence of at most three items. `item` generates one item.
fn generate_sequence(
    u: &mut Unstructured<'_>,
    mut item: impl FnMut(&mut Unstructured<'_>) -> Result<String>,
) -> Result<String> {
    let items = (0..u.int_in_range(0..=3)?).map(|_| item(u)).collect::<Result<Vec<_>>>()?;
    Ok(format!("[{}]", items.join(", ")))
}

/// Generates the value of the field `attributes`: a list, or a map with a list for each domain.
fn generate_attributes(u: &mut Unstructured<'_>) -> Result<String> {
    let names = |u: &mut Unstructured<'_>| generate_sequence(u, |u| choose_value(u, ATTRIBUTES));
    match u.arbitrary()? {
        true => names(u),
        false => Ok(format!("{{ {}: {} }}", choose_value(u, DOMAINS)?, names(u)?)),
    }
}

/// Generates the value of the field `normalize`: the steps of an attribute, in all domains or in one.
fn generate_normalize(u: &mut Unstructured<'_>) -> Result<String> {
    let attribute = choose_value(u, ATTRIBUTES)?;
    let steps = generate_sequence(u, |u| choose_value(u, NORMALIZE_STEPS))?;
    match u.arbitrary()? {
        true => Ok(format!("{{ {attribute}: {steps} }}")),
        false => {
            Ok(format!("{{ {}: {{ {attribute}: {steps} }} }}", choose_value(u, DOMAINS)?))
        }
    }
}

/// Generates the value of the field `limits` of a rule.
fn generate_limits(u: &mut Unstructured<'_>) -> Result<String> {
    match u.int_in_range(0..=9)? {
        0 => Ok("unlimited".to_owned()),
        1 => Ok("denied".to_owned()),
        _ => generate_sequence(u, |u| {
            if u.arbitrary()? {
                choose_value(u, LIMIT_TEXTS)
            } else {
                generate_mapping(u, LIMIT_FIELDS)
            }
        }),
    }
}

/// Generates the value of the field `when` of a rule: conditions on at most three attributes.
fn generate_when(u: &mut Unstructured<'_>) -> Result<String> {
    let mut entries = Vec::new();
    for _ in 0..u.int_in_range(0..=3)? {
        let name = choose_value(u, ATTRIBUTES)?;
        let patterns = match u.arbitrary()? {
            true => choose_value(u, PATTERNS)?,
            false => generate_sequence(u, |u| choose_value(u, PATTERNS))?,
        };
        entries.push(match u.ratio(1, 4)? {
            true => format!("{name}: {{ not: {patterns} }}"),
            false => format!("{name}: {patterns}"),
        });
    }
    Ok(format!("{{ {} }}", entries.join(", ")))
}

/// Returns one of the choices. Occasionally returns arbitrary text instead, in quotes.
fn choose_value(u: &mut Unstructured<'_>, choices: &[&str]) -> Result<String> {
    Ok(match u.ratio(1, 24)? {
        true => format!("'{}'", u.arbitrary::<&str>()?.replace('\'', "''")),
        false => (*u.choose(choices)?).to_owned(),
    })
}
