//! The engine on the SDK's own host: the same objects and checks as in a real one, without a daemon.

use std::path::Path;

use synapse_plugin_sdk::{
    api,
    prelude::*,
    testing::{FakeCall, FakeHost, Generation, generate_options, runtime_config},
};

/// The model of this project.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/model/lines.txt");

fn loaded(model: &Path) -> Result<Generation, Error> {
    let settings = runtime_config("lines", "f32");
    Generation::load(
        &super::plugin(),
        FakeHost::new(),
        &[("weights", model)],
        &settings,
    )
}

/// The text for a prompt whose ids sum up to 0, how many tokens it has, and why it ended.
fn text(options: &api::GenerateOptions) -> (String, u32, FinishReason) {
    let model = loaded(Path::new(MODEL)).expect("loads");
    let (generated, collected) = model
        .generate(&FakeCall::new(1), &[0], options)
        .expect("generates");
    assert_eq!(generated.prompt_tokens, 1);
    let text = String::from_utf8(collected.bytes).expect("whole UTF-8 sequences");
    (text, generated.generated_tokens, generated.finish)
}

/// A known text: when this fails, the identity's version must rise, or the change go.
#[test]
fn the_text_is_that_of_version_1() {
    let whole = "a model is a file with a digest".to_owned();
    assert_eq!(text(&generate_options(64)), (whole, 8, FinishReason::STOP));
    assert_eq!(
        text(&generate_options(2)),
        ("a model ".to_owned(), 2, FinishReason::LENGTH)
    );
}

/// A stop text ends the answer and is no part of it, also where it spans words.
#[test]
fn stop_texts_are_held_back() {
    let mut options = generate_options(64);
    options.stop = vec!["is a f".into(), "nowhere".into()].into();
    assert_eq!(text(&options).0, "a model ");
    options.stop = vec!["digest!".into()].into();
    assert_eq!(text(&options).0, "a model is a file with a digest");
}

/// A call ends where the host asks it to, and reports its progress by the rules (PC-40 to PC-43).
#[test]
fn a_call_gives_way_and_ends_when_asked() {
    let model = loaded(Path::new(MODEL)).expect("loads");
    let call = FakeCall::new(1).cancel_at(2);
    let error = model
        .generate(&call, &[0], &generate_options(64))
        .expect_err("is cancelled");
    assert_eq!(error.code, ErrorCode::CANCELLED);
    assert_eq!(call.violations(), Vec::<String>::new());
}

/// A grammar is never ignored (PC-34).
#[test]
fn a_grammar_is_refused() {
    let model = loaded(Path::new(MODEL)).expect("loads");
    let mut options = generate_options(64);
    options.grammar = "root ::= \"a\"".into();
    let error = model
        .generate(&FakeCall::new(1), &[0], &options)
        .expect_err("has none");
    assert_eq!(error.code, ErrorCode::GRAMMAR_UNAVAILABLE);
}

/// What has no lines is refused, and nothing stays behind.
#[test]
fn another_file_is_refused() {
    let manifest = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    let error = loaded(manifest).map(|_| ()).expect_err("has no lines");
    assert_eq!(error.code, ErrorCode::ARTIFACT_INVALID);
}
