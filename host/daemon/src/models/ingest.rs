//! Ingest: files that have arrived become an installed model (CACHE-12).
//!
//! State: none; everything lies in the blob store. Callers: `ModelStore::pull`. Not known here: the network, engines'
//! tensors (an engine compares shapes with the config; the host sees to what it relies on itself).
//!
//! Steps: fetch and verify every file, check what the model's folder or its GGUF header says about itself against the
//! record, sanitise the tokenizer (published, or built from the GGUF's vocabulary) against the model's table, and
//! write the artifact record last. A crash between two steps leaves blobs and no record, so the model is not installed
//! and the next pull goes on from there.

use std::fs::File;
use std::path::Path;

use synapse_catalog::{Format, ModelFile, Record, layout, profile};

use super::gguf::{self, Gguf, GgufError};
use super::record::{ArtifactFile, ArtifactRecord, ArtifactTokenizer, Validation};
use super::source::{self, Fetch, SourceChoice, expected};
use super::{ModelsError, chat, store};
use crate::text::vocabulary::tokenizer_json;
use crate::text::{TextError, sanitise};

/// The largest file that is read whole: configs and tokenizers.
const MAX_READ: u64 = 64 << 20;

/// Brings one stored form here and proves it; says which source delivered something. The record is not yet written.
///
/// # Errors
/// What the source reports; [`ModelsError::ArtifactInvalid`] when the folder contradicts the record or itself, and
/// when the tokenizer is refused. The files of a refused form go to `discard`, which deletes those that nobody else
/// has.
pub fn ingest(
    record: &Record,
    format: &Format,
    choice: &SourceChoice,
    on: Fetch<'_>,
    discard: &dyn Fn(&[ModelFile]) -> Result<(), ModelsError>,
) -> Result<(ArtifactRecord, Option<&'static str>), ModelsError> {
    let source = source::fetch(record, format, choice, on)?;
    store::check(on.cancel)?;
    let bytes = source::total(&record.files_to_fetch(format));
    on.progress.report("install", 0, bytes);
    // Files that were here already came with an earlier pull; its record, where there is one, knows from where.
    let proven = prove(record, format, source.unwrap_or("store"), on);
    if let Err(ModelsError::ArtifactInvalid { .. }) = &proven {
        discard(&record.files_to_fetch(format))?;
    }
    if proven.is_ok() {
        on.progress.report("install", bytes, bytes);
    }
    proven.map(|artifact| (artifact, source))
}

/// Checks a GGUF file before any engine may see it. Its digest is the record's, which says nothing of its making.
fn inspect_gguf(path: &Path, record: &Record, size: u64) -> Result<Gguf, GgufError> {
    let mut file = File::open(path)?;
    let gguf = gguf::inspect(&mut file, size)?;
    gguf::check::check_context(&gguf, record.context)?;
    Ok(gguf)
}

fn prove(record: &Record, format: &Format, source: &str, on: Fetch<'_>) -> Result<ArtifactRecord, ModelsError> {
    let invalid = |what: &str, reason: String| ModelsError::ArtifactInvalid {
        what: format!("{} ({what})", record.id),
        reason,
    };
    let mut headers = Vec::new();
    if format.format == "gguf" {
        for file in &format.files {
            let header = inspect_gguf(&on.blobs.path(file.sha256), record, file.size)
                .map_err(|error| invalid(&file.path, error.to_string()))?;
            headers.push((file, header));
        }
    }
    let files = record.files_to_fetch(format);
    let read = |path: &str| {
        let file = files.iter().find(|file| file.path == path && file.size <= MAX_READ)?;
        on.blobs.read(&expected(file)).ok()
    };
    let is_folder = files.iter().any(|file| file.path == "modules.json");
    let rows = if is_folder {
        let layout = layout::check_sentence_transformers(read).map_err(|error| invalid("layout", error.to_string()))?;
        layout::check_record(record, format, &layout).map_err(|error| invalid("layout", error.to_string()))?;
        Some(layout.config.vocab_size)
    } else {
        let config = format
            .files
            .iter()
            .chain(&record.layout)
            .find(|file| file.role == "config")
            .and_then(|file| read(&file.path));
        match config {
            Some(bytes) => Some(
                layout::check_config(&bytes)
                    .map_err(|error| invalid("config", error.to_string()))?
                    .vocab_size,
            ),
            None => None,
        }
    };
    // A tokenizer's id must be a row of the table that the engine looks it up in, whoever else knows a number of rows.
    let table = headers.iter().find_map(|(_, header)| header.embedding_rows());
    let rows = rows.into_iter().chain(table).min();
    let digest = profile::artifact_digest(format, |role| {
        let file = format.files.iter().find(|file| file.role == role)?;
        read(&file.path)
    })
    .map_err(|error| invalid("config", error.to_string()))?;
    let header = headers.first().map(|(_, header)| header);
    chat::compile(record, header).map_err(|error| invalid("chat template", error.to_string()))?;
    let refused = |error: TextError| invalid("tokenizer", error.to_string());
    let published = match (&record.tokenizer, headers.first()) {
        (Some(file), _) => {
            let bytes = read(&file.path).ok_or_else(|| invalid("tokenizer", format!("{} is unreadable", file.path)))?;
            Some((file.sha256, bytes))
        }
        (None, Some((file, header))) => {
            let vocabulary = gguf::vocabulary::read(header).map_err(|error| invalid("tokenizer", error.to_string()))?;
            Some((file.sha256, tokenizer_json(&vocabulary).map_err(refused)?))
        }
        (None, None) => None,
    };
    let tokenizer = match published {
        None => None,
        Some((published, bytes)) => {
            let sanitised = sanitise::sanitise(&bytes, rows).map_err(refused)?;
            let kept = on.blobs.put("tokenizer", &sanitised.bytes)?;
            Some(ArtifactTokenizer {
                published,
                sanitised: kept.sha256,
                size: kept.size,
            })
        }
    };
    // A file that an engine is given as well is kept, and counted, once.
    let of_host: Vec<ModelFile> = record
        .layout
        .iter()
        .filter(|file| !format.files.iter().any(|other| other.path == file.path))
        .cloned()
        .collect();
    let keep = |files: &[ModelFile]| {
        files
            .iter()
            .map(|file| ArtifactFile {
                role: file.role.clone(),
                sha256: file.sha256,
                size: file.size,
            })
            .collect()
    };
    Ok(ArtifactRecord {
        model: record.id.clone(),
        format: format.format.clone(),
        quant: format.quant.clone(),
        digest,
        source: source.to_owned(),
        files: keep(&format.files),
        layout: keep(&of_host),
        tokenizer,
        validation: Validation::Validated,
        pins: Vec::new(),
    })
}
