//! A model's files: found by role, read within bounds, checked before anything is built from them.
//!
//! Owns nothing after a load. Called by `engine`; knows the formats, not the arithmetic.

pub mod config;
pub mod modules;
pub mod safetensors;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::{OwnedError, Result};

/// The most bytes of a JSON file.
const JSON_LIMIT: u64 = 1 << 20;

/// The files of one artifact, by role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactFiles {
    /// `config`: the architecture's config.json.
    pub config: PathBuf,
    /// `weights`: model.safetensors.
    pub weights: PathBuf,
    /// `modules`: sentence-transformers' modules.json, where the record lists it.
    pub modules: Option<PathBuf>,
    /// `pooling`: 1_Pooling/config.json, where the record lists it.
    pub pooling: Option<PathBuf>,
    /// `dense.N.weights` and `dense.N.config`: the Dense modules after pooling, in order.
    pub dense: Vec<DenseFiles>,
}

/// The files of one Dense module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenseFiles {
    /// Its model.safetensors.
    pub weights: PathBuf,
    /// Its config.json: sizes and activation.
    pub config: PathBuf,
}

impl ArtifactFiles {
    /// The two files that every artifact has.
    #[must_use]
    pub const fn new(config: PathBuf, weights: PathBuf) -> Self {
        Self {
            config,
            weights,
            modules: None,
            pooling: None,
            dense: Vec::new(),
        }
    }

    /// Sorts files by role.
    ///
    /// # Errors
    /// [`OwnedError::Config`] for a role that is missing, doubled or unknown.
    pub fn by_role<'a>(files: impl IntoIterator<Item = (&'a str, PathBuf)>) -> Result<Self> {
        let (mut config, mut weights, mut modules, mut pooling) = (None, None, None, None);
        let mut dense: BTreeMap<usize, [Option<PathBuf>; 2]> = BTreeMap::new();
        for (role, path) in files {
            let slot = if let Some((number, part)) = dense_role(role) {
                &mut dense.entry(number).or_default()[part]
            } else {
                match role {
                    "config" => &mut config,
                    "weights" => &mut weights,
                    "modules" => &mut modules,
                    "pooling" => &mut pooling,
                    _ => {
                        return Err(OwnedError::Config {
                            key: "files".to_owned(),
                            problem: format!(
                                "role {role:?} ({}) is unknown; expected config, weights, modules, pooling, or \
                                 dense.N.weights and dense.N.config",
                                path.display()
                            ),
                        });
                    }
                }
            };
            if slot.replace(path).is_some() {
                return Err(OwnedError::Config {
                    key: "files".to_owned(),
                    problem: format!("role {role:?} is given twice; give each role once"),
                });
            }
        }
        let required = |role: &str, path: Option<PathBuf>| {
            path.ok_or_else(|| OwnedError::Config {
                key: "files".to_owned(),
                problem: format!("role {role:?} is missing; a safetensors artifact needs config and weights"),
            })
        };
        let dense = dense
            .into_iter()
            .enumerate()
            .map(|(index, (number, [weights, config]))| match (index == number, weights, config) {
                (true, Some(weights), Some(config)) => Ok(DenseFiles { weights, config }),
                _ => Err(OwnedError::Config {
                    key: "files".to_owned(),
                    problem: format!(
                        "dense modules need dense.N.weights and dense.N.config for each N from 0 on; see number {index}"
                    ),
                }),
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            config: required("config", config)?,
            weights: required("weights", weights)?,
            modules,
            pooling,
            dense,
        })
    }
}

/// The number of `dense.N.weights` (part 0) or `dense.N.config` (part 1).
fn dense_role(role: &str) -> Option<(usize, usize)> {
    let (number, part) = role.strip_prefix("dense.")?.split_once('.')?;
    let part = ["weights", "config"].iter().position(|known| *known == part)?;
    let number: usize = number.parse().ok()?;
    (role == format!("dense.{number}.{}", ["weights", "config"][part])).then_some((number, part))
}

/// Reads a JSON file of bounded size into a typed value.
fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let read = |source| OwnedError::Read {
        path: path.to_owned(),
        source,
    };
    let problem = |problem| OwnedError::File {
        path: path.to_owned(),
        problem,
    };
    let file = File::open(path).map_err(read)?;
    let mut bytes = Vec::new();
    file.take(JSON_LIMIT + 1).read_to_end(&mut bytes).map_err(read)?;
    if bytes.len() as u64 > JSON_LIMIT {
        return Err(problem(format!(
            "longer than {JSON_LIMIT} bytes; expected a small JSON file"
        )));
    }
    serde_json::from_slice(&bytes).map_err(|error| match what_it_looks_like(&bytes) {
        Some(what) => problem(format!("looks like {what}, expected JSON; download the file again")),
        None => problem(format!("not the expected JSON: {error}")),
    })
}

/// Names the usual impostors: what a failed download leaves in place of a file.
fn what_it_looks_like(start: &[u8]) -> Option<&'static str> {
    let text = start.trim_ascii_start();
    let starts_with = |prefix: &str| {
        text.get(..prefix.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    if starts_with("<!doctype") || starts_with("<html") || starts_with("<head") || starts_with("<?xml") {
        Some("HTML")
    } else if starts_with("version https://git-lfs") {
        Some("a Git LFS pointer")
    } else if text.starts_with(b"PK\x03\x04") {
        Some("a zip archive")
    } else if text.starts_with(b"GGUF") {
        Some("a GGUF file")
    } else {
        None
    }
}
