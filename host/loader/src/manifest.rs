//! `plugin.toml`, schema 1: what a bundle says about itself before any of its code runs.
//!
//! State: none. Callers: discovery and the describe child. Not known here: files beyond the text that it is given.
//! Unknown keys are refused by name, so that a misspelt `risk` can never be read as absent. The JSON Schema of the
//! text is `docs/schemas/plugin.schema.json`, generated from [`Text`] and compared by a test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use synapse_core::digest::Sha256Digest;

use crate::bundle::{Refusal, RefusalReason};

/// The manifest's name in a bundle.
pub(crate) const FILE_NAME: &str = "plugin.toml";
/// The schema number of this host.
pub(crate) const SCHEMA: i64 = 1;
/// The most bytes of a manifest.
pub(crate) const MAX_BYTES: u64 = 64 * 1024;
/// The most settings of `[engine.config]`, and the most private libraries.
const MAX_ENTRIES: usize = 64;
/// The longest setting in bytes.
const MAX_VALUE: usize = 4096;
/// The longest path in bytes.
const MAX_PATH: usize = 256;

/// How a library may fail (ENG-05, ENG-06).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Risk {
    /// Errors are returned; no path is known that ends the process.
    AbortSafe,
    /// A failed assertion may end the process: only a worker may run it.
    #[default]
    AbortCapable,
}

/// What a bundle is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    /// A dynamic library that exports the plugin ABI: `library` and `abi` say which.
    Library,
    /// A program that speaks the worker protocol: `program` and `protocol` say which.
    Executable,
}

/// A kind of engine that the bundle offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Offer {
    /// Token ids to vectors.
    Embed,
    /// Pairs to scores.
    Rerank,
    /// A prompt to a continuation.
    Generate,
}

/// The manifest of an engine bundle (`plugin.toml`).
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Synapse plugin manifest, schema 1", extend("oneOf" = [
    {
        "properties": { "kind": { "const": "library" }, "program": false, "protocol": false },
        "required": ["library", "abi"]
    },
    {
        "properties": {
            "kind": { "const": "executable" },
            "library": false, "abi": false, "risk": false, "private_libraries": false
        },
        "required": ["program", "protocol"]
    }
]))]
pub(crate) struct Text {
    /// The number of this form: 1.
    #[schemars(range(min = 1, max = 1))]
    #[expect(dead_code, reason = "read before the rest, from the raw table")]
    schema: i64,
    /// The bundle's id, which is also its folder's name and the id in the library.
    #[schemars(regex(pattern = r"^[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?$"))]
    id: String,
    /// The package version: semver, equal to the library's.
    version: String,
    /// What the bundle is.
    kind: Kind,
    /// Of a library: its file, relative to this file's folder, with `/` between the parts.
    #[serde(default, deserialize_with = "some")]
    #[schemars(with = "String")]
    library: Option<String>,
    /// Of a library: how it may fail. Absent means `abort-capable`.
    #[serde(default, deserialize_with = "some")]
    #[schemars(with = "Risk")]
    risk: Option<Risk>,
    /// Of a library: the plugin ABI that it was built for, `MAJOR` or `MAJOR.MINOR`.
    #[serde(default, deserialize_with = "some")]
    #[schemars(with = "String", regex(pattern = r"^[0-9]{1,5}(\.[0-9]{1,5})?$"))]
    abi: Option<String>,
    /// Of an executable: its file, relative to this file's folder, with `/` between the parts. It needs its executable
    /// bit; a script begins with `#!` and an absolute interpreter, or `/usr/bin/env NAME`.
    #[serde(default, deserialize_with = "some")]
    #[schemars(with = "String")]
    program: Option<String>,
    /// Of an executable: the version of the worker protocol that it speaks.
    #[serde(default, deserialize_with = "some")]
    #[schemars(with = "u32", range(min = 1))]
    protocol: Option<u32>,
    /// The kinds of engine that the bundle offers. When present, it must describe exactly these.
    #[serde(default)]
    #[schemars(length(min = 1))]
    engines: Option<Vec<Offer>>,
    /// Of a library: native libraries that the bundle brings along, relative to this file's folder.
    #[serde(default)]
    private_libraries: Vec<String>,
    /// What the engine is, in one line, for people.
    #[serde(default)]
    description: Option<String>,
    /// The SPDX expression of the bundle's licence, for people.
    #[serde(default)]
    license: Option<String>,
    /// Where the engine's documentation is, for people.
    #[serde(default)]
    homepage: Option<String>,
    /// SHA-256 by relative path. When present, it lists every file of the bundle except this one.
    #[serde(default)]
    files: Option<BTreeMap<String, String>>,
    /// Settings of the bundle's engines.
    #[serde(default)]
    engine: EngineText,
}

/// Settings of the bundle's engines.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EngineText {
    /// Handed to each engine as text; an engine refuses a key that it does not know.
    #[serde(default)]
    config: BTreeMap<String, Setting>,
}

/// One setting.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Setting {
    /// `true` or `false`.
    Flag(bool),
    /// A whole number.
    Whole(i64),
    /// Text.
    Words(String),
}

/// What a bundle runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Main {
    /// A library of the plugin ABI.
    Library(Library),
    /// A program that speaks the worker protocol, and that protocol's version.
    Program { path: PathBuf, protocol: u32 },
}

/// A library and what the manifest says about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Library {
    pub path: PathBuf,
    pub risk: Risk,
    pub abi_major: u32,
    pub private: Vec<PathBuf>,
}

/// A manifest whose every value is within its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub id: String,
    pub version: semver::Version,
    pub main: Main,
    pub engines: Option<Vec<Offer>>,
    pub files: Option<BTreeMap<String, Sha256Digest>>,
    pub config: Vec<(String, String)>,
}

impl Manifest {
    /// Reads the text of a `plugin.toml`.
    ///
    /// # Errors
    /// [`RefusalReason::ManifestInvalid`], [`RefusalReason::ManifestSchema`], [`RefusalReason::PathEscape`].
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let table: toml::Table = toml::from_str(text).map_err(|error| invalid(one_line(text, &error)))?;
        match table.get("schema") {
            Some(toml::Value::Integer(SCHEMA)) => {}
            Some(other) => {
                return Err(Refusal::new(
                    RefusalReason::ManifestSchema,
                    format!("{FILE_NAME}: schema: expected {SCHEMA}, found {other}; a newer host may know it"),
                ));
            }
            None => return Err(invalid(format!("schema: expected {SCHEMA}, found nothing"))),
        }
        let raw: Text = toml::from_str(text).map_err(|error| invalid(one_line(text, &error)))?;
        for (field, words) in [
            ("description", &raw.description),
            ("license", &raw.license),
            ("homepage", &raw.homepage),
        ] {
            if words
                .as_ref()
                .is_some_and(|words| words.len() > MAX_VALUE || words.contains(char::is_control))
            {
                return Err(invalid(format!(
                    "{field}: expected one line of at most {MAX_VALUE} bytes"
                )));
            }
        }
        let main = match raw.kind {
            Kind::Library => Main::Library(library(&raw)?),
            Kind::Executable => program(&raw)?,
        };
        let files = raw
            .files
            .map(|files| files.into_iter().map(file_row).collect())
            .transpose()?;
        Ok(Self {
            id: id(raw.id)?,
            version: version(&raw.version)?,
            main,
            engines: raw.engines.map(offers).transpose()?,
            files,
            config: settings(raw.engine.config)?,
        })
    }
}

impl Manifest {
    /// The file that the bundle runs.
    pub fn main_file(&self) -> &Path {
        match &self.main {
            Main::Library(library) => &library.path,
            Main::Program { path, .. } => path,
        }
    }

    /// The library.
    ///
    /// # Errors
    /// [`RefusalReason::ManifestInvalid`]: the bundle is a program.
    pub fn library(&self) -> Result<&Library, Refusal> {
        match &self.main {
            Main::Library(library) => Ok(library),
            Main::Program { path, .. } => Err(invalid(format!(
                "kind: expected \"library\"; an executable is started by its own program, {}",
                path.display()
            ))),
        }
    }
}

/// A value that is there, of a key that may be absent.
fn some<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(value: D) -> Result<Option<T>, D::Error> {
    T::deserialize(value).map(Some)
}

/// The part of a manifest that describes a library.
fn library(raw: &Text) -> Result<Library, Refusal> {
    let foreign = [("program", raw.program.is_some()), ("protocol", raw.protocol.is_some())];
    if let Some((key, _)) = foreign.iter().find(|(_, there)| *there) {
        return Err(invalid(format!(
            "{key}: belongs to kind = \"executable\"; a library has library and abi"
        )));
    }
    if raw.private_libraries.len() > MAX_ENTRIES {
        return Err(invalid(format!(
            "private_libraries: expected at most {MAX_ENTRIES} entries"
        )));
    }
    let private = raw.private_libraries.iter();
    Ok(Library {
        path: relative("library", required("library", raw.library.as_deref())?)?,
        risk: raw.risk.unwrap_or_default(),
        abi_major: abi_major(required("abi", raw.abi.as_deref())?)?,
        private: private
            .map(|path| relative("private_libraries", path))
            .collect::<Result<_, _>>()?,
    })
}

/// The part of a manifest that describes a program.
fn program(raw: &Text) -> Result<Main, Refusal> {
    let foreign = [
        ("library", raw.library.is_some()),
        ("abi", raw.abi.is_some()),
        ("private_libraries", !raw.private_libraries.is_empty()),
    ];
    if let Some((key, _)) = foreign.iter().find(|(_, there)| *there) {
        return Err(invalid(format!(
            "{key}: belongs to kind = \"library\"; an executable has program and protocol"
        )));
    }
    if raw.risk.is_some() {
        return Err(invalid(
            "risk: an executable always runs in a process of its own; remove the key",
        ));
    }
    let path = relative("program", required("program", raw.program.as_deref())?)?;
    let protocol = raw
        .protocol
        .ok_or_else(|| invalid("protocol: expected the worker protocol's version, found nothing"))?;
    Ok(Main::Program { path, protocol })
}

fn required<'a>(field: &str, value: Option<&'a str>) -> Result<&'a str, Refusal> {
    value.ok_or_else(|| invalid(format!("{field}: expected a value, found nothing")))
}

fn invalid(message: impl AsRef<str>) -> Refusal {
    Refusal::new(
        RefusalReason::ManifestInvalid,
        format!("{FILE_NAME}: {}", message.as_ref()),
    )
}

/// The parser's message on one line, with the line of the text that it is about.
fn one_line(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().replace('\n', " ");
    let line = error
        .span()
        .and_then(|span| text.get(..span.start))
        .map(|before| before.matches('\n').count() + 1);
    line.map_or_else(|| message.clone(), |line| format!("line {line}: {message}"))
}

/// An id: it becomes a folder's name, a part of `MODEL@ENGINE:VARIANT` and a word in logs.
fn id(text: String) -> Result<String, Refusal> {
    if synapse_plugin_api::magic::is_id(&text) {
        return Ok(text);
    }
    Err(invalid(format!(
        "id: expected 1 to 64 of a-z, 0-9 and '-', with no '-' at either end, found {}",
        shown(&text)
    )))
}

fn version(text: &str) -> Result<semver::Version, Refusal> {
    if text.len() > 64 {
        return Err(invalid("version: expected at most 64 bytes"));
    }
    semver::Version::parse(text).map_err(|error| {
        invalid(format!(
            "version: expected a semantic version, found {}: {error}",
            shown(text)
        ))
    })
}

fn abi_major(text: &str) -> Result<u32, Refusal> {
    let number = |part: &str| -> Option<u32> {
        (part.len() <= 5 && part.bytes().all(|byte| byte.is_ascii_digit())).then(|| part.parse().ok())?
    };
    let major = match text.split_once('.') {
        None => number(text),
        Some((major, minor)) => number(major).zip(number(minor)).map(|(major, _)| major),
    };
    major.ok_or_else(|| invalid(format!("abi: expected MAJOR or MAJOR.MINOR, found {}", shown(text))))
}

/// A path inside the bundle. Backslashes and colons are refused so that it means the same on every system.
fn relative(field: &str, text: &str) -> Result<PathBuf, Refusal> {
    let shape = !text.is_empty()
        && text.len() <= MAX_PATH
        && !text.contains(['\\', ':', '\0'])
        && !text.contains(char::is_control);
    let inside = text.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if shape && inside {
        return Ok(text.split('/').collect());
    }
    Err(Refusal::new(
        RefusalReason::PathEscape,
        format!(
            "{FILE_NAME}: {field}: expected a path inside the bundle such as lib/name.so, found {}",
            shown(text)
        ),
    ))
}

fn offers(mut list: Vec<Offer>) -> Result<Vec<Offer>, Refusal> {
    let count = list.len();
    list.sort_unstable();
    list.dedup();
    if list.is_empty() || list.len() != count {
        return Err(invalid("engines: expected at least one kind, each once"));
    }
    Ok(list)
}

fn file_row((path, digest): (String, String)) -> Result<(String, Sha256Digest), Refusal> {
    relative("files", &path)?;
    let digest = digest
        .parse()
        .map_err(|error| invalid(format!("files: {}: {error}", shown(&path))))?;
    Ok((path, digest))
}

fn settings(table: BTreeMap<String, Setting>) -> Result<Vec<(String, String)>, Refusal> {
    if table.len() > MAX_ENTRIES {
        return Err(invalid(format!(
            "engine.config: expected at most {MAX_ENTRIES} settings"
        )));
    }
    table
        .into_iter()
        .map(|(key, setting)| {
            if !is_setting_key(&key) {
                return Err(invalid(format!(
                    "engine.config: expected keys of 1 to 64 of a-z, 0-9, '_', '.', '-', found {}",
                    shown(&key)
                )));
            }
            let value = match setting {
                Setting::Flag(flag) => flag.to_string(),
                Setting::Whole(number) => number.to_string(),
                Setting::Words(words) => words,
            };
            if value.len() > MAX_VALUE {
                return Err(invalid(format!(
                    "engine.config.{key}: expected at most {MAX_VALUE} bytes"
                )));
            }
            Ok((key, value))
        })
        .collect()
}

/// Whether `key` may name a setting of an engine.
pub(crate) fn is_setting_key(key: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.-".contains(&byte);
    (1..=64).contains(&key.len()) && key.bytes().all(allowed)
}

/// Untrusted text for a message: quoted, escaped, cut.
pub(crate) fn shown(text: &str) -> String {
    let cut: String = text.chars().take(80).collect();
    let more = if cut.len() < text.len() { "…" } else { "" };
    format!("\"{}{more}\"", cut.escape_debug())
}

#[cfg(test)]
mod tests;
