//! The calls that are drawn: each notes what it is, is made, and knows which answers are right.
//!
//! State: none. Caller: the batch. A new kind of call is a function and a row of [`one`]'s table.

use synapse_plugin_api::{ErrorCode, Flow, GenerateOptions, KeyValue, ModelRef, Prompt};

use super::batch::{Batch, finite, judge, refused};
use super::damage;
use crate::bench::{self, Heard, Lane, artifact, greedy, runtime_config};
use crate::call::Call;
use crate::catalogue::{Verdict, fail};
use crate::subject::Kind;

/// A kind of call, and how often it comes: shares of the sum.
type Row = (u64, fn(&mut Batch<'_>, &Lane<'_>) -> Verdict);

const CALLS: &[Row] = &[
    (30, valid),
    (20, misshapen),
    (6, any_ids),
    (6, strange_handle),
    (8, cancelled),
    (4, late),
    (4, asked),
    (6, settings),
    (10, damage::load),
    (10, options),
];

/// Draws one call and makes it.
pub(super) fn one(batch: &mut Batch<'_>, lane: &Lane<'_>) -> Verdict {
    let sum = CALLS.iter().map(|(share, _)| share).sum();
    let mut at = batch.draw.below(sum);
    for (share, call) in CALLS {
        if at < *share {
            return call(batch, lane);
        }
        at -= share;
    }
    Ok(())
}

/// Items of drawn number, lengths and ids.
fn items(batch: &mut Batch<'_>, lane: &Lane<'_>) -> Vec<Vec<i32>> {
    let count = if lane.kind == Kind::Generate {
        1
    } else {
        batch.from(1, 8)
    };
    let longest = lane.longest().min(512) as u64;
    let vocabulary = u64::from(lane.spec.vocabulary);
    (0..count)
        .map(|_| {
            // Short ones often, the longest sometimes.
            let most = batch.one_of(&[2, 16, longest]).min(longest);
            let tokens = batch.from(1, most);
            (0..tokens)
                .map(|_| i32::try_from(batch.draw.below(vocabulary)).unwrap_or(0))
                .collect()
        })
        .collect()
}

fn told(lane: &Lane<'_>, items: &[Vec<i32>], threads: u32) -> String {
    let lengths: Vec<usize> = items.iter().map(Vec::len).collect();
    format!("{}: items of {lengths:?} tokens, {threads} threads", lane.kind.name())
}

/// What the contract promises an answer to; twice, with other threads the second time.
fn valid(batch: &mut Batch<'_>, lane: &Lane<'_>) -> Verdict {
    let items = items(batch, lane);
    let threads = bench::count(usize::try_from(batch.from(1, 4)).unwrap_or(1));
    let whole = bench::Batch::of(&items);
    batch.note(&told(lane, &items, threads))?;
    let first = judge(lane.batch(Call::new(threads), &whole), &[])?.unwrap_or_default();
    finite(lane, &first)?;
    let other = if lane.support.thread_invariant {
        threads % 4 + 1
    } else {
        threads
    };
    batch.note(&format!("the same with {other} threads"))?;
    let second = judge(lane.batch(Call::new(other), &whole), &[])?.unwrap_or_default();
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    if lane.support.thread_invariant && bits(&first) != bits(&second) {
        return fail("other bits than before, though the engine claims to be thread-invariant (PC-14)");
    }
    if lane.kind == Kind::Embed {
        batch.note("its first item by embed_one")?;
        let one = lane.engine.embed_one(
            Call::new(threads).leaked(),
            lane.loaded.model,
            &items[0],
            lane.loaded.dims,
        );
        finite(lane, &judge(one, &[])?.unwrap_or_default())?;
    }
    Ok(())
}

/// A batch whose shape is wrong in one way.
fn misshapen(batch: &mut Batch<'_>, lane: &Lane<'_>) -> Verdict {
    let items = items(batch, lane);
    let mut whole = bench::Batch::of(&items);
    let mut out = lane.out_len(whole.len());
    let ways: &[&str] = match lane.kind {
        Kind::Generate => &["too long", "no token"],
        Kind::Embed => &[
            "end",
            "start",
            "empty item",
            "no offsets",
            "types",
            "too long",
            "short out",
            "long out",
        ],
        Kind::Rerank => &[
            "end",
            "start",
            "empty item",
            "no offsets",
            "types",
            "too long",
            "short out",
            "starts",
            "beyond",
        ],
    };
    let way = batch.one_of(ways);
    let mut codes = &[ErrorCode::INVALID_ARGUMENT][..];
    match way {
        "end" => {
            let wrong = bench::count(whole.ids.len()).wrapping_add(batch.one_of(&[1, u32::MAX, 1 << 31]));
            *whole.offsets.last_mut().unwrap_or(&mut 0) = wrong;
        }
        "start" => whole.offsets[0] = 1,
        "empty item" => {
            whole.offsets.insert(1, whole.offsets[0]);
            whole.doc_starts.insert(0, 0);
            out = lane.out_len(whole.len());
        }
        "no offsets" => whole.offsets.clear(),
        "types" => whole.type_ids = vec![0; whole.ids.len() + 1],
        "short out" => out = out.saturating_sub(1),
        "long out" => out += 1,
        "starts" => {
            whole.doc_starts.pop();
        }
        "beyond" => whole.doc_starts[0] = bench::count(items[0].len() + 1),
        "no token" => whole = bench::Batch::of(&[Vec::new()]),
        _ => {
            let longest = lane.loaded.max_tokens as usize;
            if longest > 1 << 20 {
                return Ok(());
            }
            whole = bench::Batch::of(&[vec![0; longest + 1]]);
            out = lane.out_len(1);
            codes = &[ErrorCode::INPUT_TOO_LONG];
        }
    }
    batch.note(&format!("{}, wrong shape: {way}", told(lane, &items, 1)))?;
    let mut values = vec![f32::NAN; out];
    let call = Call::new(1).leaked();
    let dims = lane.loaded.dims;
    refused(
        lane.engine.compute(call, lane.loaded.model, &whole, &mut values, dims),
        codes,
    )
}

/// Ids that may mean nothing: an answer or a refusal.
fn any_ids(batch: &mut Batch<'_>, lane: &Lane<'_>) -> Verdict {
    let mut items = items(batch, lane);
    let strange = batch.one_of(&[-1, i32::MIN, i32::MAX, 1 << 24]);
    items[0][0] = strange;
    batch.note(&format!("{}, one id is {strange}", told(lane, &items, 2)))?;
    let result = lane.batch(Call::new(2), &bench::Batch::of(&items));
    match judge(result, &[ErrorCode::INVALID_ARGUMENT])? {
        Some(values) => finite(lane, &values),
        None => Ok(()),
    }
}

/// A handle that the engine never gave.
fn strange_handle(batch: &mut Batch<'_>, lane: &Lane<'_>) -> Verdict {
    let strange = ModelRef(batch.one_of(&[u64::MAX, 0, lane.loaded.model.0.wrapping_add(1_000_000)]));
    if strange == lane.loaded.model {
        return Ok(());
    }
    if batch.draw.below(2) == 0 {
        batch.note(&format!(
            "{}: unload of the unknown model {}",
            lane.kind.name(),
            strange.0
        ))?;
        return refused(lane.engine.unload(strange), &[ErrorCode::INVALID_ARGUMENT]);
    }
    let items = items(batch, lane);
    batch.note(&format!("{}, unknown model {}", told(lane, &items, 1), strange.0))?;
    let whole = bench::Batch::of(&items);
    let mut out = vec![f32::NAN; lane.out_len(whole.len())];
    let result = lane
        .engine
        .compute(Call::new(1).leaked(), strange, &whole, &mut out, lane.loaded.dims);
    refused(result, &[ErrorCode::INVALID_ARGUMENT])
}

/// A call that is told to end at one of its checkpoints.
fn cancelled(batch: &mut Batch<'_>, lane: &Lane<'_>) -> Verdict {
    let items = items(batch, lane);
    let nth = batch.from(1, 4);
    batch.note(&format!("{}, cancelled at checkpoint {nth}", told(lane, &items, 2)))?;
    let call = Call::new(2).cancel_at(nth, Flow::CANCEL.0).leaked();
    let answer = judge(lane.batch_in(call, &bench::Batch::of(&items)), &[ErrorCode::CANCELLED])?;
    let seen = call.seen().checkpoints;
    match answer {
        None if seen < nth => fail(format!(
            "cancelled after {seen} checkpoints, though nobody asked for it"
        )),
        Some(_) if seen >= nth => fail(format!("an answer, though checkpoint {nth} of {seen} said cancel")),
        _ => Ok(()),
    }
}

/// A call whose deadline has passed: an answer, or an end that says so.
fn late(batch: &mut Batch<'_>, lane: &Lane<'_>) -> Verdict {
    let items = items(batch, lane);
    batch.note(&format!("{}, the deadline has passed", told(lane, &items, 1)))?;
    let result = lane.batch(Call::new(1).deadline(0), &bench::Batch::of(&items));
    judge(result, &[ErrorCode::DEADLINE_EXCEEDED, ErrorCode::CANCELLED]).map(drop)
}

/// What may be asked at any time.
fn asked(batch: &mut Batch<'_>, lane: &Lane<'_>) -> Verdict {
    batch.note(&format!("{}: memory, identity, an unknown extension", lane.kind.name()))?;
    let _ = (lane.engine.memory(), lane.engine.identity());
    match lane.engine.extension("org.example.nobody-has-this/1") {
        None => Ok(()),
        Some(_) => fail("an extension that nobody has (PC-64)"),
    }
}

/// The same model once more, with settings that hold or do not.
fn settings(batch: &mut Batch<'_>, lane: &Lane<'_>) -> Verdict {
    let mut config = runtime_config(&lane.spec);
    let way = batch.one_of(&[
        "good",
        "zero tokens",
        "zero batch",
        "zero threads",
        "unknown key",
        "format",
        "dtype",
    ]);
    let mut codes = &[ErrorCode::CONFIG_INVALID][..];
    match way {
        "zero tokens" => config.max_tokens = 0,
        "zero batch" => config.max_batch = 0,
        "zero threads" => config.threads = 0,
        "unknown key" => {
            let mut extra: Vec<KeyValue> = config.extra.into_vec();
            extra.push(KeyValue::new("nobody_reads_this", "1"));
            config.extra = extra.into();
        }
        "format" => {
            config.format = "no-such-format".into();
            codes = &[ErrorCode::UNSUPPORTED];
        }
        "dtype" => {
            config.dtype = "f0".into();
            codes = &[ErrorCode::UNSUPPORTED];
        }
        _ => {}
    }
    batch.note(&format!("{}: load, settings: {way}", lane.kind.name()))?;
    let result = lane
        .engine
        .load(Call::new(1).leaked(), &artifact(&lane.spec.files), &config);
    if way != "good" {
        return refused(result.map(drop), codes);
    }
    let Some(loaded) = judge(result, &[ErrorCode::OUT_OF_MEMORY])? else {
        return Ok(());
    };
    batch.note(&format!("{}: unload of that one", lane.kind.name()))?;
    judge(lane.engine.unload(loaded.model), &[]).map(drop)
}

/// Options of a generation, good and bad; other kinds have none and compute once more.
fn options(batch: &mut Batch<'_>, lane: &Lane<'_>) -> Verdict {
    if lane.kind != Kind::Generate {
        return valid(batch, lane);
    }
    let items = items(batch, lane);
    let mut options: GenerateOptions = greedy(bench::count(usize::try_from(batch.from(1, 8)).unwrap_or(1)));
    let way = batch.one_of(&[
        "good",
        "no tokens",
        "temperature",
        "top_p",
        "stop",
        "unknown key",
        "grammar",
        "text",
    ]);
    let mut codes = &[ErrorCode::CONFIG_INVALID][..];
    match way {
        "no tokens" => options.max_tokens = 0,
        "temperature" => options.temperature = batch.one_of(&[f32::NAN, -1.0, f32::INFINITY]),
        "top_p" => options.top_p = batch.one_of(&[0.0, 1.5, f32::NAN]),
        "stop" => options.stop = vec!["".into()].into(),
        "unknown key" => options.extra = vec![KeyValue::new("nobody_reads_this", "1")].into(),
        "grammar" => {
            options.grammar = "root ::= ((((".into();
            codes = &[ErrorCode::GRAMMAR_INVALID, ErrorCode::GRAMMAR_UNAVAILABLE];
        }
        _ => {
            options.temperature = 1.0;
            options.seed = batch.draw.next();
            options.stop = vec!["e".into()].into();
        }
    }
    batch.note(&format!("{}, options: {way}", told(lane, &items, 1)))?;
    let mut heard = Heard::default();
    let prompt = if way == "text" {
        Prompt::text("a text")
    } else {
        Prompt::ids(&items[0])
    };
    let call = Call::new(1).leaked();
    let result = lane
        .engine
        .generate(call, lane.loaded.model, prompt, &options, &mut heard);
    match way {
        "text" => judge(result, &[ErrorCode::UNSUPPORTED]).map(drop),
        "good" => judge(result, &[]).map(drop),
        _ => refused(result.map(drop), codes),
    }
}
