//! Grammars: valid, broken, and made to harm. What the engine's own check lets through, llama.cpp must take.

use proptest::prelude::*;
use synapse_llama_cpp::grammar;
use synapse_plugin_sdk::api::{
    EngineError, ErrorCode, FinishReason, GenerateEngineObject, GenerateOptions, LoadedModel,
};

use crate::ground::{Output, fixture, generate, generation, generator, load, options};

fn llama() -> (GenerateEngineObject, LoadedModel) {
    let engine = generator();
    let loaded = load!(engine, &fixture("llama-generate"), generation(128)).unwrap();
    (engine, loaded)
}

fn under(
    engine: &GenerateEngineObject,
    loaded: &LoadedModel,
    grammar: &str,
    temperature: f32,
    wanted: u32,
) -> Result<Output, EngineError> {
    let wanted = GenerateOptions {
        grammar: grammar.into(),
        temperature,
        seed: 3,
        ..options(wanted)
    };
    generate(engine, loaded, &[860, 64], &wanted)
}

/// The table: every kind of grammar has a typed outcome, and the engine serves on after each.
///
/// Proves API-18.
#[test]
fn every_kind_of_grammar_has_its_outcome() {
    let (engine, loaded) = llama();
    let plain = generate(&engine, &loaded, &[860, 64], &options(6)).unwrap();
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000));
    let long = format!("root ::= \"{}\"", "a".repeat(70_000));
    let huge = format!("root ::= \"{}\"{{2000}}", "a".repeat(60_000));
    let doubling: String = (0..60).map(|i| format!("r{i} ::= r{} | r{}\n", i + 1, i + 1)).collect();
    let doubling = format!("root ::= r0\n{doubling}r60 ::= \"a\"");
    let chain: String = (0..5000).map(|i| format!("r{i}::=r{}\n", i + 1)).collect();
    let chain = format!("root ::= r0\n{chain}r5000 ::= \"a\"");
    for (name, text) in [
        ("unterminated text", "root ::= \"a"),
        ("unterminated class", "root ::= [a-"),
        ("unterminated group", "root ::= (\"a\" | \"b\""),
        ("60,000 nested parentheses", &deep),
        ("no rules", "  # nothing\n"),
        ("no root", "start ::= \"a\""),
        ("an undefined rule", "root ::= word"),
        ("left recursion", "root ::= root \"a\" | \"a\""),
        (
            "hidden left recursion",
            "root ::= a root \"x\" | \"y\"\na ::= b\nb ::= \"\"",
        ),
        ("a cycle of nothing", "root ::= a root\na ::= b\nb ::= \"\""),
        ("fewer at the most than at the least", "root ::= \"a\"{5,2}"),
        ("a repetition of nothing", "root ::= *"),
        ("too many repetitions", "root ::= \"a\"{2001}"),
        ("multiplied repetitions", "root ::= ((\"a\"{0,50}){0,50}){0,50}"),
        ("too long", &long),
        ("too large", &huge),
        ("doubling rules", &doubling),
        ("a long chain of rules", &chain),
        ("an unknown escape", "root ::= \"\\q\""),
        ("a short escape", "root ::= \"\\x1\""),
        ("a token", "root ::= <|im_start|>"),
        ("a token's id", "root ::= <[1]>"),
        ("a zero byte", "root ::= \"a\0b\""),
        ("no text at all", "\u{1}\u{2}"),
    ] {
        let error = under(&engine, &loaded, text, 0.0, 6).err();
        let error = error.unwrap_or_else(|| panic!("{name} was taken"));
        assert_eq!(error.code, ErrorCode::GRAMMAR_INVALID, "{name}: {}", error.message);
        assert!(error.message.len() < 400, "{name}: {}", error.message);
    }
    let empty = under(&engine, &loaded, "", 0.0, 6).unwrap();
    assert_eq!(empty.ids, plain.ids, "no grammar at all");
    for temperature in [0.0, 1.0] {
        let at_once = under(&engine, &loaded, "root ::= \"\"", temperature, 6).unwrap();
        assert_eq!((at_once.text.as_str(), at_once.done.generated_tokens), ("", 0));
        assert_eq!(at_once.done.finish, FinishReason::STOP);
    }
    assert_eq!(
        generate(&engine, &loaded, &[860, 64], &options(6)).unwrap().ids,
        plain.ids
    );
}

/// What is written is in the grammar's language, greedy and drawn, to its end.
#[test]
fn what_is_written_is_in_the_language() {
    let (engine, loaded) = llama();
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    for temperature in [0.0, 0.7, 2.0] {
        let choice = under(
            &engine,
            &loaded,
            "root ::= \"yes\" | \"no\" # one word",
            temperature,
            16,
        )
        .unwrap();
        assert!(["yes", "no"].contains(&choice.text.as_str()), "{:?}", choice.text);
        assert_eq!(choice.done.finish, FinishReason::STOP);
        let date = under(
            &engine,
            &loaded,
            "root ::= d{4} \"-\" d d\nd ::= [0-9]",
            temperature,
            16,
        )
        .unwrap();
        let (year, month) = date.text.split_once('-').expect("a dash");
        assert!(
            year.len() == 4 && month.len() == 2 && digits(year) && digits(month),
            "{:?}",
            date.text
        );
        let endless = under(&engine, &loaded, "root ::= [a-c]+ [^a-z]", temperature, 4).unwrap();
        let behind: Vec<char> = endless.text.trim_start_matches(['a', 'b', 'c']).chars().collect();
        assert!(
            matches!(behind[..], [] | [..='`' | '{'..]) && !endless.text.is_empty(),
            "{:?}",
            endless.text
        );
        let cat = under(&engine, &loaded, "root ::= \"猫\\u732b\" \"\\x41\"", temperature, 24).unwrap();
        assert_eq!((cat.text.as_str(), cat.done.finish), ("猫猫A", FinishReason::STOP));
    }
}

/// Pieces from which grammars are strewn together: most are wrong, many are nearly right.
const PIECES: [&str; 36] = [
    "root ::= ",
    "\nroot ::= ",
    "\na ::= ",
    "\nb::=",
    "a ",
    "b ",
    "root ",
    "\"x\" ",
    "\"\" ",
    "\"\\\"\" ",
    "[a-z] ",
    "[^\\n] ",
    "[] ",
    "[\\x41-\\u00e9] ",
    "(",
    ") ",
    "( ",
    ")",
    "| ",
    "|",
    "* ",
    "+ ",
    "? ",
    "{2} ",
    "{0} ",
    "{1,3} ",
    "{2,} ",
    "{,2} ",
    "{3,1} ",
    ". ",
    "\n",
    "\r\n",
    "# note\n",
    "-",
    " ",
    "\\",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: if std::env::var_os("SYNAPSE_TEST_LONG").is_some() { 20_000 } else { 1500 }, ..ProptestConfig::default() })]

    /// What the check lets through is parsed by llama.cpp and obeyed for a few tokens; nothing ends the process.
    #[test]
    fn what_the_check_lets_through_llama_cpp_takes(picks in prop::collection::vec(0..PIECES.len(), 0..14)) {
        thread_local! {
            static LLAMA: (GenerateEngineObject, LoadedModel) = llama();
        }
        let text: String = std::iter::once("root ::= ").chain(picks.iter().map(|pick| PIECES[*pick])).collect();
        let checked = grammar::check(&text);
        LLAMA.with(|(engine, loaded)| {
            match (checked, under(engine, loaded, &text, 0.0, 2)) {
                (Ok(()), Ok(_)) => Ok(()),
                (Err(_), Err(error)) => {
                    prop_assert_eq!(error.code, ErrorCode::GRAMMAR_INVALID);
                    Ok(())
                }
                // A grammar may ask for what this vocabulary cannot spell.
                (Ok(()), Err(error)) if error.message.contains("no token of this model continues") => Ok(()),
                (checked, outcome) => {
                    let outcome = outcome.map(|output| output.text).map_err(|error| error.message.into_string());
                    Err(TestCaseError::fail(format!("{text:?}: {checked:?}, but {outcome:?}")))
                }
            }
        })?;
    }
}
