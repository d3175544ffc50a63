//! What a compute call takes and gives: shapes, buffers, values (PC-11, PC-25 to PC-31).

use synapse_plugin_api::{ErrorCode, ModelRef};

use crate::bench::{Batch, Bench, Lane, refused, said, went};
use crate::call::Call;
use crate::catalogue::{Check, Level, Run, Stop, Verdict, fail, skip};
use crate::subject::Kind;

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "input-shapes",
        level: Level::Core,
        rules: &["PC-25"],
        says: "A batch whose offsets, items or segment ids do not fit together is INVALID_ARGUMENT.",
        why: "Foreign code indexes by them; a host is checked too.",
        fix: "Check offsets and lengths before the first index; the SDK does it for you.",
        run: Run::Library(shapes),
    },
    Check {
        id: "input-ids",
        level: Level::Full,
        rules: &["PC-25"],
        says: "Ids outside the vocabulary give an error or finite values, and never end the process.",
        why: "A tokenizer of another model must cost one request and no more.",
        fix: "Compare each id with the vocabulary before you index by it.",
        run: Run::Library(ids),
    },
    Check {
        id: "input-long",
        level: Level::Core,
        rules: &["PC-26"],
        says: "An item longer than max_tokens is INPUT_TOO_LONG; one of exactly max_tokens is computed.",
        why: "Truncation is disclosed, hence the host's.",
        fix: "Compare each item with max_tokens and refuse; never cut.",
        run: Run::Library(long),
    },
    Check {
        id: "input-borrowed",
        level: Level::Core,
        rules: &["PC-27"],
        says: "Nothing of an input is read after its call returned.",
        why: "It lies on the caller's stack.",
        fix: "Copy what a later call needs; do not key a cache by an address.",
        run: Run::Library(borrowed),
    },
    Check {
        id: "input-segments",
        level: Level::Full,
        rules: &["PC-25"],
        says: "No segment ids means that all are 0.",
        why: "A host leaves them out where a model has only one segment.",
        fix: "Treat an empty type_ids as zeros.",
        run: Run::Library(segments),
    },
    Check {
        id: "output-written",
        level: Level::Core,
        rules: &["PC-28"],
        says: "On Ok every value of the output is written, and nothing beside it.",
        why: "A value that was left alone is somebody else's old vector.",
        fix: "Write each row to its end, also for items that need no work.",
        run: Run::Library(written),
    },
    Check {
        id: "output-length",
        level: Level::Core,
        rules: &["PC-28"],
        says: "An output buffer of another length than the shapes say is INVALID_ARGUMENT.",
        why: "Writing past it is corruption; writing less is a wrong answer.",
        fix: "Compare the buffer with items times dims; the SDK does it for you.",
        run: Run::Library(length),
    },
    Check {
        id: "output-finite",
        level: Level::Core,
        rules: &["PC-28", "PC-29"],
        says: "Every value is finite, for items of every length.",
        why: "One NaN in an index spoils every comparison with it.",
        fix: "Look at masks of short items, at a sum that is 0, at overflow in half precision.",
        run: Run::Library(finite),
    },
    Check {
        id: "output-raw",
        level: Level::Full,
        rules: &["PC-29"],
        says: "An embed engine gives vectors before the L2 norm.",
        why: "The norm and dimension slices are the host's, so that they are the same for all engines.",
        fix: "Leave Normalize out; where the graph has it inside, say output_normalized in conformance.toml.",
        run: Run::Library(raw),
    },
    Check {
        id: "output-alone",
        level: Level::Core,
        rules: &["PC-30"],
        says: "An item's output does not depend on the other items, its place, or the method that computed it.",
        why: "A query and a document meet in one space.",
        fix: "Mask padding in attention and in pooling; use one code path for embed_one and embed_batch.",
        run: Run::Library(alone),
    },
    Check {
        id: "output-repeats",
        level: Level::Core,
        rules: &["PC-11"],
        says: "The same call gives the same values every time.",
        why: "Values that wander make two vectors of one text.",
        fix: "Look for uninitialised memory, state kept between calls, and sums in the order of finishing.",
        run: Run::Library(repeats),
    },
    Check {
        id: "rerank-order",
        level: Level::Core,
        rules: &["PC-31"],
        says: "A rerank engine gives one score a pair, in the pairs' order.",
        why: "The host sorts; a score in another place is another document's.",
        fix: "Do not sort, and do not group by length without putting scores back.",
        run: Run::Library(order),
    },
];

/// The kinds that take batches.
const BATCHED: &[Kind] = &[Kind::Embed, Kind::Rerank];

/// A call on the lane's model with a buffer of so many values.
fn with_out(lane: &Lane<'_>, batch: &Batch, values: usize) -> Result<Vec<f32>, synapse_plugin_api::EngineError> {
    let mut out = vec![0.0; values];
    lane.engine.compute(
        Call::new(1).leaked(),
        lane.loaded.model,
        batch,
        &mut out,
        lane.loaded.dims,
    )
}

fn shapes(bench: &Bench) -> Verdict {
    bench.lanes(BATCHED, |lane| {
        let good = Batch::of(&lane.items(10, &[3, 4]));
        let change = |change: &dyn Fn(&mut Batch)| {
            let mut batch = good.clone();
            change(&mut batch);
            batch
        };
        // No item is no work, or a mistake of the host: both answers keep the rule.
        let none = Batch {
            offsets: vec![0],
            ..Batch::default()
        };
        if let Err(error) = with_out(lane, &none, 0)
            && error.code != ErrorCode::INVALID_ARGUMENT
        {
            return fail(format!("an empty batch: {}", said(&error)));
        }
        let cases: [(&str, Batch); 6] = [
            ("no offsets at all", change(&|batch| batch.offsets.clear())),
            ("offsets that start at 1", change(&|batch| batch.offsets[0] = 1)),
            ("offsets that go back", change(&|batch| batch.offsets[1] = 9)),
            ("an empty item", change(&|batch| batch.offsets[1] = 0)),
            (
                "a last offset before the end of ids",
                change(&|batch| batch.offsets[2] = 6),
            ),
            (
                "segment ids for some tokens only",
                change(&|batch| batch.type_ids = vec![0; 3]),
            ),
        ];
        for (what, batch) in cases {
            let result = with_out(lane, &batch, lane.out_len(batch.len()));
            refused(what, &result, &[ErrorCode::INVALID_ARGUMENT])?;
        }
        let far = change(&|batch| batch.doc_starts[0] = 4);
        if lane.kind == Kind::Rerank {
            let result = with_out(lane, &far, 2);
            refused(
                "a document that starts behind its pair",
                &result,
                &[ErrorCode::INVALID_ARGUMENT],
            )?;
        }
        went("a good batch after them", lane.values(&lane.items(10, &[3, 4]))).map(|_| ())
    })
}

fn ids(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let beyond = i32::try_from(lane.spec.vocabulary).unwrap_or(i32::MAX);
        for id in [-1, i32::MIN, i32::MAX, beyond] {
            match lane.values(&[vec![0, id, 0]]) {
                Ok(values) if values.iter().all(|value| value.is_finite()) => {}
                Ok(_) => return fail(format!("id {id} gives a value that is not finite")),
                Err(error) if error.state.0 == 0 && error.code != ErrorCode::PANIC => {}
                Err(error) => return fail(format!("id {id}: {}, expected a usable engine", said(&error))),
            }
        }
        went("a good batch after them", lane.values(&lane.items(11, &[4]))).map(|_| ())
    })
}

fn long(bench: &Bench) -> Verdict {
    bench.lanes(BATCHED, |lane| {
        let longest = lane.longest();
        let mut item = lane.items(12, &[longest]).remove(0);
        went(
            "an item of exactly max_tokens",
            lane.values(std::slice::from_ref(&item)),
        )?;
        item.push(item[0]);
        refused(
            "an item of max_tokens + 1",
            &lane.values(&[item]),
            &[ErrorCode::INPUT_TOO_LONG],
        )
    })
}

fn borrowed(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let items = lane.items(13, &[12, 7]);
        let right = went("a batch", lane.values(&items))?;
        // What the first call was lent is overwritten before the second, which gets the same items elsewhere.
        let mut first = Batch::of(&items);
        let mut out = vec![0.0; lane.out_len(first.len())];
        let (model, dims) = (lane.loaded.model, lane.loaded.dims);
        went(
            "a batch",
            lane.engine
                .compute(Call::new(1).leaked(), model, &first, &mut out, dims),
        )?;
        let other = Batch::of(&lane.items(14, &[12, 7]));
        first.ids.copy_from_slice(&other.ids);
        out.fill(f32::NAN);
        let second = Batch::of(&items);
        let mut values = vec![0.0; out.len()];
        let values = went(
            "a batch",
            lane.engine
                .compute(Call::new(1).leaked(), model, &second, &mut values, dims),
        )?;
        if out.iter().any(|value| !value.is_nan()) {
            return fail("the output of an earlier call was written to");
        }
        // Keeps the overwritten input alive until here.
        drop(first);
        same_values(&right, &values, 1e-6)
            .or_else(|at| fail(format!("value {at} is that of what was lent to an earlier call")))
    })
}

/// Whether two outputs agree, within a share of the largest value; else the first place where they do not.
fn same_values(a: &[f32], b: &[f32], share: f32) -> Result<(), usize> {
    if a.len() != b.len() {
        return Err(a.len().min(b.len()));
    }
    let scale = a
        .iter()
        .fold(0.0f32, |max, value| max.max(value.abs()))
        .max(f32::MIN_POSITIVE);
    let differs = |(a, b): (&f32, &f32)| (a - b).abs() > scale * share || a.is_nan() != b.is_nan();
    a.iter().zip(b).position(differs).map_or(Ok(()), Err)
}

fn segments(bench: &Bench) -> Verdict {
    bench.lanes(BATCHED, |lane| {
        let without = Batch::of(&lane.items(15, &[6, 11]));
        let with = Batch {
            type_ids: vec![0; without.ids.len()],
            ..without.clone()
        };
        let (a, b) = (lane.batch(Call::new(1), &without), lane.batch(Call::new(1), &with));
        let (a, b) = (went("a batch without segment ids", a)?, went("a batch with zeros", b)?);
        same_values(&a, &b, 1e-6).or_else(|at| fail(format!("value {at} differs between no segment ids and zeros")))
    })
}

fn written(bench: &Bench) -> Verdict {
    /// Values around the output that must stay as they are.
    const GUARD: usize = 64;
    bench.lanes(BATCHED, |lane| {
        let batch = Batch::of(&lane.items(16, &[1, 9, 4, 30, 2]));
        let len = lane.out_len(batch.len());
        let mut seen = Vec::new();
        for canary in [-7.25f32, 1.0e30] {
            let mut buffer = vec![canary; len + 2 * GUARD];
            let out = &mut buffer[GUARD..GUARD + len];
            let result = lane
                .engine
                .compute(Call::new(1).leaked(), lane.loaded.model, &batch, out, lane.loaded.dims);
            seen.push(went("a batch", result)?);
            let (before, after) = (&buffer[..GUARD], &buffer[GUARD + len..]);
            let is_canary = |value: &f32| value.to_bits() == canary.to_bits();
            if !before.iter().chain(after).all(is_canary) {
                return fail("a value beside the output was written");
            }
        }
        let left = seen[0].iter().zip(&seen[1]);
        let left = left.enumerate().find(|(_, (a, b))| **a == -7.25 && **b == 1.0e30);
        match left {
            None => Ok(()),
            Some((at, _)) => {
                let row = at / (len / batch.len()).max(1);
                fail(format!(
                    "value {at} of {len}, in the row of item {row}, was not written"
                ))
            }
        }
    })
}

fn length(bench: &Bench) -> Verdict {
    bench.lanes(BATCHED, |lane| {
        let batch = Batch::of(&lane.items(17, &[5, 5]));
        let right = lane.out_len(2);
        for len in [0, right - 1, right + 1] {
            let result = with_out(lane, &batch, len);
            refused(
                &format!("an output of {len} values instead of {right}"),
                &result,
                &[ErrorCode::INVALID_ARGUMENT],
            )?;
        }
        Ok(())
    })
}

fn finite(bench: &Bench) -> Verdict {
    bench.lanes(BATCHED, |lane| {
        let longest = lane.longest();
        for length in [1, 2, 3, 5, 8, 13, 21, 34, longest / 2, longest] {
            let values = went("an item", lane.values(&lane.items(18, &[length])))?;
            if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                return fail(format!("value {at} of an item of {length} tokens is {}", values[at]));
            }
        }
        Ok(())
    })
}

fn rows<'a>(lane: &Lane<'_>, values: &'a [f32]) -> impl Iterator<Item = &'a [f32]> {
    values.chunks(lane.out_len(1).max(1))
}

fn raw(bench: &Bench) -> Verdict {
    bench.lanes(&[Kind::Embed], |lane| {
        if lane.spec.output_normalized {
            return skip("conformance.toml says that the model's graph normalises");
        }
        let values = went("a batch", lane.values(&lane.items(19, &[4, 9, 16, 25])))?;
        let norm = |row: &[f32]| row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        if rows(lane, &values).all(|row| (norm(row) - 1.0).abs() < 1e-4) {
            return fail("the vectors of four different items all have length 1");
        }
        Ok(())
    })
}

/// How alike two rows have to be: the gate of query against batch, and of an engine that claims exact f32.
fn alike(lane: &Lane<'_>, a: &[f32], b: &[f32]) -> Result<(), String> {
    let scale = a
        .iter()
        .chain(b)
        .fold(0.0f32, |max, value| max.max(value.abs()))
        .max(f32::MIN_POSITIVE);
    let differs = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max) / scale;
    if lane.support.f32_exact || a.len() < 2 {
        let bound = if lane.support.f32_exact { 1e-5 } else { 1e-2 };
        return if differs <= bound {
            Ok(())
        } else {
            Err(format!(
                "differs by {differs:.1e} of the largest value, expected at most {bound:.0e}"
            ))
        };
    }
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let cosine = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    if cosine >= 0.9999 {
        Ok(())
    } else {
        Err(format!("has cosine {cosine:.6}, expected at least 0.9999"))
    }
}

fn alone(bench: &Bench) -> Verdict {
    bench.lanes(BATCHED, |lane| {
        let items = lane.items(20, &[7, 1, 31, 7, 16, 64]);
        let batched = went("a batch", lane.values(&items))?;
        let turned: Vec<Vec<i32>> = items.iter().rev().cloned().collect();
        let turned = went("the same batch backwards", lane.values(&turned))?;
        let turned: Vec<&[f32]> = rows(lane, &turned).collect();
        for (at, (row, item)) in rows(lane, &batched).zip(&items).enumerate() {
            let single = went("an item alone", lane.values(std::slice::from_ref(item)))?;
            let check = |what: &str, other: &[f32]| {
                alike(lane, row, other).or_else(|why| fail(format!("item {at} of {} tokens: {what} {why}", item.len())))
            };
            check("alone it", &single)?;
            check("in another place it", turned[items.len() - 1 - at])?;
            if lane.kind == Kind::Embed {
                let call = Call::new(1).leaked();
                let one = lane.engine.embed_one(call, lane.loaded.model, item, lane.loaded.dims);
                check("by embed_one it", &went("embed_one", one)?)?;
            }
        }
        Ok(())
    })
}

fn repeats(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let items = lane.items(21, &[3, 20]);
        let first = went("a batch", lane.batch(Call::new(1), &Batch::of(&items)))?;
        for nth in 2..=20 {
            let again = went("a batch", lane.batch(Call::new(1), &Batch::of(&items)))?;
            let same = |share| same_values(&first, &again, share);
            let share = if lane.kind == Kind::Generate { 0.0 } else { 1e-6 };
            same(share).or_else(|at| fail(format!("value {at} differs at call {nth}")))?;
            // Other work in between.
            went("another batch", lane.values(&lane.items(22 + nth, &[5])))?;
        }
        Ok(())
    })
}

fn order(bench: &Bench) -> Verdict {
    bench.lanes(&[Kind::Rerank], |lane| {
        let items = lane.items(23, &[9, 14, 30, 5, 22, 11]);
        let scores = went("a batch", lane.values(&items))?;
        if scores.len() != items.len() {
            return fail(format!("{} scores for {} pairs", scores.len(), items.len()));
        }
        let places = [3, 0, 5, 1, 4, 2];
        let mixed: Vec<Vec<i32>> = places.iter().map(|place| items[*place].clone()).collect();
        let mixed = went("the same pairs in another order", lane.values(&mixed))?;
        let expected: Vec<f32> = places.iter().map(|place| scores[*place]).collect();
        if scores.windows(2).all(|pair| pair[0] == pair[1]) {
            return fail(format!("six different pairs have the same score {}", scores[0]));
        }
        same_values(&expected, &mixed, 1e-3).or_else(|at| {
            fail(format!(
                "pair {at}: score {} in its new place, {} in its old one",
                mixed[at], expected[at]
            ))
        })
    })
}

/// A model that nobody loaded.
pub(crate) const NOBODY: ModelRef = ModelRef(u64::MAX - 7);

/// The first row of a lane's output for a fixed item, to see that all is well.
pub(crate) fn probe(lane: &Lane<'_>) -> Result<Vec<f32>, Stop> {
    went("a small batch", lane.values(&lane.items(24, &[6])))
}
