//! Generation at its limits: how it ends, what it may write, what it refuses.

use synapse_plugin_sdk::api::{
    ErrorCode, FinishReason, GenerateEngineObject, GenerateOptions, KeyValue, LoadedModel, RuntimeConfig,
};
use synapse_plugin_sdk::testing::{Collected, FakeCall};

use crate::encoding::texts;
use crate::ground::{config, embedder, fixture, generate, generate_under, generation, generator, load, options};

fn llama() -> (GenerateEngineObject, LoadedModel) {
    let engine = generator();
    let loaded = load!(engine, &fixture("llama-generate"), generation(128)).unwrap();
    (engine, loaded)
}

/// The prompt "a" of the zoo.
const A: [i32; 2] = [860, 64];

/// Its first tokens and text by the zoo's oracle (numpy, float64); the third character is cut by a token's end.
const A_IDS: [i32; 8] = [280, 280, 280, 280, 149, 487, 701, 839];

#[test]
fn length_ends_it_and_the_text_is_whole_characters() {
    let (engine, loaded) = llama();
    let given = generate(&engine, &loaded, &A, &options(8)).unwrap();
    assert_eq!(
        (given.ids.as_slice(), given.done.finish),
        (&A_IDS[..], FinishReason::LENGTH)
    );
    // Token 149 is a byte that no character has alone.
    assert_eq!(given.text, " h h h h\u{fffd}lso anyкт");
    // What is behind the fourth token is the start of a character and stays unsaid.
    for length in 1..=8 {
        let part = generate(&engine, &loaded, &A, &options(length)).unwrap();
        assert!(given.text.starts_with(&part.text), "{length}: {:?}", part.text);
        assert_eq!(part.ids, A_IDS[..part.ids.len()]);
    }
}

/// The same prompt twice, and after another one, gives the same; the context of one call is not seen by the next.
#[test]
fn calls_do_not_see_each_other() {
    let (engine, loaded) = llama();
    let first = generate(&engine, &loaded, &A, &options(16)).unwrap().ids;
    for prompt in texts(&[100, 3]) {
        generate(&engine, &loaded, &prompt, &options(8)).unwrap();
        assert_eq!(generate(&engine, &loaded, &A, &options(16)).unwrap().ids, first);
    }
}

#[test]
fn a_stop_text_ends_it_and_is_not_part_of_the_text() {
    let (engine, loaded) = llama();
    let stop = |texts: &[&str]| GenerateOptions {
        stop: texts.iter().map(|text| (*text).into()).collect::<Vec<_>>().into(),
        ..options(8)
    };
    for (stops, text, finish) in [
        (&["so any"][..], " h h h h\u{fffd}l", FinishReason::STOP),
        (&["zzz", "h h"], " ", FinishReason::STOP),
        (&["zzz"], " h h h h\u{fffd}lso anyкт", FinishReason::LENGTH),
        // Held back to the end, and then no stop text after all.
        (&["ктx"], " h h h h\u{fffd}lso anyкт", FinishReason::LENGTH),
    ] {
        let given = generate(&engine, &loaded, &A, &stop(stops)).unwrap();
        assert_eq!((given.text.as_str(), given.done.finish), (text, finish), "{stops:?}");
    }
}

/// An end token ends it, is not counted and writes nothing: the zoo's item whose fifth token is the end.
#[test]
fn an_end_token_ends_it() {
    let Some(data) = crate::ground::shared() else { return };
    let oracle = crate::ground::json(&data.join("zoo/llama-generate/oracle.json"));
    let items = oracle["items"].as_array().unwrap();
    let item = items.iter().find(|item| item["stop_at"] == 4).unwrap();
    let (engine, loaded) = llama();
    let prompt: Vec<i32> = crate::ground::numbers(&item["input_ids"]);
    let given = generate(&engine, &loaded, &prompt, &options(24)).unwrap();
    let expected: Vec<i32> = crate::ground::numbers(&item["ids"]);
    assert_eq!(given.ids, expected[..4]);
    assert_eq!(
        (given.done.generated_tokens, given.done.finish),
        (4, FinishReason::STOP)
    );
}

/// Prompt and continuation together may fill what the model was loaded for, and no more.
#[test]
fn the_context_is_what_was_asked_for() {
    let engine = generator();
    let loaded = load!(engine, &fixture("llama-generate"), generation(100)).unwrap();
    let code = |prompt: &[i32], wanted| {
        let done = generate(&engine, &loaded, prompt, &options(wanted));
        done.map(|given| given.done.prompt_tokens).map_err(|error| error.code)
    };
    let prompt = &texts(&[101])[0];
    assert_eq!(code(&prompt[..90], 10), Ok(90));
    assert_eq!(code(&prompt[..90], 11), Err(ErrorCode::INPUT_TOO_LONG));
    assert_eq!(code(&prompt[..100], 1), Err(ErrorCode::INPUT_TOO_LONG));
    assert_eq!(code(&prompt[..101], 1), Err(ErrorCode::INPUT_TOO_LONG));
    assert_eq!(code(&prompt[..1], u32::MAX), Err(ErrorCode::INPUT_TOO_LONG));
    assert_eq!(code(&[5, -1], 1), Err(ErrorCode::INVALID_ARGUMENT));
    assert_eq!(code(&[5, 1 << 20], 1), Err(ErrorCode::INVALID_ARGUMENT));
    assert_eq!(code(&prompt[..99], 1), Ok(99));
}

/// A checkpoint after every block of the prompt and after every token; there the call ends when the host says so.
#[test]
fn it_gives_way_at_every_token() {
    let (engine, loaded) = llama();
    let prompt = &texts(&[70])[0];
    let whole = generate(&engine, &loaded, prompt, &options(8)).unwrap().ids;
    let call = FakeCall::new(1);
    generate_under(&engine, &loaded, &call, prompt, &options(8), &mut Collected::default()).unwrap();
    assert_eq!(call.checkpoints(), 2 + 8, "two blocks of the prompt, eight tokens");
    for (at, tokens) in [(1, 0), (2, 0), (3, 1), (7, 5)] {
        let (call, mut collected) = (FakeCall::new(1).cancel_at(at), Collected::default());
        let error = generate_under(&engine, &loaded, &call, prompt, &options(8), &mut collected).unwrap_err();
        assert_eq!((error.code, call.checkpoints()), (ErrorCode::CANCELLED, at));
        assert_eq!(collected.ids, whole[..tokens]);
    }
    let mut sink = Collected {
        cancel_at: 2,
        ..Collected::default()
    };
    let error = generate_under(&engine, &loaded, &FakeCall::new(1), prompt, &options(8), &mut sink).unwrap_err();
    assert_eq!((error.code, sink.pushes), (ErrorCode::CANCELLED, 2));
    assert_eq!(generate(&engine, &loaded, prompt, &options(8)).unwrap().ids, whole);
}

/// A seed repeats; another seed, or none of the heat, gives something else.
#[test]
fn sampling_repeats_by_its_seed() {
    let (engine, loaded) = llama();
    let draw = |temperature, top_p, seed| {
        let wanted = GenerateOptions {
            temperature,
            top_p,
            seed,
            ..options(24)
        };
        generate(&engine, &loaded, &A, &wanted).unwrap().ids
    };
    let greedy = draw(0.0, 1.0, 7);
    assert_eq!(draw(1.5, 1.0, 7), draw(1.5, 1.0, 7));
    assert_ne!(draw(1.5, 1.0, 7), draw(1.5, 1.0, 8));
    assert_ne!(draw(1.5, 1.0, 7), greedy);
    assert_eq!(draw(1.5, 1e-6, 7), greedy, "a nucleus of one token");
    assert_eq!(draw(0.01, 1.0, 7), greedy, "as good as no heat");
}

#[test]
fn unknown_options_are_refused_by_name() {
    let (engine, loaded) = llama();
    let wanted = GenerateOptions {
        extra: vec![KeyValue::new("mirostat", "2")].into(),
        ..options(4)
    };
    let error = generate(&engine, &loaded, &A, &wanted).err().expect("refused");
    assert_eq!(error.code, ErrorCode::CONFIG_INVALID);
    assert!(error.message.contains("mirostat"), "{}", error.message);
}

/// The catalog's row says whether flash attention computes; an engine without a word of it does not use it.
#[test]
fn flash_attention_is_the_rows_word() {
    let with = |word: &str| RuntimeConfig {
        extra: vec![KeyValue::new("flash_attention", word)].into(),
        ..config("none", 128)
    };
    for sound in [config("none", 128), with("on"), with("off")] {
        load!(generator(), &fixture("llama-generate"), sound).unwrap();
    }
    let error = load!(generator(), &fixture("llama-generate"), with("auto")).unwrap_err();
    assert_eq!(error.code, ErrorCode::CONFIG_INVALID);
    assert!(error.message.contains("flash_attention"), "{}", error.message);
    let error = load!(embedder(), &fixture("bert-embed"), with("on")).unwrap_err();
    assert_eq!(
        error.code,
        ErrorCode::CONFIG_INVALID,
        "vectors are never computed with it"
    );
}
