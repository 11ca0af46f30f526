//! Tests of the warnings about valid policies.

use std::fmt::Write;

use slidegate::Policy;
use slidegate::policy::file::MAX_RULES;

/// Returns the warnings of a policy, formatted as `line:column: message`.
fn formatted_warnings(yaml: &str) -> Vec<String> {
    let policy = Policy::from_yaml(yaml).unwrap_or_else(|errors| panic!("{errors}\nin\n{yaml}"));
    let warnings = policy.warnings().iter();
    let text = |warning: &slidegate::policy::PolicyWarning| {
        format!("{}:{}: {}", warning.line(), warning.column(), warning.message())
    };
    warnings.map(text).collect()
}

/// Returns the attribute name in each evasion warning about a policy. Each line of `rules` has the fields of one rule.
fn attributes_named_in_warnings(rules: &str) -> Vec<String> {
    let rules: String = (rules.trim().lines().enumerate())
        .map(|(index, rule)| format!("  - {{ name: r{index}, limits: [9/s], {} }}\n", rule.trim()))
        .collect();
    let names = formatted_warnings(&format!(
        "routes: [/login, '/users/{{id}}', '/v1/{{*rest}}']\nrules:\n{rules}"
    ));
    let name = |warning: &String| {
        let (_, rest) = warning.split_once("the client chooses `").expect(warning);
        rest.split_once('`').unwrap().0.to_owned()
    };
    names.iter().map(name).collect()
}

#[test]
fn client_chosen_key_gives_warning() {
    for (per, name) in [
        ("header.x-api-key|ip", "header.x-api-key"),
        ("header.x-api-key", "header.x-api-key"),
        ("user|header.x-user|ip", "header.x-user"),
        ("api_key", "api_key"),
        ("api_key#2", "api_key#2"),
        ("query.key", "query.key"),
        ("cookie.session", "cookie.session"),
        ("user_agent", "user_agent"),
        ("ip, header.x-device", "header.x-device"),
        ("ip, path", "path"),
        ("route, api_key|ip", "api_key"),
    ] {
        assert_eq!(attributes_named_in_warnings(&format!("per: [{per}]")), [name], "{per}");
    }
    let deny = "per: [api_key], when_missing: deny";
    assert_eq!(
        attributes_named_in_warnings(deny),
        ["api_key"],
        "a client can invent a key as well as omit it"
    );
}

#[test]
fn client_chosen_key_warning_has_position_and_remedy() {
    let yaml = "rules:\n  - name: a\n    per: [route, header.x-api-key|ip]\n    limits: [9/s]\n";
    let policy = Policy::from_yaml(yaml).unwrap();
    let [warning] = policy.warnings() else { panic!("{:?}", policy.warnings()) };
    assert_eq!(
        warning.to_string(),
        "\
3:18: warning: the client chooses `header.x-api-key` and can evade this limit with a new value in each request, because no other rule limits these requests; add a rule with `per: [ip]` (`remote_address` from Envoy)
    3 |     per: [route, header.x-api-key|ip]
      |                  ^^^^^^^^^^^^^^^^^^^"
    );
    assert_eq!(policy.observing().warnings(), policy.warnings());
}

#[test]
fn key_not_chosen_by_client_gives_no_warning() {
    for per in
        ["ip", "user|ip", "tenant", "remote_address", "ip|header.x-api-key", "ip, route", "host"]
    {
        assert_eq!(attributes_named_in_warnings(&format!("per: [{per}]")), [""; 0], "{per}");
    }
    assert_eq!(attributes_named_in_warnings("when: { method: GET }"), [""; 0], "without `per`");
}

#[test]
fn address_rule_prevents_warning_for_its_requests() {
    let key = "per: [header.x-api-key|ip]";
    let with = |one: &str, other: &str| {
        attributes_named_in_warnings(&format!("{key}, {one}\n{other}")).len()
    };
    let everywhere = "mode: enforce";
    let login = "when: { method: POST, route: /login }";
    for other in [
        "per: [ip]",
        "per: [remote_address]",
        "per: [ip, route|host]",
        "mode: { enforce: 100% }, per: [ip]",
        "mode: enforce",
        "per: [user|ip]",
        "per: [user], when_missing: deny",
        "per: [ip], overrides: [{ when: { plan: pro }, limits: unlimited }]",
        "per: [ip], when: { ip: { not: [10.0.0.0/8, 'fc00::/7'] } }",
        "per: [ip], when: { path: '*' }",
    ] {
        assert_eq!(with(everywhere, other), 0, "{other}");
        assert_eq!(with(login, other), 0, "{other}");
    }
    for other in [
        "per: [ip], mode: observe",
        "per: [ip], mode: off",
        "per: [ip], mode: { enforce: 50% }",
        "per: [ip], limits: unlimited",
        "per: [ip], domain: other",
        "per: [user]",
        "per: [user], when: { user: '*' }",
        "per: [ip], when: { route: /v1/* }",
        "per: [ip], when: { method: GET }",
        "per: [ip], when: { ip: 10.0.0.0/8 }",
        "per: [ip], overrides: [{ when: { user: { not: '*' } }, mode: observe }]",
    ] {
        let other = other
            .replace("limits: unlimited", "overrides: [{ when: { ip: '*' }, limits: unlimited }]");
        assert_eq!(with(everywhere, &other), 1, "{other}");
        assert_eq!(with(login, &other), 1, "{other}");
    }
}

#[test]
fn address_rule_with_narrower_conditions_keeps_warning() {
    let login = "when: { method: POST, route: /login }";
    for (one, other, evades) in [
        (login, login, false),
        (login, "when: { route: /login }", false),
        (login, "when: { path: /login }", false),
        (login, "when: { path: /log* }", false),
        (login, "when: { method: [GET, POST] }", false),
        (login, "when: { method: { not: GET } }", false),
        (login, "when: { method: { not: POST } }", true),
        (login, "when: { path: /login/x }", true),
        ("when: { route: '/users/{id}' }", "when: { path: /users/* }", false),
        ("when: { path: /v1/* }", "when: { path: /v* }", false),
        ("when: { path: /v* }", "when: { path: /v1/* }", true),
        ("when: { route: [/login, '/users/{id}'] }", "when: { route: /login }", true),
        ("when: { plan: [free, pro] }", "when: { plan: [free, pro, max] }", false),
        ("when: { plan: [free, pro] }", "when: { plan: free }", true),
        ("when: { ip: 10.0.0.0/8 }", "when: { ip: [10.0.0.0/8, 192.168.0.0/16] }", false),
        ("when: { ip: { not: 10.0.0.0/8 } }", "when: { ip: { not: 10.0.0.0/16 } }", false),
        ("when: { user: { not: '*' } }", "when: { user: { not: ann } }", false),
    ] {
        let rules = format!("per: [api_key|ip], {one}\nper: [ip], {other}");
        assert_eq!(!attributes_named_in_warnings(&rules).is_empty(), evades, "{rules}");
    }
    // Each rule alone protects only some requests; together they protect all.
    for others in [
        "per: [ip], when: { user: { not: '*' } }\nper: [user], when: { user: '*' }",
        "per: [ip], when: { method: GET }\nper: [ip], when: { method: { not: GET } }",
    ] {
        assert_eq!(
            attributes_named_in_warnings(&format!("per: [api_key|ip]\n{others}")),
            [""; 0],
            "{others}"
        );
    }
}

#[test]
fn two_client_chosen_keys_both_give_warnings() {
    assert_eq!(
        attributes_named_in_warnings("per: [header.x-api-key|ip]\nper: [query.key|ip]"),
        ["header.x-api-key", "query.key"]
    );
}

#[test]
fn key_that_clients_cannot_vary_has_no_warning() {
    for rule in [
        "per: [header.x-plan], when: { header.x-plan: free }",
        "per: [header.x-plan, ip], when: { header.x-plan: [free, pro] }",
        "per: [api_key], mode: observe",
        "per: [api_key], mode: off",
        "per: [api_key], overrides: [{ when: { api_key: '*' }, limits: unlimited }]",
        "per: [api_key], overrides: [{ when: { api_key: '*' }, limits: denied }]",
        "per: [api_key], when: { api_key: { literal: [a, b] } }",
    ] {
        assert_eq!(attributes_named_in_warnings(rule), [""; 0], "{rule}");
    }
    for rule in [
        "per: [api_key], when: { api_key: sk_* }",
        "per: [api_key], when: { api_key: { not: leaked } }",
        "per: [api_key], mode: { enforce: 5% }",
        "per: [api_key], mode: observe, overrides: [{ when: { plan: free }, mode: enforce }]",
        "per: [api_key], overrides: [{ when: { api_key: [leaked] }, limits: denied }]",
    ] {
        assert_eq!(attributes_named_in_warnings(rule), ["api_key"], "{rule}");
    }
}

#[test]
fn address_descriptor_prevents_warning_for_descriptor_rule() {
    let rule = "descriptor: [plan, api_key], per: [api_key]";
    assert_eq!(attributes_named_in_warnings(rule), ["api_key"]);
    assert_eq!(
        attributes_named_in_warnings(&format!(
            "{rule}\nper: [remote_address], descriptor: [remote_address]"
        )),
        [""; 0]
    );
    assert_eq!(attributes_named_in_warnings(&format!("{rule}\nper: [remote_address]")), [""; 0]);
    assert_eq!(
        attributes_named_in_warnings("descriptor: [path, user], per: [path, user]"),
        [""; 0],
        "any names"
    );
}

#[test]
fn replaced_address_rule_does_not_prevent_warning() {
    let yaml = |replaces: &str| {
        format!(
            "rules: [{{ name: ip, per: [ip], limits: [9/s] }}, {{ name: key, per: [api_key], {replaces} limits: [9/s] }}]"
        )
    };
    assert_eq!(formatted_warnings(&yaml("")), [""; 0]);
    assert_eq!(formatted_warnings(&yaml("replaces: [ip],")).len(), 1);
}

#[test]
fn route_condition_without_routes_gives_warning() {
    let rules =
        "rules:\n  - name: a\n    when: { method: POST, route: /login }\n    limits: [9/s]\n";
    let overrides = "    overrides: [{ when: { route: /log* }, limits: [1/s] }]\n";
    let found = formatted_warnings(&format!("{rules}{overrides}"));
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(
        found[0].starts_with("3:27: the policy has no `routes`, so this condition matches only if")
    );
    assert!(found[1].starts_with("5:27: "), "{found:#?}");
    assert_eq!(formatted_warnings(&format!("routes: [/login]\n{rules}")), [""; 0]);
    let with_descriptors =
        "rules: [{ name: a, descriptor: [route], when: { route: /a }, limits: [9/s] }]";
    assert_eq!(formatted_warnings(with_descriptors), [""; 0]);
}

#[test]
fn colon_parameter_in_route_gives_warning() {
    let found = formatted_warnings(
        "routes:\n  - /users/:id/posts/:post_id\n  - /v1/users:batch\n  - '/a/{id}'\n  - /b/:8080\nrules: []",
    );
    assert_eq!(
        found,
        [
            "2:5: `:id` in `/users/:id/posts/:post_id` matches only the text `:id`; write `/users/{id}/posts/{post_id}` for any segment"
        ]
    );
}

#[test]
fn rule_that_never_applies_gives_warning() {
    for (fields, at, message) in [
        (
            "limits: [9/s], mode: { enforce: 0% }, per: [ip]",
            "{ enforce",
            "this rule never denies, because 0% selects no key",
        ),
        (
            "limits: [9/s], when: { method: { literal: [post] } }",
            "post",
            "this value never matches, because methods are upper-case; write `POST`",
        ),
        (
            "limits: [9/s], when: { path: { not: { literal: [login] } } }",
            "login",
            "this value never matches, because a path begins with `/`; write `/login`",
        ),
        (
            "limits: [9/s], when: { ip: { literal: [10.0.0.0/8] } }",
            "10.0.0.0/8",
            "this value never matches, because `10.0.0.0/8` is not an address",
        ),
        (
            "limits: [9/s], when: { route: { literal: [/nope] } }",
            "/nope",
            "this value never matches, because `/nope` is not listed in `routes`",
        ),
        (
            "limits: [9/s], when: { path: /users/7, route: /login }",
            "route:",
            "this rule never applies, because no `path` that is `/users/7` has a `route` that is `/login`",
        ),
        (
            "limits: [9/s], when: { user: { not: '*' } }, per: [ip, user]",
            "user]",
            "this rule never applies, because `when` requires `user` to be absent",
        ),
    ] {
        let rule = format!("  - {{ name: a, {fields} }}");
        let found =
            formatted_warnings(&format!("routes: [/login, '/users/{{id}}']\nrules:\n{rule}\n"));
        assert_eq!(found.len(), 1, "{fields}: {found:#?}");
        let column = 1 + rule.rfind(at).unwrap();
        assert!(found[0].starts_with(&format!("3:{column}: {message}")), "{fields}: {found:#?}");
    }
    for valid_fields in [
        "limits: [9/s], mode: { enforce: 0.01% }, per: [ip]",
        "limits: [9/s], mode: off",
        "limits: [9/s], when: { path: /users/7, route: '/users/{id}' }",
        "limits: [9/s], when: { path: /users/*, route: /login }",
        "limits: [9/s], when: { user: { not: '*' } }, per: [user], when_missing: deny",
        "limits: [9/s], when: { user: { not: '*' } }, per: [user|ip]",
        "limits: unlimited, when: { user: { not: '*' } }, per: [user]",
        "limits: [9/s], when: { user: { not: a* } }, per: [user]",
    ] {
        let found = formatted_warnings(&format!(
            "routes: [/login, '/users/{{id}}']\nrules:\n  - {{ name: a, {valid_fields} }}\n"
        ));
        assert_eq!(found, [""; 0], "{valid_fields}");
    }
}

#[test]
fn override_after_wider_override_gives_warning() {
    let found = |first: &str, second: &str| {
        formatted_warnings(&format!(
            "rules:\n  - name: a\n    when: {{ zone: eu }}\n    limits: [9/s]\n    overrides:\n      - {{ when: {{ {first} }}, limits: [1/s] }}\n      - {{ when: {{ {second} }}, limits: [2/s] }}\n"
        ))
    };
    for (first, second) in [
        ("plan: '*'", "plan: pro"),
        ("plan: p*", "plan: [pro, plus]"),
        ("plan: p*", "plan: pr*o"),
        ("plan: { not: free }", "plan: [pro, max]"),
        ("plan: { not: free }", "plan: { not: [free, trial] }"),
        ("ip: 10.0.0.0/8", "ip: [10.1.0.0/16, 10.2.3.4]"),
        ("zone: e*", "plan: pro"),
        ("plan: pro", "plan: pro, user: ann"),
    ] {
        let found = found(first, second);
        assert_eq!(found.len(), 1, "{first}, {second}: {found:#?}");
        assert!(
            found[0].starts_with(
                "7:9: this override never applies, because the override in line 6 matches all"
            ),
            "{found:#?}"
        );
    }
    for (first, second) in [
        ("plan: pro", "plan: '*'"),
        ("plan: p*", "plan: [pro, max]"),
        ("plan: p*o", "plan: p*"),
        ("plan: { not: free }", "plan: { not: trial }"),
        ("plan: { not: pro }", "plan: p*"),
        ("plan: '*'", "plan: { not: pro }"),
        ("ip: 10.1.0.0/16", "ip: 10.0.0.0/8"),
        ("plan: pro, user: ann", "plan: pro"),
    ] {
        assert_eq!(found(first, second), [""; 0], "{first}, {second}");
    }
}

#[test]
fn always_replaced_rule_gives_warning() {
    let found = |one: &str, other: &str| {
        formatted_warnings(&format!(
            "rules:\n  - {{ name: a, {one}, limits: [9/s] }}\n  - {{ name: b, {other}, replaces: [a], limits: [1/s] }}\n"
        ))
    };
    let replaced = found("per: [user]", "per: [user]");
    assert_eq!(replaced.len(), 1, "{replaced:#?}");
    assert!(
        replaced[0].starts_with("2:13: this rule never applies, because rule `b` replaces it"),
        "{replaced:#?}"
    );
    for (one, other) in [
        ("per: [user]", "per: [user], when: { plan: pro }"),
        ("per: [user]", "per: [user], mode: off"),
        ("per: [user]", "per: [tenant]"),
        ("per: [user, route]", "per: [user]"),
    ] {
        assert_eq!(found(one, other), [""; 0], "{one}, {other}");
    }
}

#[test]
fn invalid_policy_reports_errors_without_warnings() {
    let errors = Policy::from_yaml("rules: [{ name: a, per: [api_key], limits: [9/fortnight] }]");
    assert_eq!(errors.unwrap_err().0.len(), 1);
}

/// Tests that the search for warnings stops in a large policy before it has checked every rule.
#[test]
fn warning_search_in_large_policy_is_bounded() {
    let mut yaml = String::from("rules:\n");
    for index in 0..MAX_RULES {
        writeln!(
            yaml,
            "  - {{ name: r{index}, when: {{ path: '/{index}/*' }}, per: [api_key], limits: [9/s] }}"
        )
        .unwrap();
    }
    let found = formatted_warnings(&yaml).len();
    assert!(found > 0 && found < 1_000, "{found} warnings; at most 1,000 are reported");
}

#[test]
fn unlimited_rule_with_store_error_deny_gives_warning() {
    let warned = "rules:\n  - { name: a, limits: unlimited, on_store_error: deny }\n";
    assert_eq!(
        formatted_warnings(warned),
        [
            "2:51: `deny` has no effect here, because an unlimited rule never uses the store; write a limit that is never reached, for example `limits: [1000000/s]`, or remove `on_store_error`"
        ]
    );
    let plans = "overrides: [{ when: { plan: pro }, limits: unlimited }]";
    assert_eq!(formatted_warnings(&warned.replace("deny", &format!("deny, {plans}"))).len(), 1);
    for without_warning in [
        "{ name: a, limits: unlimited, on_store_error: allow }",
        "{ name: a, limits: unlimited }",
        "{ name: a, limits: [1000000/s], on_store_error: deny }",
        "{ name: a, limits: requested, on_store_error: deny }",
        "{ name: a, limits: [1/s], on_store_error: deny, overrides: [{ when: { plan: pro }, limits: unlimited }] }",
        "{ name: a, limits: unlimited, on_store_error: deny, overrides: [{ when: { plan: free }, limits: [1/s] }] }",
    ] {
        let yaml = format!("defaults: {{ on_store_error: deny }}\nrules: [{without_warning}]");
        assert_eq!(formatted_warnings(&yaml), [""; 0], "{without_warning}");
    }
}

/// Returns the warnings about the overrides of a rule with the limit 10/s, with this field `attributes`.
fn warnings_about_override(fields: &str, attributes: &str) -> Vec<String> {
    formatted_warnings(&format!(
        "{attributes}\nrules:\n  - {{ name: a, per: [user|ip], limits: [10/s], overrides: [{{ {fields} }}] }}\n"
    ))
}

#[test]
fn header_that_selects_higher_limit_gives_warning() {
    for fields in [
        "when: { header.x-plan: pro }, limits: [100/s]",
        "when: { header.x-plan: [pro, max] }, limits: unlimited",
        "when: { header.x-plan: pro }, limits: [10/s], mode: observe",
        "when: { header.x-plan: pro, method: GET }, limits: [700/min]",
        "when: { query.plan: pro }, limits: [100/s, 1000000/d]",
    ] {
        let warnings = warnings_about_override(fields, "");
        let [warning] = &warnings[..] else { panic!("{fields}: {warnings:?}") };
        assert!(warning.starts_with("3:70: a client that sends `"), "{warning}");
    }
    let twice = "when: { header.x-plan: pro }, limits: [100/s] }, { when: { header.x-plan: max }, limits: [200/s]";
    assert_eq!(warnings_about_override(twice, "").len(), 1, "one warning for each attribute");
}

#[test]
fn header_that_selects_no_higher_limit_gives_no_warning() {
    for fields in [
        "when: { header.x-plan: free }, limits: [5/s]",
        "when: { header.x-plan: free }, limits: [500/min]",
        "when: { header.x-plan: free }, limits: denied",
        "when: { plan: pro }, limits: [100/s]",
        "when: { header.x-api-key: k-4711 }, limits: [100/s]",
        "when: { header.authorization: Bearer 4711 }, limits: unlimited",
        "when: { header.x-plan: pro, ip: 10.0.0.0/8 }, limits: [100/s]",
        "when: { header.x-plan: pro, user: ann }, limits: [100/s]",
    ] {
        assert_eq!(warnings_about_override(fields, ""), [""; 0], "{fields}");
    }
    let pro = "when: { header.x-plan: pro }, limits: [100/s]";
    let listed = "attributes: [user, ip, header.x-plan]";
    assert_eq!(warnings_about_override(pro, listed), [""; 0], "the list states who sets it");
}
