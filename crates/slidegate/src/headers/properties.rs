//! Property tests of every style of headers, over random policies and outcomes. An independent parser reads the
//! headers.

use proptest::collection::vec;
use proptest::prelude::*;
use sfv::{BareItem, Item, List, ListEntry, Parser};

use super::*;
use crate::jitter::Jitter;
use crate::outcome::MAX_OUTCOME_DURATION_US;
use crate::quota::{MAX_UNITS, MAX_WINDOW};
use crate::test_util::{self, ScriptedOutcome};

/// A generated test case: rules with their names and limits, and the time of the request.
#[derive(Clone, Debug)]
struct HeaderTestCase {
    rules: Vec<(String, Vec<GeneratedLimit>)>,
    now: Timestamp,
}

/// A generated limit: its quota, and the outcome that the store returns for it.
#[derive(Clone, Debug)]
struct GeneratedLimit {
    max: u64,
    window_ms: u64,
    outcome: ScriptedOutcome,
}

/// Generates durations of all magnitudes, in microseconds.
fn any_duration_us() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..5_u64,
        0..4_000_000_u64,
        (0..400_000_000_u64).prop_map(|seconds| seconds * 1_000_000),
        0..=MAX_OUTCOME_DURATION_US,
        Just(MAX_OUTCOME_DURATION_US),
    ]
}

/// Generates the wait of a denial, in microseconds.
fn any_wait_us() -> impl Strategy<Value = u64> {
    any_duration_us().prop_map(|wait| wait.max(1))
}

/// Generates the remaining units of an outcome.
fn any_remaining_units() -> impl Strategy<Value = u32> {
    prop_oneof![0..5_u32, 0..u32::MAX, Just(u32::MAX - 1)]
}

fn any_outcome() -> impl Strategy<Value = ScriptedOutcome> {
    prop_oneof![
        2 => (any_remaining_units(), any_duration_us())
            .prop_map(|(remaining, reset_us)| ScriptedOutcome::Fits { remaining, reset_us }),
        1 => (any_remaining_units(), any_duration_us(), prop::option::weighted(0.8, any_wait_us()))
            .prop_map(|(remaining, reset_us, retry_after_us)| ScriptedOutcome::Denied { remaining, reset_us, retry_after_us }),
    ]
}

fn any_generated_limit() -> impl Strategy<Value = GeneratedLimit> {
    // Long windows are a whole number of ticks, because others are rounded up.
    let longest = MAX_WINDOW.as_secs() / 10;
    let window_ms = prop_oneof![
        1..3_000_u64,
        1..10_000_000_u64,
        (1..=60_u64).prop_map(|seconds| seconds * 1_000),
        (1..=longest).prop_map(|tens| tens * 10_000),
    ];
    let max = prop_oneof![0..5_u64, 0..=MAX_UNITS];
    (max, window_ms, any_outcome()).prop_map(|(max, window_ms, outcome)| GeneratedLimit {
        max,
        window_ms,
        outcome,
    })
}

/// Generates a test case of one to five limits, distributed over one or more rules.
fn any_header_test_case() -> impl Strategy<Value = HeaderTestCase> {
    let limits = vec((any_generated_limit(), any::<bool>()), 1..=5);
    let names = vec("[a-z0-9._-]{0,20}", 5);
    (limits, names, any::<u64>()).prop_map(|(limits, names, now)| {
        let mut rules: Vec<(String, Vec<GeneratedLimit>)> = Vec::new();
        for (limit, joins_last_rule) in limits {
            match rules.last_mut() {
                Some((_, rule)) if joins_last_rule => rule.push(limit),
                _ => {
                    let index = rules.len();
                    rules.push((format!("{}{index}", names[index]), vec![limit]));
                }
            }
        }
        HeaderTestCase { rules, now: Timestamp::from_micros(now) }
    })
}

impl HeaderTestCase {
    fn scripted_decision(&self) -> Decision<'static> {
        let rule = |(name, limits): &(String, Vec<GeneratedLimit>)| {
            let limit = |(index, limit): (usize, &GeneratedLimit)| {
                format!("{{ name: l{index}, max: {}, window: {}ms }}", limit.max, limit.window_ms)
            };
            let limits: Vec<String> = limits.iter().enumerate().map(limit).collect();
            format!("  - {{ name: '{name}', limits: [{}] }}\n", limits.join(", "))
        };
        let rules: String = self.rules.iter().map(rule).collect();
        let outcomes: Vec<ScriptedOutcome> =
            self.named_limits().map(|(_, limit)| limit.outcome).collect();
        test_util::scripted_decision(&format!("rules:\n{rules}"), &outcomes)
    }

    /// Returns every limit of the test case, with the name under which headers list the limit.
    fn named_limits(&self) -> impl Iterator<Item = (String, &GeneratedLimit)> {
        self.rules.iter().flat_map(|(rule, limits)| {
            limits.iter().enumerate().map(move |(index, limit)| match limits.len() {
                1 => (rule.clone(), limit),
                _ => (format!("{rule}.l{index}"), limit),
            })
        })
    }
}

/// The parameters of an item in a structured field: names and integers, in order.
type HeaderParameters = Vec<(String, i64)>;

/// The content of all headers of a response, read by an independent parser.
#[derive(Debug, Default)]
struct ParsedHeaders {
    names: Vec<&'static str>,
    /// The parameters of each limit, and its name if the style has names.
    policies: Vec<(Option<String>, HeaderParameters)>,
    limit: Option<i64>,
    remaining: Option<i64>,
    reset: Option<i64>,
    binding: Option<String>,
    retry_after: Option<i64>,
}

fn item_to_integer(item: &BareItem) -> i64 {
    item.as_integer().expect("an integer").into()
}

fn parse_integer(value: &str) -> i64 {
    let item: Item = Parser::new(value).parse().expect("an item");
    assert!(item.params.is_empty());
    item_to_integer(&item.bare_item)
}

fn parse_list(value: &str) -> Vec<(BareItem, HeaderParameters)> {
    let list: List = Parser::new(value).parse().expect("a list");
    let item = |entry| {
        let ListEntry::Item(Item { bare_item, params }) = entry else { panic!("an inner list") };
        let params = params.iter().map(|(key, value)| (key.to_string(), item_to_integer(value)));
        (bare_item, params.collect())
    };
    list.into_iter().map(item).collect()
}

fn item_to_text(item: &BareItem) -> String {
    item.as_string().expect("a string").to_string()
}

fn find_parameter(parameters: &[(String, i64)], name: &str) -> Option<i64> {
    parameters.iter().find(|(key, _)| key == name).map(|(_, value)| *value)
}

fn parse_headers(headers: &[Header]) -> ParsedHeaders {
    let mut parsed = ParsedHeaders::default();
    for (name, value) in headers {
        parsed.names.push(name);
        match *name {
            "ratelimit-policy" => {
                let policies = parse_list(value).into_iter();
                parsed.policies = policies
                    .map(|(item, parameters)| (Some(item_to_text(&item)), parameters))
                    .collect();
            }
            "ratelimit" => {
                let [(item, parameters)] = &parse_list(value)[..] else { panic!("one item") };
                parsed.binding = Some(item_to_text(item));
                parsed.remaining = find_parameter(parameters, "r");
                parsed.reset = find_parameter(parameters, "t");
                assert_eq!(parameters.len(), 1 + usize::from(parsed.reset.is_some()));
            }
            "ratelimit-limit" => {
                let mut items = parse_list(value).into_iter();
                let (first, parameters) = items.next().expect("a limit");
                assert!(parameters.is_empty());
                parsed.limit = Some(item_to_integer(&first));
                let policy = |(item, mut parameters): (BareItem, HeaderParameters)| {
                    parameters.insert(0, ("q".to_owned(), item_to_integer(&item)));
                    (None, parameters)
                };
                parsed.policies = items.map(policy).collect();
            }
            "x-ratelimit-limit" => parsed.limit = Some(parse_integer(value)),
            "ratelimit-remaining" | "x-ratelimit-remaining" => {
                parsed.remaining = Some(parse_integer(value));
            }
            "ratelimit-reset" | "x-ratelimit-reset" => parsed.reset = Some(parse_integer(value)),
            "retry-after" => parsed.retry_after = Some(parse_integer(value)),
            other => panic!("`{other}` is not a header of any style"),
        }
    }
    parsed
}

fn write_all_styles(
    case: &HeaderTestCase,
    jitter: JitterSample,
) -> impl Iterator<Item = (Style, Decision<'static>, ParsedHeaders)> {
    Style::ALL.into_iter().map(move |style| {
        let decision = case.scripted_decision();
        let headers = super::write(style, &decision, case.now, jitter);
        (style, decision, parse_headers(&headers))
    })
}

/// Returns the binding limit of a decision, with the name under which headers list the limit.
fn binding_limit<'c>(
    case: &'c HeaderTestCase,
    decision: &Decision<'_>,
) -> (String, &'c GeneratedLimit) {
    let binding = decision.binding().unwrap();
    case.named_limits().find(|(name, _)| name == binding.policy_name()).unwrap()
}

/// Returns the wait that the headers for an outcome must contain, in microseconds; `None` for a request that never
/// fits.
fn expected_wait_us(outcome: ScriptedOutcome) -> Option<u64> {
    match outcome {
        ScriptedOutcome::Fits { reset_us, .. } => Some(reset_us),
        ScriptedOutcome::Denied { retry_after_us, .. } => retry_after_us,
    }
}

fn ceil_to_seconds(micros: u128) -> i64 {
    i64::try_from(micros.div_ceil(1_000_000)).unwrap()
}

fn to_i64(value: u64) -> i64 {
    i64::try_from(value).unwrap()
}

fn expected_policy_parameters(limit: &GeneratedLimit) -> HeaderParameters {
    let max = Some(("q".to_owned(), to_i64(clamp_to_field_integer(limit.max))));
    let window = (limit.window_ms >= 1_000)
        .then(|| ("w".to_owned(), to_i64(limit.window_ms.div_ceil(1_000))));
    max.into_iter().chain(window).collect()
}

#[test]
fn header_style_definitions_match_enum_variants() {
    assert_eq!(STYLE_DEFINITIONS.len(), Style::ALL.len());
    for (index, style) in Style::ALL.into_iter().enumerate() {
        assert!(STYLE_DEFINITIONS[index].style == style && style.definition().style == style);
        assert_eq!(style.name().parse(), Ok(style));
        assert_eq!(style.to_string(), style.name());
        assert_eq!(style.header_names().last(), Some(&RETRY_AFTER_HEADER_NAME));
        assert!(style.header_names().iter().all(|name| *name == name.to_ascii_lowercase()));
    }
    let unknown = "IETF".parse::<Style>().unwrap_err();
    assert!(Style::ALL.iter().all(|style| unknown.to_string().contains(style.name())));
}

#[test]
fn large_header_integers_are_clamped() {
    assert_eq!(clamp_to_field_integer(u64::MAX), 999_999_999_999_999);
    assert_eq!(ceil_seconds(Duration::MAX), 999_999_999_999_999);
    assert!(Parser::new(&clamp_to_field_integer(u64::MAX).to_string()).parse::<Item>().is_ok());
    assert!(Parser::new("1000000000000000").parse::<Item>().is_err());
}

#[test]
fn jitter_lengthens_wait_in_every_denial_header() {
    let outcome =
        ScriptedOutcome::Denied { remaining: 0, reset_us: 1, retry_after_us: Some(60_000_000) };
    let limit = GeneratedLimit { max: 100, window_ms: 60_000, outcome };
    let case = HeaderTestCase {
        rules: vec![("a".to_owned(), vec![limit])],
        now: Timestamp::from_secs(1_000),
    };
    let jitter = Jitter::up_to_percent(10).sample(u32::MAX);
    let waits =
        write_all_styles(&case, jitter).map(|(_, _, parsed)| (parsed.reset, parsed.retry_after));
    let expected = [Some(66), Some(66), Some(1_066), None].map(|reset| (reset, Some(66)));
    assert_eq!(waits.collect::<Vec<_>>(), expected);
}

proptest! {
    #[test]
    fn every_style_writes_its_headers_in_order(case in any_header_test_case()) {
        for (style, decision, parsed) in write_all_styles(&case, JitterSample::NONE) {
            let has_wait = expected_wait_us(binding_limit(&case, &decision).1.outcome).is_some();
            let denied = !decision.is_allowed();
            let expected = style.header_names().iter().filter(|name| match **name {
                "retry-after" => denied && has_wait,
                "ratelimit-reset" | "x-ratelimit-reset" => has_wait,
                _ => true,
            });
            prop_assert_eq!(parsed.names, expected.copied().collect::<Vec<_>>());
        }
    }

    #[test]
    fn policy_header_lists_every_limit(case in any_header_test_case()) {
        for (style, _, parsed) in write_all_styles(&case, JitterSample::NONE) {
            let all = case.named_limits().map(|(name, limit)| (Some(name), expected_policy_parameters(limit)));
            let expected: Vec<_> = match style {
                Style::Ietf => all.collect(),
                Style::Draft03 => all
                    .map(|(_, policy)| (None, policy))
                    .filter(|(_, policy)| find_parameter(policy, "w").is_some())
                    .collect(),
                Style::X | Style::None => Vec::new(),
            };
            prop_assert_eq!(parsed.policies, expected);
        }
    }

    #[test]
    fn headers_contain_remaining_units_of_binding_limit(case in any_header_test_case()) {
        for (style, decision, parsed) in write_all_styles(&case, JitterSample::NONE) {
            let (name, limit) = binding_limit(&case, &decision);
            let (ScriptedOutcome::Fits { remaining, .. } | ScriptedOutcome::Denied { remaining, .. }) = limit.outcome;
            let expected = match style {
                Style::Ietf => (Some(name), None, Some(i64::from(remaining))),
                Style::Draft03 | Style::X => {
                    (None, Some(to_i64(clamp_to_field_integer(limit.max))), Some(i64::from(remaining)))
                }
                Style::None => (None, None, None),
            };
            prop_assert_eq!((parsed.binding, parsed.limit, parsed.remaining), expected);
        }
    }

    #[test]
    fn reset_header_contains_wait_rounded_up(case in any_header_test_case()) {
        for (style, decision, parsed) in write_all_styles(&case, JitterSample::NONE) {
            let outcome = binding_limit(&case, &decision).1.outcome;
            let wait = expected_wait_us(outcome);
            let expected = match style {
                // The time of the next unit is not known.
                Style::Ietf if matches!(outcome, ScriptedOutcome::Fits { remaining: 0, .. }) => None,
                Style::Ietf | Style::Draft03 => wait.map(|wait| ceil_to_seconds(wait.into())),
                // The reset saturates at the largest timestamp.
                Style::X => {
                    wait.map(|wait| ceil_to_seconds(case.now.as_micros().saturating_add(wait).into()))
                }
                Style::None => None,
            };
            prop_assert_eq!(parsed.reset, expected);
            let denied = !decision.is_allowed();
            let retry_after = wait.filter(|_| denied).map(|wait| ceil_to_seconds(wait.into()));
            prop_assert_eq!(parsed.retry_after, retry_after);
        }
    }

    #[test]
    fn jitter_lengthens_denial_waits_within_percentage(
        case in any_header_test_case(), percent in 0..=100_u8, lot: u32,
    ) {
        let jitter = Jitter::up_to_percent(percent).sample(lot);
        let pairs = write_all_styles(&case, JitterSample::NONE).zip(write_all_styles(&case, jitter));
        for ((style, decision, exact), (_, _, parsed)) in pairs {
            prop_assert_eq!(&parsed.names, &exact.names);
            if decision.is_allowed() {
                prop_assert_eq!(parsed.reset, exact.reset);
                continue;
            }
            let Some(wait) = expected_wait_us(binding_limit(&case, &decision).1.outcome) else { continue };
            let max_wait = u128::from(wait) * u128::from(100 + percent) / 100;
            let retry_after = parsed.retry_after.unwrap();
            prop_assert!(retry_after >= ceil_to_seconds(wait.into()));
            prop_assert!(retry_after <= ceil_to_seconds(max_wait + 1));
            match style {
                Style::Ietf | Style::Draft03 => prop_assert_eq!(parsed.reset, Some(retry_after)),
                Style::X => prop_assert!(parsed.reset >= exact.reset),
                Style::None => prop_assert_eq!(parsed.reset, None),
            }
        }
    }
}
