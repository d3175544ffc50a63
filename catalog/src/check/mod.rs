//! From TOML text to checked records and rows: the only way in.
//!
//! State: none. Callers: [`crate::Catalog`], `synapse catalog check`. Every problem is reported at once, each with the
//! field it concerns; unknown keys are named, because a misspelt `max_token` must not pass for an absent one.

mod record;
mod row;

use std::fmt;

use serde::de::DeserializeOwned;
use synapse_core::digest::Sha256Digest;

use crate::file::{EnvelopesFile, RecordFile};
use crate::path::safe_relative;
use crate::record::{EnvelopeRow, Origin, Record};
use crate::selector::{is_model_id, is_name};

/// The largest catalog file.
pub const MAX_FILE_BYTES: usize = 1 << 20;
/// The schema number that this version reads.
pub const SCHEMA: u32 = 1;

const MAX_FILE_SIZE: u64 = 1 << 40;

/// One thing that is wrong with a catalog file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where, for example `formats[0].files[1].sha256`; empty for the file as a whole.
    pub field: String,
    /// What is wrong, what was expected.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => f.write_str(&self.message),
            field => write!(f, "{field}: {}", self.message),
        }
    }
}

/// Checks a model record.
///
/// # Errors
/// Every problem found; at least one.
pub fn check(text: &str) -> Result<Record, Vec<Problem>> {
    check_as(text, &Origin::Operator)
}

/// Checks a file of envelope rows. Whether their models exist is checked where the catalog is put together.
///
/// # Errors
/// Every problem found; at least one.
pub fn check_envelopes(text: &str) -> Result<Vec<EnvelopeRow>, Vec<Problem>> {
    check_envelopes_as(text, &Origin::Operator)
}

pub(crate) fn check_as(text: &str, origin: &Origin) -> Result<Record, Vec<Problem>> {
    let (file, mut found): (RecordFile, _) = read(text)?;
    let record = record::record(file, origin, &mut found);
    found.finish(record)
}

pub(crate) fn check_envelopes_as(text: &str, origin: &Origin) -> Result<Vec<EnvelopeRow>, Vec<Problem>> {
    let (file, mut found): (EnvelopesFile, _) = read(text)?;
    found.expect(file.schema == SCHEMA, "schema", || {
        format!("is {}, this version reads {SCHEMA}", file.schema)
    });
    let rows = file.row.into_iter().enumerate();
    let rows: Vec<EnvelopeRow> = rows
        .filter_map(|(i, file)| row::row(file, &format!("row[{i}]"), origin, &mut found))
        .collect();
    found.finish(rows)
}

/// Whether the text is a file of envelope rows rather than a record.
pub(crate) fn looks_like_envelopes(text: &str) -> bool {
    toml::from_str::<toml::Table>(text).is_ok_and(|table| table.contains_key("row"))
}

/// Reads TOML into `T`; the list begins with the unknown keys, each by its path.
fn read<T: DeserializeOwned>(text: &str) -> Result<(T, Problems), Vec<Problem>> {
    let whole = |message: String| {
        vec![Problem {
            field: String::new(),
            message,
        }]
    };
    if text.len() > MAX_FILE_BYTES {
        return Err(whole(format!(
            "{} bytes, expected at most {MAX_FILE_BYTES}",
            text.len()
        )));
    }
    let toml = toml::Deserializer::parse(text).map_err(|error| whole(error.to_string()))?;
    let mut found = Problems::default();
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(toml, &mut track);
    let result = serde_ignored::deserialize(tracked, |path| {
        found.add(
            plain_path(&path.to_string()),
            "unknown key; remove it or correct its spelling",
        );
    });
    match result {
        Ok(file) => Ok((file, found)),
        Err(error) => {
            let error: toml::de::Error = error;
            // The root is written as a dot.
            let path = track.path().to_string();
            found.add(if path == "." { String::new() } else { path }, error.message());
            Err(found.list)
        }
    }
}

/// `formats.0.files.1.x`, or with `?` for optional values, as `formats[0].files[1].x`.
fn plain_path(path: &str) -> String {
    let mut out = String::new();
    for part in path.split('.').filter(|part| *part != "?") {
        if part.bytes().all(|b| b.is_ascii_digit()) && !part.is_empty() {
            out.push_str(&format!("[{part}]"));
        } else {
            if !out.is_empty() {
                out.push('.');
            }
            out.push_str(part);
        }
    }
    out
}

#[derive(Default)]
struct Problems {
    list: Vec<Problem>,
}

impl Problems {
    fn add(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.list.push(Problem {
            field: field.into(),
            message: message.into(),
        });
    }

    fn expect(&mut self, holds: bool, field: &str, message: impl FnOnce() -> String) {
        if !holds {
            self.add(field, message());
        }
    }

    fn finish<T>(self, value: T) -> Result<T, Vec<Problem>> {
        if self.list.is_empty() {
            Ok(value)
        } else {
            Err(self.list)
        }
    }

    fn digest(&mut self, text: &str, field: &str) -> Sha256Digest {
        match text.parse() {
            Ok(digest) => digest,
            Err(error) => {
                self.add(field, error.to_string());
                Sha256Digest([0; 32])
            }
        }
    }

    fn size(&mut self, size: u64, field: &str) {
        self.expect((1..=MAX_FILE_SIZE).contains(&size), field, || {
            format!("is {size}, expected 1 to {MAX_FILE_SIZE}")
        });
    }

    fn path(&mut self, path: &str, field: &str) {
        if let Err(why) = safe_relative(path) {
            self.add(
                field,
                format!("{path:?} {why}; expected a relative path inside the model"),
            );
        }
    }

    fn word(&mut self, text: &str, field: &str) {
        self.expect(is_name(text), field, || {
            format!("is {text:?}, expected 1 to 64 of a-z 0-9 . _ -")
        });
    }

    fn range(&mut self, value: u32, most: u32, field: &str) {
        self.expect((1..=most).contains(&value), field, || {
            format!("is {value}, expected 1 to {most}")
        });
    }
}

/// Ids of the program and of the operator are plain; a bundle's begin with its own id.
fn check_id(id: &str, field: &str, origin: &Origin, found: &mut Problems) {
    found.expect(is_model_id(id), field, || {
        format!("is {id:?}, expected 1 to 64 of a-z 0-9 . _ -")
    });
    match origin {
        Origin::Bundle(bundle) => {
            let inside = id
                .strip_prefix(bundle.as_str())
                .is_some_and(|rest| rest.starts_with('/'));
            found.expect(inside, field, || {
                format!("is {id:?}, but this bundle's ids begin with {bundle}/")
            });
        }
        Origin::Builtin | Origin::Operator => {
            // `catalog check` judges a bundle's file too, so a namespace alone is no problem there.
            found.expect(*origin == Origin::Operator || !id.contains('/'), field, || {
                "has a bundle's namespace".into()
            });
        }
    }
}
