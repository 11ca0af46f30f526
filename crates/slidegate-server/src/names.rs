//! Names of costs and attributes in requests that no rule uses, and requests with too many limits, as errors for callers.
//!
//! A misspelt name would otherwise mean that a request is not limited.

use slidegate::internal::most_similar_word;
use slidegate::policy::UnknownCost;
use slidegate::{ActualCosts, Policy, Request, ReservedCall};
use thiserror::Error;

use crate::bounds::{MAX_DESCRIPTORS_OF_SMALL_REQUEST, MAX_HITS};
use crate::client_text::excerpt;

/// Maximum number of names in a message.
const MAX_LISTED_NAMES: usize = 16;

/// The reason why a request is rejected although it is well-formed: a name that no rule uses, or too many limits.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct RequestError(String);

/// Returns an error if a request has a cost that no rule of its domain charges.
pub fn check_costs(policy: &Policy, request: &Request<'_>) -> Result<(), RequestError> {
    let Some(unknown) = policy.unknown_cost(request) else { return Ok(()) };
    let names = policy.domain_names(request.domain());
    let known: Vec<&str> = names.iter().flat_map(|names| names.costs()).collect();
    let counts_unnamed = names.is_some_and(|names| names.counts_request_cost());
    let rules = format!("domain `{}`", excerpt(request.domain()));
    Err(unknown_cost_error(unknown, &rules, &known, counts_unnamed))
}

/// Returns an error if a request has many descriptors, to which more than [`MAX_HITS`] limits apply.
pub fn check_hits(policy: &Policy, request: &Request<'_>) -> Result<(), RequestError> {
    let descriptors = request.descriptors().len();
    // The number of limits of few descriptors is a matter of the policy.
    if descriptors <= MAX_DESCRIPTORS_OF_SMALL_REQUEST {
        return Ok(());
    }
    match policy.apply(request).hits().count() {
        ..=MAX_HITS => Ok(()),
        hits => Err(RequestError(format!(
            "{hits} limits apply to the {descriptors} descriptors; send fewer descriptors, so that at most {MAX_HITS} \
             apply"
        ))),
    }
}

/// Returns an error if the actual costs of a reservation have a cost that no rule of its domain charges.
pub fn check_actual_costs(
    policy: &Policy,
    call: &ReservedCall,
    actual: &ActualCosts<'_>,
) -> Result<(), RequestError> {
    let Some(unknown) = policy.unknown_actual_cost(call, actual) else { return Ok(()) };
    let mut known: Vec<&str> = call.cost_names().collect();
    known.sort_unstable();
    known.dedup();
    Err(unknown_cost_error(unknown, "the reservation", &known, call.has_unnamed_cost()))
}

/// Returns an error for a request whose attributes `unused` no rule uses, and to which no rule applies.
pub fn unused_attributes_error(policy: &Policy, domain: &str, unused: &[&str]) -> RequestError {
    let used = names_that_rules_use(policy, domain);
    let domain = excerpt(domain);
    let problem = match unused {
        [] => "the request has no attributes".to_owned(),
        _ => format!("no rule of domain `{domain}` uses {}", list_names(unused)),
    };
    let remedy = match suggest_attribute(unused, &used) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => "correct the names, or list them in `attributes` of the policy".to_owned(),
    };
    RequestError(format!(
        "{problem}, and none applies to the request; {remedy} Its rules use {}",
        list_names(&used)
    ))
}

/// Returns the names of the attributes that the rules of a domain use.
pub fn names_that_rules_use<'p>(policy: &'p Policy, domain: &str) -> Vec<&'p str> {
    policy.domain_names(domain).into_iter().flat_map(|names| names.attributes()).collect()
}

/// Returns the attribute of rules that one of the unused names probably means.
pub fn suggest_attribute<'u>(unused: &[&str], used: &[&'u str]) -> Option<&'u str> {
    unused
        .iter()
        .take(MAX_LISTED_NAMES)
        .find_map(|name| most_similar_word(name, used.iter().copied()))
}

/// Formats a list of names, which a client may have chosen, such as `` `a`, `b` ``. Long names and long lists are cut.
pub fn list_names(names: &[&str]) -> String {
    let listed = names.iter().take(MAX_LISTED_NAMES);
    let listed: Vec<String> = listed.map(|name| format!("`{}`", excerpt(name))).collect();
    let listed = listed.join(", ");
    match names.len().checked_sub(MAX_LISTED_NAMES) {
        Some(more) if more > 0 => format!("{listed} and {more} more"),
        _ => listed,
    }
}

/// Returns the error for a cost that no rule charges. `rules` describes the rules, `known` are the names of their costs,
/// and `counts_unnamed` is whether a rule charges the unnamed cost.
fn unknown_cost_error(
    unknown: UnknownCost<'_>,
    rules: &str,
    known: &[&str],
    counts_unnamed: bool,
) -> RequestError {
    RequestError(match unknown {
        UnknownCost::Unnamed(units) => {
            let example = known.first().copied().unwrap_or("tokens");
            format!(
                "no rule of {rules} charges `cost`; send the units by name, for example {{\"costs\":{{\"{example}\":{units}}}}}. Its rules charge {}",
                list_names(known)
            )
        }
        UnknownCost::Named(name) => {
            let problem = format!("no rule of {rules} charges `{}`", excerpt(name));
            let listed = list_names(known);
            match (most_similar_word(name, known.iter().copied()), known) {
                (Some(meant), _) => {
                    format!("{problem}; did you mean `{meant}`? Its rules charge {listed}")
                }
                (None, [_, ..]) => format!("{problem}; its rules charge {listed}"),
                (None, []) if counts_unnamed => {
                    format!("{problem} or another named cost; send the units in `cost`")
                }
                (None, []) => format!("{problem} or another named cost; remove it from `costs`"),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use slidegate::Descriptor;

    use super::*;

    fn error_of(rules: &str, descriptor: Descriptor<'_>) -> String {
        let policy = Policy::from_yaml(&format!("rules: [{rules}]")).unwrap();
        check_costs(&policy, &Request::new("default", descriptor)).unwrap_err().to_string()
    }

    #[test]
    fn unknown_cost_error_names_costs_of_rules() {
        let tokens = "{ name: a, limits: [9/s], cost: tokens }";
        let images = "{ name: b, limits: [9/s], cost: images }";
        let both = format!("{tokens}, {images}");
        let named = |name| Descriptor::new([]).with_cost(name, 5);
        assert_eq!(
            error_of(&both, named("token")),
            "no rule of domain `default` charges `token`; did you mean `tokens`? Its rules charge `images`, `tokens`"
        );
        assert_eq!(
            error_of(&both, named("seconds")),
            "no rule of domain `default` charges `seconds`; its rules charge `images`, `tokens`"
        );
        assert_eq!(
            error_of(tokens, Descriptor::new([]).cost(4000)),
            "no rule of domain `default` charges `cost`; send the units by name, for example {\"costs\":{\"tokens\":4000}}. Its rules charge `tokens`"
        );
        assert_eq!(
            error_of("{ name: a, limits: [9/s] }", named("tokens")),
            "no rule of domain `default` charges `tokens` or another named cost; send the units in `cost`"
        );
        assert_eq!(
            error_of("{ name: a, limits: [9/s], cost: 1 }", named("tokens")),
            "no rule of domain `default` charges `tokens` or another named cost; remove it from `costs`"
        );
    }

    #[test]
    fn listed_names_are_cut() {
        let long = "x".repeat(1000);
        assert_eq!(list_names(&["a", &long]), format!("`a`, `{}…`", "x".repeat(64)));
        let many = vec!["a"; MAX_LISTED_NAMES + 2];
        assert!(list_names(&many).ends_with("`a` and 2 more"));
    }
}
