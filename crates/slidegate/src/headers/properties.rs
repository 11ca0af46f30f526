//! The promises of every style, over any policy and anything a store may say. The referee of the grammar
//! is a parser that is not ours.

use proptest::collection::vec;
use proptest::prelude::*;
use sfv::{BareItem, Item, List, ListEntry, Parser};

use super::*;
use crate::jitter::Jitter;
use crate::outcome::MAX_DURATION_US;
use crate::quota::{MAX_UNITS, MAX_WINDOW};
use crate::test_util::{self, ScriptedOutcome};

/// Rules by their names, and when they are asked.
#[derive(Clone, Debug)]
struct Case {
    rules: Vec<(String, Vec<Limit>)>,
    now: Timestamp,
}

/// A quota, and what the store says of it.
#[derive(Clone, Debug)]
struct Limit {
    max: u64,
    window_ms: u64,
    said: ScriptedOutcome,
}

/// Numbers of all sizes.
fn any_micros() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..5_u64,
        0..4_000_000_u64,
        (0..400_000_000_u64).prop_map(|seconds| seconds * 1_000_000),
        0..=MAX_DURATION_US,
        Just(MAX_DURATION_US),
    ]
}

/// The most that a store can say is one below what stands for a limit that was not asked.
fn any_remaining() -> impl Strategy<Value = u32> {
    prop_oneof![0..5_u32, 0..u32::MAX, Just(u32::MAX - 1)]
}

fn any_said() -> impl Strategy<Value = ScriptedOutcome> {
    prop_oneof![
        2 => (any_remaining(), any_micros())
            .prop_map(|(remaining, reset_us)| ScriptedOutcome::Fits { remaining, reset_us }),
        1 => (any_remaining(), any_micros(), prop::option::weighted(0.8, any_micros()))
            .prop_map(|(remaining, reset_us, wait_us)| ScriptedOutcome::Denied { remaining, reset_us, wait_us }),
    ]
}

fn any_limit() -> impl Strategy<Value = Limit> {
    // Long windows of whole ticks only: others count as the next longer one.
    let longest = MAX_WINDOW.as_secs() / 10;
    let window_ms = prop_oneof![
        1..3_000_u64,
        1..10_000_000_u64,
        (1..=60_u64).prop_map(|seconds| seconds * 1_000),
        (1..=longest).prop_map(|tens| tens * 10_000),
    ];
    let max = prop_oneof![0..5_u64, 0..=MAX_UNITS];
    (max, window_ms, any_said()).prop_map(|(max, window_ms, said)| Limit { max, window_ms, said })
}

/// One to five limits over some rules.
fn any_case() -> impl Strategy<Value = Case> {
    let limits = vec((any_limit(), any::<bool>()), 1..=5);
    let names = vec("[a-z0-9._-]{0,20}", 5);
    (limits, names, any::<u64>()).prop_map(|(limits, names, now)| {
        let mut rules: Vec<(String, Vec<Limit>)> = Vec::new();
        for (limit, with_the_last) in limits {
            match rules.last_mut() {
                Some((_, rule)) if with_the_last => rule.push(limit),
                _ => {
                    let nth = rules.len();
                    rules.push((format!("{}{nth}", names[nth]), vec![limit]));
                }
            }
        }
        Case { rules, now: Timestamp::from_micros(now) }
    })
}

impl Case {
    fn ruling(&self) -> Ruling {
        let rule = |(name, limits): &(String, Vec<Limit>)| {
            let limit = |(nth, limit): (usize, &Limit)| {
                format!("{{ name: l{nth}, max: {}, window: {}ms }}", limit.max, limit.window_ms)
            };
            let limits: Vec<String> = limits.iter().enumerate().map(limit).collect();
            format!("  - {{ name: '{name}', limits: [{}] }}\n", limits.join(", "))
        };
        let rules: String = self.rules.iter().map(rule).collect();
        let said: Vec<ScriptedOutcome> = self.limits().map(|(_, limit)| limit.said).collect();
        test_util::ruling(&format!("rules:\n{rules}"), &said)
    }

    /// Every limit with its name in headers.
    fn limits(&self) -> impl Iterator<Item = (String, &Limit)> {
        self.rules.iter().flat_map(|(rule, limits)| {
            limits.iter().enumerate().map(move |(nth, limit)| match limits.len() {
                1 => (rule.clone(), limit),
                _ => (format!("{rule}.l{nth}"), limit),
            })
        })
    }
}

/// Keys and Integers, in their order.
type Parameters = Vec<(String, i64)>;

/// What the headers of a case say, read by the independent parser.
#[derive(Debug, Default)]
struct Read {
    names: Vec<&'static str>,
    /// Each with its name, where the style has names.
    policies: Vec<(Option<String>, Parameters)>,
    limit: Option<i64>,
    remaining: Option<i64>,
    reset: Option<i64>,
    bound: Option<String>,
    retry_after: Option<i64>,
}

fn integer_of(item: &BareItem) -> i64 {
    item.as_integer().expect("an integer").into()
}

fn integer_in(value: &str) -> i64 {
    let item: Item = Parser::new(value).parse().expect("an item");
    assert!(item.params.is_empty());
    integer_of(&item.bare_item)
}

fn list_in(value: &str) -> Vec<(BareItem, Parameters)> {
    let list: List = Parser::new(value).parse().expect("a list");
    let item = |entry| {
        let ListEntry::Item(Item { bare_item, params }) = entry else { panic!("an inner list") };
        let params = params.iter().map(|(key, value)| (key.to_string(), integer_of(value)));
        (bare_item, params.collect())
    };
    list.into_iter().map(item).collect()
}

fn text_of(item: &BareItem) -> String {
    item.as_string().expect("a string").to_string()
}

fn parameter(parameters: &[(String, i64)], name: &str) -> Option<i64> {
    parameters.iter().find(|(key, _)| key == name).map(|(_, value)| *value)
}

fn read(headers: &[Header]) -> Read {
    let mut read = Read::default();
    for (name, value) in headers {
        read.names.push(name);
        match *name {
            "ratelimit-policy" => {
                let policies = list_in(value).into_iter();
                read.policies =
                    policies.map(|(item, parameters)| (Some(text_of(&item)), parameters)).collect();
            }
            "ratelimit" => {
                let [(item, parameters)] = &list_in(value)[..] else { panic!("one item") };
                read.bound = Some(text_of(item));
                read.remaining = parameter(parameters, "r");
                read.reset = parameter(parameters, "t");
                assert_eq!(parameters.len(), 1 + usize::from(read.reset.is_some()));
            }
            "ratelimit-limit" => {
                let mut items = list_in(value).into_iter();
                let (first, parameters) = items.next().expect("a limit");
                assert!(parameters.is_empty());
                read.limit = Some(integer_of(&first));
                let policy = |(item, mut parameters): (BareItem, Parameters)| {
                    parameters.insert(0, ("q".to_owned(), integer_of(&item)));
                    (None, parameters)
                };
                read.policies = items.map(policy).collect();
            }
            "x-ratelimit-limit" => read.limit = Some(integer_in(value)),
            "ratelimit-remaining" | "x-ratelimit-remaining" => {
                read.remaining = Some(integer_in(value));
            }
            "ratelimit-reset" | "x-ratelimit-reset" => read.reset = Some(integer_in(value)),
            "retry-after" => read.retry_after = Some(integer_in(value)),
            other => panic!("`{other}` is no header of ours"),
        }
    }
    read
}

fn write_all(
    case: &Case,
    lengthening: JitterSample,
) -> impl Iterator<Item = (Style, Ruling, Read)> {
    Style::ALL.into_iter().map(move |style| {
        let ruling = case.ruling();
        let headers = super::write(style, &ruling, case.now, lengthening);
        (style, ruling, read(&headers))
    })
}

/// The limit that binds, and what the store says of it.
fn binding<'c>(case: &'c Case, ruling: &Ruling) -> (String, &'c Limit) {
    case.limits().nth(ruling.decision().binding().unwrap()).unwrap()
}

/// The wait that the headers tell of, in microseconds.
fn wait_us(said: ScriptedOutcome) -> Option<u64> {
    match said {
        ScriptedOutcome::Fits { reset_us, .. } => Some(reset_us),
        ScriptedOutcome::Denied { wait_us, .. } => wait_us,
    }
}

fn seconds(micros: u128) -> i64 {
    i64::try_from(micros.div_ceil(1_000_000)).unwrap()
}

fn whole(value: u64) -> i64 {
    i64::try_from(value).unwrap()
}

fn policy_of(limit: &Limit) -> Parameters {
    let max = Some(("q".to_owned(), whole(limit.max)));
    let window = (limit.window_ms >= 1_000)
        .then(|| ("w".to_owned(), whole(limit.window_ms.div_ceil(1_000))));
    max.into_iter().chain(window).collect()
}

#[test]
fn every_row_of_the_table_stands_at_its_style_and_leads_back() {
    assert_eq!(TABLE.len(), Style::ALL.len());
    for (nth, style) in Style::ALL.into_iter().enumerate() {
        assert!(TABLE[nth].style == style && style.row().style == style);
        assert_eq!(style.name().parse(), Ok(style));
        assert_eq!(style.to_string(), style.name());
        assert_eq!(style.header_names().last(), Some(&RETRY_AFTER));
        assert!(style.header_names().iter().all(|name| *name == name.to_ascii_lowercase()));
    }
    let unknown = "IETF".parse::<Style>().unwrap_err();
    assert!(Style::ALL.iter().all(|style| unknown.to_string().contains(style.name())));
}

#[test]
fn what_no_structured_field_can_hold_is_cut_to_the_largest() {
    assert_eq!(integer(u64::MAX), 999_999_999_999_999);
    assert_eq!(seconds_up(Duration::MAX), 999_999_999_999_999);
    assert!(Parser::new(&integer(u64::MAX).to_string()).parse::<Item>().is_ok());
    assert!(Parser::new("1000000000000000").parse::<Item>().is_err());
}

#[test]
fn the_draw_lengthens_the_wait_in_every_header_of_a_denial() {
    let said = ScriptedOutcome::Denied { remaining: 0, reset_us: 1, wait_us: Some(60_000_000) };
    let limit = Limit { max: 100, window_ms: 60_000, said };
    let case =
        Case { rules: vec![("a".to_owned(), vec![limit])], now: Timestamp::from_secs(1_000) };
    let lengthening = Jitter::up_to_percent(10).sample(u32::MAX);
    let waits = write_all(&case, lengthening).map(|(_, _, read)| (read.reset, read.retry_after));
    let expected = [Some(66), Some(66), Some(1_066), None].map(|reset| (reset, Some(66)));
    assert_eq!(waits.collect::<Vec<_>>(), expected);
}

proptest! {
    #[test]
    fn every_style_writes_its_own_headers_once_and_in_their_order(case in any_case()) {
        for (style, ruling, read) in write_all(&case, JitterSample::NONE) {
            let ends = wait_us(binding(&case, &ruling).1.said).is_some();
            let denied = !ruling.decision().is_allowed();
            let expected = style.header_names().iter().filter(|name| match **name {
                "retry-after" => denied && ends,
                "ratelimit-reset" | "x-ratelimit-reset" => ends,
                _ => true,
            });
            prop_assert_eq!(read.names, expected.copied().collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_limit_is_listed_with_its_name_max_and_window(case in any_case()) {
        for (style, _, read) in write_all(&case, JitterSample::NONE) {
            let all = case.limits().map(|(name, limit)| (Some(name), policy_of(limit)));
            let expected: Vec<_> = match style {
                Style::Ietf => all.collect(),
                Style::Draft03 => all
                    .map(|(_, policy)| (None, policy))
                    .filter(|(_, policy)| parameter(policy, "w").is_some())
                    .collect(),
                Style::X | Style::None => Vec::new(),
            };
            prop_assert_eq!(read.policies, expected);
        }
    }

    #[test]
    fn the_binding_limit_is_told_with_what_remains(case in any_case()) {
        for (style, ruling, read) in write_all(&case, JitterSample::NONE) {
            let (name, limit) = binding(&case, &ruling);
            let (ScriptedOutcome::Fits { remaining, .. } | ScriptedOutcome::Denied { remaining, .. }) = limit.said;
            let expected = match style {
                Style::Ietf => (Some(name), None, Some(i64::from(remaining))),
                Style::Draft03 | Style::X => {
                    (None, Some(whole(limit.max)), Some(i64::from(remaining)))
                }
                Style::None => (None, None, None),
            };
            prop_assert_eq!((read.bound, read.limit, read.remaining), expected);
        }
    }

    #[test]
    fn the_reset_is_the_exact_wait_rounded_up(case in any_case()) {
        for (style, ruling, read) in write_all(&case, JitterSample::NONE) {
            let wait = wait_us(binding(&case, &ruling).1.said);
            let expected = match style {
                Style::Ietf | Style::Draft03 => wait.map(|wait| seconds(wait.into())),
                // Time ends with the last microsecond that a timestamp can tell.
                Style::X => {
                    wait.map(|wait| seconds(case.now.as_micros().saturating_add(wait).into()))
                }
                Style::None => None,
            };
            prop_assert_eq!(read.reset, expected);
            let denied = !ruling.decision().is_allowed();
            let retry_after = wait.filter(|_| denied).map(|wait| seconds(wait.into()));
            prop_assert_eq!(read.retry_after, retry_after);
        }
    }

    #[test]
    fn jitter_only_lengthens_denials_by_at_most_its_share_and_all_headers_alike(
        case in any_case(), percent in 0..=100_u8, lot: u32,
    ) {
        let lengthening = Jitter::up_to_percent(percent).sample(lot);
        let both = write_all(&case, JitterSample::NONE).zip(write_all(&case, lengthening));
        for ((style, ruling, exact), (_, _, read)) in both {
            prop_assert_eq!(&read.names, &exact.names);
            if ruling.decision().is_allowed() {
                prop_assert_eq!(read.reset, exact.reset);
                continue;
            }
            let Some(wait) = wait_us(binding(&case, &ruling).1.said) else { continue };
            let most = u128::from(wait) * u128::from(100 + percent) / 100;
            let retry_after = read.retry_after.unwrap();
            prop_assert!(retry_after >= seconds(wait.into()));
            prop_assert!(retry_after <= seconds(most + 1));
            match style {
                Style::Ietf | Style::Draft03 => prop_assert_eq!(read.reset, Some(retry_after)),
                Style::X => prop_assert!(read.reset >= exact.reset),
                Style::None => prop_assert_eq!(read.reset, None),
            }
        }
    }
}
