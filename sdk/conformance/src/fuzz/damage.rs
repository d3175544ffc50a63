//! Model files that are none: copies of the real ones with something wrong.
//!
//! State: files in the batch's folder, written over each time. Caller: the table of calls. A file that an engine takes all
//! the same is a model; it is used once and unloaded.

use std::path::PathBuf;

use synapse_plugin_api::ErrorCode;

use super::batch::{Batch, judge};
use crate::bench::{self, Lane, artifact, runtime_config};
use crate::call::Call;
use crate::catalogue::{Stop, Verdict, fail};
use crate::subject::ModelFile;

/// The most bytes of a damaged copy; of a longer file the begin is taken.
const MAX_COPY: usize = 8 << 20;

/// Loads the model with one file damaged.
pub(super) fn load(batch: &mut Batch<'_>, lane: &Lane<'_>) -> Verdict {
    let mut files = lane.spec.files.clone();
    let at = usize::try_from(batch.draw.below(files.len() as u64)).unwrap_or(0);
    let role = files[at].role.clone();
    let ways = [
        "empty",
        "cut",
        "bits",
        "noise",
        "longer",
        "a folder",
        "missing",
        "no such role",
    ];
    let way = batch.one_of(&ways);
    match way {
        "a folder" => files[at].path.clone_from(&batch.bench.job.work),
        "missing" => files[at].path = batch.bench.job.work.join("nothing"),
        "no such role" => files[at].role = "nobody-asks-for-this".to_owned(),
        _ => files[at].path = damaged(batch, &files[at], way)?,
    }
    batch.note(&format!("{}: load, file of role {role}: {way}", lane.kind.name()))?;
    let config = runtime_config(&lane.spec);
    let result = lane.engine.load(Call::new(2).leaked(), &artifact(&files), &config);
    let may = [
        ErrorCode::ARTIFACT_INVALID,
        ErrorCode::UNSUPPORTED,
        ErrorCode::OUT_OF_MEMORY,
        ErrorCode::CONFIG_INVALID,
    ];
    let Some(loaded) = judge(result, &may)? else {
        return Ok(());
    };
    batch.note("the engine took it: one short call")?;
    let whole = bench::Batch::of(&[vec![0; 2]]);
    let mut out = vec![f32::NAN; lane.out_len(1).max(loaded.dims as usize)];
    if lane.kind != crate::subject::Kind::Embed {
        out.truncate(lane.out_len(1));
    }
    let result = lane
        .engine
        .compute(Call::new(1).leaked(), loaded.model, &whole, &mut out, loaded.dims);
    // Values of a damaged model mean nothing; that it may say so is right too.
    judge(
        result,
        &[
            ErrorCode::NON_FINITE,
            ErrorCode::INVALID_ARGUMENT,
            ErrorCode::INPUT_TOO_LONG,
        ],
    )?;
    batch.note("unload of that one")?;
    judge(lane.engine.unload(loaded.model), &[]).map(drop)
}

/// A copy with something wrong.
fn damaged(batch: &mut Batch<'_>, file: &ModelFile, way: &str) -> Result<PathBuf, Stop> {
    let mut bytes = std::fs::read(&file.path).unwrap_or_default();
    bytes.truncate(MAX_COPY);
    let len = bytes.len() as u64;
    let place = |batch: &mut Batch<'_>| usize::try_from(batch.draw.below(len)).unwrap_or(0);
    match way {
        "empty" => bytes.clear(),
        "cut" => bytes.truncate(place(batch)),
        "bits" => {
            for _ in 0..batch.from(1, 8) {
                // Headers are where files lie about themselves, so half of the flips are there.
                let at = if batch.draw.below(2) == 0 {
                    place(batch) % 64
                } else {
                    place(batch)
                };
                let bit = batch.draw.below(8);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
        }
        "noise" => bytes
            .iter_mut()
            .for_each(|byte| *byte = batch.draw.next().to_le_bytes()[0]),
        _ => bytes.extend_from_slice(b"\0one more line\n"),
    }
    let path = batch.bench.job.work.join("damaged");
    match std::fs::write(&path, bytes) {
        Ok(()) => Ok(path),
        Err(error) => fail(format!("the fuzzer's own file {}: {error}", path.display())),
    }
}
