//! The reference engine gives, bit for bit, what `reference.py` computed (`tests/golden/values.json`).
//!
//! Every call passes the SDK's shims and abi_stable's trait objects. The arithmetic uses no instruction that differs
//! between processors, so the bits hold on every one: a changed bit needs a new numeric version and a new file.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use synapse_plugin_sdk::{
    api::{
        FinishReason, GenerateOptions, PairBatch, Prompt, ScoresOut, TokenBatch, VectorsOut,
        abi_stable::std_types::RSlice,
    },
    testing::{Collected, FakeCall, FakeHost, artifact, runtime_config},
};

#[derive(Deserialize)]
struct Golden {
    model: String,
    items: Vec<GoldenItem>,
    pairs: Vec<GoldenPair>,
    prompts: Vec<GoldenPrompt>,
}

#[derive(Deserialize)]
struct GoldenItem {
    ids: Vec<i32>,
    types: Vec<i32>,
    mean: Vec<String>,
    cls: Vec<String>,
    last: Vec<String>,
}

#[derive(Deserialize)]
struct GoldenPair {
    ids: Vec<i32>,
    types: Vec<i32>,
    doc_start: u32,
    score: String,
}

#[derive(Deserialize)]
struct GoldenPrompt {
    ids: Vec<i32>,
    max_tokens: u32,
    seed: Option<u64>,
    text: String,
    ended: bool,
}

fn golden() -> (Golden, tempfile::TempDir, PathBuf) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/values.json");
    let golden: Golden = serde_json::from_str(&std::fs::read_to_string(path).expect("readable")).expect("valid");
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("any-name");
    std::fs::write(&file, &golden.model).expect("writable");
    (golden, dir, file)
}

fn hex(values: &[f32]) -> Vec<String> {
    values.iter().map(|value| format!("{:08x}", value.to_bits())).collect()
}

/// Ragged ids, offsets and segments of items.
fn batch<'a>(items: impl Iterator<Item = (&'a [i32], &'a [i32])>) -> (Vec<i32>, Vec<u32>, Vec<i32>) {
    let (mut ids, mut offsets, mut types) = (Vec::new(), vec![0], Vec::new());
    for (item, segments) in items {
        ids.extend_from_slice(item);
        types.extend((0..item.len()).map(|i| segments.get(i).copied().unwrap_or(0)));
        offsets.push(u32::try_from(ids.len()).expect("short"));
    }
    (ids, offsets, types)
}

/// Values are those of an independent Python program, alone and in a batch, whatever the thread budget.
#[test]
fn vectors_have_the_golden_bits() {
    let (golden, _dir, file) = golden();
    let host = FakeHost::new().host();
    let engine = synapse_reference::plugin()
        .open_embed(host, "")
        .expect("opens")
        .expect("offered");
    let files = artifact(&[("weights", &file)]).expect("readable");
    for pooling in ["mean", "cls", "last"] {
        let mut config = runtime_config("bytes", "f32");
        config.pooling = pooling.into();
        let loaded = engine.load(&FakeCall::new(1).context(), &files, &config).unwrap();
        let dims = loaded.dims as usize;
        let expected = |item: &GoldenItem| match pooling {
            "mean" => item.mean.clone(),
            "cls" => item.cls.clone(),
            _ => item.last.clone(),
        };
        let (ids, offsets, types) = batch(golden.items.iter().map(|item| (&item.ids[..], &item.types[..])));
        for threads in [1, 3] {
            let call = FakeCall::new(threads);
            let mut out = vec![f32::NAN; golden.items.len() * dims];
            let all = TokenBatch::new(&ids, &offsets, &types);
            engine
                .embed_batch(
                    &call.context(),
                    loaded.model,
                    &all,
                    VectorsOut::new(&mut out, loaded.dims),
                )
                .unwrap();
            for (row, item) in out.chunks_exact(dims).zip(&golden.items) {
                assert_eq!(hex(row), expected(item), "{pooling} of {:?}", item.ids);
            }
            assert_eq!(call.violations(), Vec::<String>::new());
            assert!(call.checkpoints() >= 1);
        }
        for item in golden
            .items
            .iter()
            .filter(|item| item.types.iter().all(|&segment| segment == 0))
        {
            let mut row = vec![f32::NAN; dims];
            let out = VectorsOut::new(&mut row, loaded.dims);
            let ids = RSlice::from_slice(&item.ids);
            engine
                .embed_one(&FakeCall::new(1).context(), loaded.model, ids, out)
                .unwrap();
            assert_eq!(hex(&row), expected(item), "{pooling} of {:?} alone", item.ids);
        }
        engine.unload(loaded.model).unwrap();
    }
}

/// Scores are those of the Python program.
#[test]
fn scores_have_the_golden_bits() {
    let (golden, _dir, file) = golden();
    let host = FakeHost::new().host();
    let engine = synapse_reference::plugin()
        .open_rerank(host, "")
        .expect("opens")
        .expect("offered");
    let files = artifact(&[("weights", &file)]).expect("readable");
    let loaded = engine
        .load(&FakeCall::new(1).context(), &files, &runtime_config("bytes", "f32"))
        .unwrap();
    let (ids, offsets, types) = batch(golden.pairs.iter().map(|pair| (&pair.ids[..], &pair.types[..])));
    let starts: Vec<u32> = golden.pairs.iter().map(|pair| pair.doc_start).collect();
    let mut out = vec![f32::NAN; starts.len()];
    let pairs = PairBatch::new(TokenBatch::new(&ids, &offsets, &types), &starts);
    engine
        .score_batch(
            &FakeCall::new(1).context(),
            loaded.model,
            &pairs,
            ScoresOut::new(&mut out),
        )
        .unwrap();
    let expected: Vec<String> = golden.pairs.iter().map(|pair| pair.score.clone()).collect();
    assert_eq!(hex(&out), expected);
}

/// Texts are those of the Python program, from ids or from text, with and without a stop text.
#[test]
fn texts_are_the_golden_ones() {
    let (golden, _dir, file) = golden();
    let host = FakeHost::new().host();
    let engine = synapse_reference::plugin()
        .open_generate(host, "")
        .expect("opens")
        .expect("offered");
    let files = artifact(&[("weights", &file)]).expect("readable");
    let loaded = engine
        .load(&FakeCall::new(1).context(), &files, &runtime_config("bytes", "f32"))
        .unwrap();
    let run = |prompt: Prompt<'_>, options: &GenerateOptions| {
        let mut collected = Collected::default();
        let done = engine
            .generate(
                &FakeCall::new(1).context(),
                loaded.model,
                prompt,
                options,
                collected.sink(),
            )
            .unwrap();
        let ids: Vec<u8> = collected
            .ids
            .iter()
            .map(|&id| u8::try_from(id).expect("a letter"))
            .collect();
        assert_eq!(ids, collected.bytes, "ids and bytes tell the same");
        (String::from_utf8(collected.bytes).expect("text"), done)
    };
    for prompt in &golden.prompts {
        let mut options = GenerateOptions {
            max_tokens: prompt.max_tokens,
            temperature: if prompt.seed.is_some() { 0.8 } else { 0.0 },
            top_p: 1.0,
            seed: prompt.seed.unwrap_or(99),
            stop: Vec::new().into(),
            grammar: "".into(),
            extra: Vec::new().into(),
        };
        let (text, done) = run(Prompt::ids(&prompt.ids), &options);
        assert_eq!(text, prompt.text);
        let finish = if prompt.ended {
            FinishReason::STOP
        } else {
            FinishReason::LENGTH
        };
        assert_eq!(
            (done.finish, done.generated_tokens as usize),
            (finish, prompt.text.len())
        );
        if let Some(spelt) = prompt
            .ids
            .iter()
            .map(|&id| u8::try_from(id).ok())
            .collect::<Option<Vec<u8>>>()
        {
            let spelt = String::from_utf8(spelt).expect("ASCII");
            assert_eq!(run(Prompt::text(&spelt), &options).0, prompt.text);
        }
        if prompt.text.len() >= 6 {
            let stop = &prompt.text[3..6];
            options.stop = vec![stop.into()].into();
            let (text, done) = run(Prompt::ids(&prompt.ids), &options);
            assert_eq!(Some(text.as_str()), prompt.text.split(stop).next());
            assert_eq!(done.finish, FinishReason::STOP);
        }
    }
}
