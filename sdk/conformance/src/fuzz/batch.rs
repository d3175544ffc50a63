//! One batch, inside its process: draws calls, notes each, makes it, judges the answer.
//!
//! State: the lanes and the draw. Caller: the process's entry. A batch ends at the first answer that is wrong.

use std::fs::File;
use std::io::Write as _;

use synapse_plugin_api::{EngineError, EngineState, ErrorCode};

use crate::bench::{Bench, Draw, Lane, said};
use crate::catalogue::{Stop, Verdict, fail, skip};
use crate::fuzz::calls;
use crate::json::Job;
use crate::subject::Kind;

/// The longest message of an error, in bytes (PC-48).
const MAX_MESSAGE: usize = 4096;

/// What a batch works with.
pub(super) struct Batch<'a> {
    pub(super) draw: Draw,
    pub(super) bench: &'a Bench,
    journal: File,
    number: u32,
}

impl Batch<'_> {
    /// Notes a call before it is made. What cannot be noted could not be told either.
    pub(super) fn note(&mut self, text: &str) -> Result<(), Stop> {
        let line = format!("call {}: {text}\n", self.number);
        self.number += 1;
        self.journal
            .write_all(line.as_bytes())
            .or_else(|error| fail(format!("the fuzzer's own notes: {error}")))
    }

    /// A number from `least` to `most`.
    pub(super) fn from(&mut self, least: u64, most: u64) -> u64 {
        least + self.draw.below(most.saturating_sub(least) + 1)
    }

    /// One of a list.
    pub(super) fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        let at = self.draw.below(list.len() as u64);
        list[usize::try_from(at).unwrap_or(0)]
    }
}

/// Runs a batch.
pub(super) fn run(job: Job, calls: u32, journal: File) -> Verdict {
    let seed = job.seed;
    let bench = Bench::new(job);
    // A model that the author names and that does not load is a mistake of somebody's.
    let named: Vec<Kind> = bench.subject()?.models.iter().map(|model| model.kind).collect();
    let mut lanes = Vec::new();
    let mut missing = Vec::new();
    for kind in Kind::ALL {
        match bench.lane(kind) {
            Ok(lane) => lanes.push(lane),
            Err(stop) if named.contains(&kind) => return fail(stop.message),
            Err(stop) => missing.push(stop.message),
        }
    }
    if lanes.is_empty() {
        return skip(format!("nothing to call: {}", missing.join("; ")));
    }
    let mut batch = Batch {
        // Neighbouring seeds begin far apart.
        draw: Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        bench: &bench,
        journal,
        number: 1,
    };
    let longest = u32::try_from(lanes.len()).unwrap_or(1);
    for _ in 0..calls {
        let at = batch.draw.below(u64::from(longest));
        let lane = &lanes[usize::try_from(at).unwrap_or(0)];
        calls::one(&mut batch, lane)?;
    }
    for lane in &lanes {
        batch.note(&format!("{}: unload", lane.kind.name()))?;
        judge(lane.engine.unload(lane.loaded.model), &[])?;
    }
    Ok(())
}

/// The answer of a valid call, or of one that may be refused with these codes.
pub(super) fn judge<T>(result: Result<T, EngineError>, codes: &[ErrorCode]) -> Result<Option<T>, Stop> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) => {
            sound(&error)?;
            if codes.contains(&error.code) {
                return Ok(None);
            }
            let names: Vec<_> = codes.iter().map(|code| code.name()).collect();
            let expected = if names.is_empty() {
                "an answer".to_owned()
            } else {
                format!("an answer or {names:?}")
            };
            fail(format!("{}; expected {expected}", said(&error)))
        }
    }
}

/// The answer of a call that breaks the contract: one of these codes.
pub(super) fn refused<T>(result: Result<T, EngineError>, codes: &[ErrorCode]) -> Verdict {
    let names: Vec<_> = codes.iter().map(|code| code.name()).collect();
    match judge(result, codes)? {
        None => Ok(()),
        Some(_) => fail(format!("accepted; expected one of {names:?}")),
    }
}

/// No error may be a contained panic, or leave something unusable behind.
pub(super) fn sound(error: &EngineError) -> Verdict {
    if error.code == ErrorCode::PANIC {
        return fail(format!("a panic: {}", said(error)));
    }
    if error.state != EngineState::USABLE {
        return fail(format!(
            "after this call the engine or the model is unusable: {}",
            said(error)
        ));
    }
    if error.message.len() > MAX_MESSAGE {
        let bytes = error.message.len();
        return fail(format!("a message of {bytes} bytes, expected at most {MAX_MESSAGE}"));
    }
    Ok(())
}

/// Every value of a valid call is written and finite.
pub(super) fn finite(lane: &Lane<'_>, values: &[f32]) -> Verdict {
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) if lane.kind != Kind::Generate => {
            fail(format!("value {at} of {} is not written or not finite", values.len()))
        }
        _ => Ok(()),
    }
}
