//! The numeric spaces of an index: what a program keeps beside its vectors, and asks about before each write (ALIAS-10).
//!
//! It owns a small JSON file that the program keeps with its index: the space that queries are embedded in, and every space
//! whose vectors were ever written. An index must not mix spaces, unless the daemon's alias table says that they are
//! equivalent; only the daemon knows that, and only at the moment of the write.
//!
//! ```no_run
//! # async fn example(client: synapse_client::Client, index: &mut Vec<Vec<f32>>) -> Result<(), Box<dyn std::error::Error>> {
//! use std::path::Path;
//!
//! use synapse_client::{BatchItem, BatchOutcome, EmbedBatchParams, EmbedQueryParams, IndexSpaces};
//!
//! let file = Path::new("notes.spaces.json");
//! let mut spaces = IndexSpaces::load(file)?;
//! let params = EmbedBatchParams::new("all-minilm-l6-v2", vec![BatchItem::new("1", "The harbour at dawn.")]);
//! if let BatchOutcome::Vectors(answer) = client.embed_batch(spaces.batch(params)).await? {
//!     // In this order: what the file says is never less than what the index holds.
//!     spaces.before_write(&client, &answer.reply.fingerprint).await?;
//!     spaces.save(file)?;
//!     index.extend(answer.vectors.into_iter().flatten());
//! }
//! // Queries come from the index's own space, or from one that is equivalent now.
//! client.embed_query(spaces.query(EmbedQueryParams::new("all-minilm-l6-v2", "What happens at dawn?"))).await?;
//! # Ok(()) }
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use synapse_wire::client::{
    AliasesCheckIndexParams, AliasesCheckIndexResult, EmbedBatchParams, EmbedQueryParams, IndexState,
};

use crate::client::Client;
use crate::error::ClientError;

/// The numeric spaces of one index. New: no space yet; the first write names it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexSpaces {
    /// The space of the index, which queries are embedded in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    /// Every space whose vectors were written.
    #[serde(default)]
    written: BTreeSet<String>,
    /// The alias table's epoch at the last check. It says when that was, and nothing about now.
    #[serde(default)]
    table_epoch: u64,
}

/// Why an index must not be written.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// It holds, or would hold, vectors of spaces that are not equivalent.
    #[error("the index spans numeric spaces that are not equivalent; {}", advice(.0))]
    MigrationRequired(Box<AliasesCheckIndexResult>),
    /// The daemon answered with a verdict that this version does not know.
    #[error("the daemon's verdict is not understood; update this program before it writes to the index")]
    UnknownVerdict,
    /// The question could not be asked.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// What to do with an index that must move.
fn advice(verdict: &AliasesCheckIndexResult) -> String {
    match &verdict.rebuild_target {
        Some(target) => format!("rebuild it for {target}"),
        None => "no certified space covers any of it: run `synapse probe run`, then ask again".to_owned(),
    }
}

impl IndexSpaces {
    /// Reads the file; one that is not there is a new index.
    ///
    /// # Errors
    /// The file cannot be read, or is not one of these.
    pub fn load(path: &Path) -> io::Result<Self> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            text => text?,
        };
        serde_json::from_str(&text)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display())))
    }

    /// Writes the file, whole or not at all, and to the disk.
    ///
    /// # Errors
    /// The file system's.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let new = Path::new(&name);
        let mut file = fs::File::create(new)?;
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        drop(file);
        fs::rename(new, path)
    }

    /// The space of the index; `None` before the first write.
    #[must_use]
    pub fn fingerprint(&self) -> Option<&str> {
        self.fingerprint.as_deref()
    }

    /// Every space whose vectors were written.
    pub fn written(&self) -> impl Iterator<Item = &str> {
        self.written.iter().map(String::as_str)
    }

    /// The alias table's epoch at the last check.
    #[must_use]
    pub const fn table_epoch(&self) -> u64 {
        self.table_epoch
    }

    /// A query of this index: embedded in its space, or in one that is equivalent now, or refused.
    #[must_use]
    pub fn query(&self, params: EmbedQueryParams) -> EmbedQueryParams {
        EmbedQueryParams {
            target_fingerprint: self.fingerprint.clone(),
            ..params
        }
    }

    /// Texts for this index: embedded in its space, or in one that is equivalent now, or refused.
    #[must_use]
    pub fn batch(&self, params: EmbedBatchParams) -> EmbedBatchParams {
        EmbedBatchParams {
            target_fingerprint: self.fingerprint.clone(),
            ..params
        }
    }

    /// Asks whether vectors of the space `fingerprint` may be written now, and counts them among what the index holds. Call
    /// it right before the write; then [`IndexSpaces::save`], then write.
    ///
    /// # Errors
    /// [`IndexError::MigrationRequired`]: do not write, and rebuild. Nothing has changed in any case of failure.
    pub async fn before_write(&mut self, client: &Client, fingerprint: &str) -> Result<(), IndexError> {
        let index = self.fingerprint.as_deref().unwrap_or(fingerprint).to_owned();
        let mut written = self.written.clone();
        written.insert(fingerprint.to_owned());
        let params = AliasesCheckIndexParams {
            index_fingerprint: index.clone(),
            provenance_set: written.iter().cloned().collect(),
        };
        let verdict = client.aliases_check_index(&params).await?.result;
        match verdict.verdict {
            IndexState::Valid => {
                *self = Self {
                    fingerprint: Some(index),
                    written,
                    table_epoch: verdict.table_epoch,
                };
                Ok(())
            }
            IndexState::MigrationRequired => Err(IndexError::MigrationRequired(Box::new(verdict))),
            IndexState::Unknown => Err(IndexError::UnknownVerdict),
        }
    }
}
