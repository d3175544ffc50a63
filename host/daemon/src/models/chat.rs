//! The chat template of a generator, with the token texts that it may write.
//!
//! State: none. Callers: `ingest`, which compiles it so that a broken one refuses the model and not its first request,
//! and the lanes, at a load. Not known here: how a template is rendered (`text`).

use std::fs::File;

use synapse_catalog::{Kind, Record};

use super::gguf::{self, Gguf, GgufError};
use super::store::storage;
use super::{Installed, ModelStore, ModelsError};
use crate::text::{ChatTemplate, TextError};

/// Why a model's chat template cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChatError {
    /// The file that carries it is damaged.
    #[error("{0}")]
    File(#[from] GgufError),
    /// It does not compile.
    #[error("{0}")]
    Template(#[from] TextError),
}

/// The template of a record, else of its GGUF, compiled; `None` where neither has one, and for models of another kind.
pub(super) fn compile(record: &Record, header: Option<&Gguf>) -> Result<Option<ChatTemplate>, ChatError> {
    if record.kind != Kind::Generate {
        return Ok(None);
    }
    let source = match (&record.chat_template, header) {
        (Some(template), _) => Some(template.as_str()),
        (None, Some(header)) => gguf::chat::template(header)?,
        (None, None) => None,
    };
    let (bos, eos) = header.map(gguf::vocabulary::chat_tokens).unwrap_or_default();
    Ok(source
        .map(|source| ChatTemplate::compile(source, &bos, &eos))
        .transpose()?)
}

impl ModelStore {
    /// The chat template of an installed generator: the record's, else the one in its GGUF; `None` where neither has
    /// one.
    ///
    /// # Errors
    /// [`ModelsError::Tokenizer`] when it does not compile, [`ModelsError::ArtifactInvalid`] when the kept GGUF was
    /// damaged, [`ModelsError::Storage`].
    pub fn chat(&self, installed: &Installed, record: &Record) -> Result<Option<ChatTemplate>, ModelsError> {
        let weights = installed.record().files.iter().find(|file| file.role == "weights");
        let in_gguf = record.kind == Kind::Generate && installed.format() == "gguf";
        let Some(file) = weights.filter(|_| in_gguf) else {
            return compile(record, None).map_err(|error| match error {
                ChatError::Template(error) => ModelsError::Tokenizer(error),
                ChatError::File(error) => ModelsError::ArtifactInvalid {
                    what: record.id.clone(),
                    reason: error.to_string(),
                },
            });
        };
        let path = self.blobs().path(file.sha256);
        let mut opened = File::open(&path).map_err(storage(&path))?;
        let header = gguf::reader::read(&mut opened, file.size).map_err(ChatError::File);
        header
            .and_then(|header| compile(record, Some(&header)))
            .map_err(|error| match error {
                ChatError::Template(error) => ModelsError::Tokenizer(error),
                ChatError::File(error) => file.expected().invalid(error.to_string()),
            })
    }
}
