//! What an author's `load` takes and gives.
//!
//! Owns no state: the artifact and the settings are borrowed from the host for one call.

use crate::{
    api::{ArtifactFile, KeyValue, ValidatedArtifact},
    error::Error,
};

/// The files of one model in one format, each verified by the host.
#[derive(Clone, Copy, Debug)]
pub struct Artifact<'a>(&'a ValidatedArtifact);

impl<'a> Artifact<'a> {
    /// Borrows an artifact of the ABI.
    #[must_use]
    pub const fn new(artifact: &'a ValidatedArtifact) -> Self {
        Self(artifact)
    }

    /// All files, in the record's order.
    #[must_use]
    pub fn files(&self) -> &'a [ArtifactFile] {
        self.0.files.as_slice()
    }

    /// The file of a role, if the artifact has it.
    #[must_use]
    pub fn find(&self, role: &str) -> Option<&'a ArtifactFile> {
        self.files().iter().find(|file| file.role == role)
    }

    /// The file of a role that the engine cannot do without.
    ///
    /// # Errors
    /// ARTIFACT_INVALID naming the role.
    pub fn file(&self, role: &str) -> Result<&'a ArtifactFile, Error> {
        self.find(role)
            .ok_or_else(|| Error::artifact_invalid(format!("the artifact has no file of role `{role}`")))
    }
}

/// How a model is to be run. The shim has checked the numbers, and the keys of `extra` against the engine's list.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeConfig<'a> {
    /// The artifact's format.
    pub format: &'a str,
    /// The arithmetic type.
    pub dtype: &'a str,
    /// The record's pooling: `mean`, `cls`, `last` or `none`.
    pub pooling: &'a str,
    /// The longest item in tokens; at least 1.
    pub max_tokens: u32,
    /// The most items of one call; at least 1.
    pub max_batch: u32,
    /// The most tokens of one call, over all items.
    pub max_batch_tokens: u32,
    /// The most threads of one call; at least 1.
    pub threads: u32,
    extra: &'a [KeyValue],
}

impl<'a> RuntimeConfig<'a> {
    /// A further setting by key.
    #[must_use]
    pub fn extra(&self, key: &str) -> Option<&'a str> {
        self.extra
            .iter()
            .find(|pair| pair.key == key)
            .map(|pair| pair.value.as_str())
    }

    /// Checks settings of the ABI and borrows them.
    ///
    /// # Errors
    /// CONFIG_INVALID naming the field or the unknown key.
    pub fn check(config: &'a crate::api::RuntimeConfig, known: &[&str]) -> Result<Self, Error> {
        for (name, value) in [
            ("max_tokens", config.max_tokens),
            ("max_batch", config.max_batch),
            ("max_batch_tokens", config.max_batch_tokens),
            ("threads", config.threads),
        ] {
            if value == 0 {
                return Err(Error::config_invalid(format!("{name}: 0, expected at least 1")));
            }
        }
        for pair in &config.extra {
            if !known.contains(&pair.key.as_str()) {
                let key = pair.key.escape_debug();
                return Err(Error::config_invalid(format!(
                    "unknown setting `{key}`, this engine knows {known:?}"
                )));
            }
        }
        Ok(Self {
            format: config.format.as_str(),
            dtype: config.dtype.as_str(),
            pooling: config.pooling.as_str(),
            max_tokens: config.max_tokens,
            max_batch: config.max_batch,
            max_batch_tokens: config.max_batch_tokens,
            threads: config.threads,
            extra: config.extra.as_slice(),
        })
    }
}

/// A loaded model and what the host must know of it. The SDK keeps the model and gives the host a handle; the model
/// is dropped after `unload`, when its last call has returned.
#[derive(Debug)]
pub struct Loaded<M> {
    /// The author's model.
    pub model: M,
    /// The length of an output vector; 0 for engines that give none.
    pub dims: u32,
    /// The longest item in tokens that the model takes. The shim refuses longer ones. Default: no limit of its own
    /// (the settings' `max_tokens`).
    pub max_tokens: Option<u32>,
    /// How many compute calls may run on the model at once. Default 2.
    pub max_concurrency: u32,
    /// Bytes that the model holds while it is loaded.
    pub memory_bytes: u64,
    /// Further facts by key.
    pub extra: Vec<(String, String)>,
}

impl<M> Loaded<M> {
    /// A model with `dims` output values per item.
    #[must_use]
    pub const fn new(model: M, dims: u32) -> Self {
        Self {
            model,
            dims,
            max_tokens: None,
            max_concurrency: 2,
            memory_bytes: 0,
            extra: Vec::new(),
        }
    }

    /// The same with the longest item in tokens; the smaller of this and the settings' bound counts.
    #[must_use]
    pub const fn max_tokens(mut self, tokens: u32) -> Self {
        self.max_tokens = Some(tokens);
        self
    }

    /// The same with the number of calls that may run at once.
    #[must_use]
    pub const fn max_concurrency(mut self, calls: u32) -> Self {
        self.max_concurrency = calls;
        self
    }

    /// The same with the bytes held.
    #[must_use]
    pub const fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }
}
