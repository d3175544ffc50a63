//! Grammars: the gate, and what becomes of grammars of every sort.
//!
//! The reference engine has none, so it shows both refusals; llama.cpp has them, so it shows that a text matches. Its
//! parser is C++ that recurses: what could take its process down must be a typed error, and the next request is served.

use serde_json::{Value, json};

use super::smollm2;
use crate::support::client::Client;
use crate::support::daemon::Place;
use crate::support::toys::{self, Kind};

/// The grammar's gate is open in a place with this configuration.
pub const OPEN: &str = r#"{"grammar_enabled": true}"#;

/// Closed by default; open, an engine without grammars refuses too. Never ignored.
///
/// Proves API-18.
#[test]
fn a_grammar_is_refused_by_the_gate_and_by_an_engine_without_grammars() {
    for (config, expected) in [("{}", "grammar_disabled"), (OPEN, "grammar_unavailable_in_build")] {
        let place = Place::new().config(config);
        toys::write(&place, "writer", Kind::Generate);
        let daemon = place.start();
        let mut client = daemon.connect();
        toys::install(&mut client, &place, "writer");
        let mut params = json!({"model": "writer", "prompt": "x", "max_tokens": 4});
        client.ok("microllm.oneshot", &params);
        params["grammar"] = json!("root ::= \"a\"");
        let (code, error) = client.fails("microllm.oneshot", &params);
        assert_eq!(code, expected, "{error}");
        if expected == "grammar_disabled" {
            assert_eq!(error["data"]["detail"]["config"], "grammar_enabled", "{error}");
        }
        assert!(daemon.stop().success());
    }
}

/// What a grammar gives: a text, or a public code.
fn outcome(client: &mut Client, grammar: &str) -> Result<Value, String> {
    let params = json!({"model": smollm2::MODEL, "prompt": "Name a colour.", "max_tokens": 24, "grammar": grammar});
    client
        .call("microllm.oneshot", &params)
        .map_err(|error| crate::support::client::code(&error))
}

/// Proves API-18. Every row ends in a text that matches or in a typed error; after each the model still answers.
#[test]
fn every_grammar_has_a_typed_outcome_and_the_worker_lives() {
    const TEST: &str = "every_grammar_has_a_typed_outcome_and_the_worker_lives";
    let Some(place) = smollm2::place(TEST) else { return };
    let place = place.config(OPEN);
    let daemon = place.start();
    let mut client = daemon.connect();
    smollm2::install(&mut client);
    let nested = format!("root ::= {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000));
    let wide = format!("root ::= \"{}\"", "a".repeat(300 * 1024));
    /// Whether a text is one that the grammar allows.
    type Matches = fn(&str) -> bool;
    /// What a grammar may end in: such a text, or one of these codes.
    type Expected = Result<Matches, &'static [&'static str]>;
    let colour: Matches = |text| ["red", "green", "blue"].contains(&text);
    let digits: Matches = |text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let rows: [(&str, &str, Expected); 11] = [
        ("a choice", r#"root ::= "red" | "green" | "blue""#, Ok(colour)),
        ("a class", "root ::= [0-9]+", Ok(digits)),
        ("ends at once", r#"root ::= """#, Ok(str::is_empty)),
        (
            "not UTF-8 boundaries",
            r#"root ::= "é" | "日本""#,
            Ok(|text| ["é", "日本"].contains(&text)),
        ),
        ("nothing", "", Err(&["grammar_invalid"])),
        ("unterminated", r#"root ::= "red"#, Err(&["grammar_invalid"])),
        ("no root", r#"other ::= "red""#, Err(&["grammar_invalid"])),
        ("an unknown rule", "root ::= nowhere", Err(&["grammar_invalid"])),
        ("left recursion", r#"root ::= root "a""#, Err(&["grammar_invalid"])),
        (
            "60,000 nested parentheses",
            &nested,
            Err(&["grammar_invalid", "limit_exceeded"]),
        ),
        ("over the size", &wide, Err(&["limit_exceeded"])),
    ];
    for (what, grammar, expected) in rows {
        match (outcome(&mut client, grammar), expected) {
            (Ok(answer), Ok(matches)) => {
                let text = answer["text"].as_str().expect("a text");
                assert!(matches(text), "{what}: {text:?}");
            }
            (Err(code), Err(codes)) => assert!(codes.contains(&code.as_str()), "{what}: {code}"),
            (found, _) => panic!("{what}: {found:?}"),
        }
        let answer = outcome(&mut client, r#"root ::= "red" | "green" | "blue""#);
        assert!(
            answer.is_ok_and(|answer| colour(answer["text"].as_str().expect("a text"))),
            "after {what}"
        );
    }
    let crashes = daemon.log().matches("engine_crashed").count();
    assert_eq!(crashes, 0, "{}", daemon.log());
    assert!(daemon.stop().success());
}
