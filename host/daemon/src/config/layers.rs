//! Where settings come from: the files of the layers, found and read.
//!
//! State: none. Callers: `resolve.rs`. Not known here: which settings exist. A layer is a flat list of
//! `group.name → value`; comments are dropped by the parser (CONF-03), repeated names are refused.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use jsonc_parser::ast;
use jsonc_parser::{CollectOptions, CommentCollectionStrategy, ParseOptions, parse_to_ast};

use super::ConfigProblem;
use super::setting::Raw;
use crate::paths::{Environment, Platform};

/// The directory of the configuration files, in a project (with a dot) and in the user's configuration (OQ-14).
pub const CONFIG_DIRECTORY: &str = "cortexkit";
/// The file's name in each of these directories.
pub const CONFIG_FILE: &str = "synapse.jsonc";
/// The variable that names a file before all others.
pub const CONFIG_PATH_VARIABLE: &str = "SYNAPSE_CONFIG_PATH";
/// A larger file is refused before it is read.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Which layer a value came from; earlier ones win (CONF-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// The file named by `SYNAPSE_CONFIG_PATH`.
    Environment,
    /// `<project>/.cortexkit/synapse.jsonc`.
    Project,
    /// The user's file.
    User,
    /// The built-in default.
    Default,
}

impl Layer {
    /// The name in `config show`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Environment => "environment",
            Self::Project => "project",
            Self::User => "user",
            Self::Default => "default",
        }
    }
}

/// A file that may hold settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerFile {
    /// Which layer it is.
    pub layer: Layer,
    /// Where it lies.
    pub path: PathBuf,
    /// Its absence is an error.
    pub required: bool,
}

/// One value of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The group, empty at the top.
    pub group: String,
    /// The name in its group.
    pub name: String,
    /// The value.
    pub value: Raw,
    /// The line where the name stands, from 1.
    pub line: usize,
}

/// The files of the layers, strongest first (CONF-01, CONF-02).
#[must_use]
pub fn layer_files(environment: &Environment, platform: Platform, project: &Path) -> Vec<LayerFile> {
    let mut files = Vec::with_capacity(3);
    if let Some(path) = environment.get(CONFIG_PATH_VARIABLE) {
        files.push(LayerFile {
            layer: Layer::Environment,
            path: PathBuf::from(path),
            required: true,
        });
    }
    files.push(LayerFile {
        layer: Layer::Project,
        path: project.join(format!(".{CONFIG_DIRECTORY}")).join(CONFIG_FILE),
        required: false,
    });
    if let Some(path) = user_file(environment, platform) {
        files.push(LayerFile {
            layer: Layer::User,
            path,
            required: false,
        });
    }
    files
}

/// The user's file: `$XDG_CONFIG_HOME`, on Windows `APPDATA` then `USERPROFILE`, otherwise `~/.config` (CONF-02).
#[must_use]
pub fn user_file(environment: &Environment, platform: Platform) -> Option<PathBuf> {
    let base = environment.absolute("XDG_CONFIG_HOME").or_else(|| match platform {
        Platform::Windows => environment
            .absolute("APPDATA")
            .or_else(|| environment.absolute("USERPROFILE")),
        Platform::Linux | Platform::MacOs => environment.absolute("HOME").map(|home| home.join(".config")),
    })?;
    Some(base.join(CONFIG_DIRECTORY).join(CONFIG_FILE))
}

/// Reads one layer's file; `None` when it does not exist and need not.
///
/// # Errors
/// The file cannot be read, is too large, is not a regular file, or is not JSONC with one object.
pub fn read(file: &LayerFile) -> Result<Option<Vec<Entry>>, ConfigProblem> {
    let problem = |message: String| ConfigProblem {
        file: Some(file.path.clone()),
        line: None,
        key: None,
        message,
    };
    let metadata = match std::fs::metadata(&file.path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !file.required => return Ok(None),
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory && !file.required => return Ok(None),
        Err(error) => return Err(problem(format!("cannot be read: {error}"))),
    };
    if !metadata.is_file() {
        return Err(problem(String::from("is not a regular file")));
    }
    if metadata.len() > MAX_CONFIG_BYTES {
        return Err(problem(format!(
            "has {} bytes; at most {MAX_CONFIG_BYTES} are read",
            metadata.len()
        )));
    }
    let mut text = String::new();
    File::open(&file.path)
        .and_then(|open| open.take(MAX_CONFIG_BYTES).read_to_string(&mut text))
        .map_err(|error| problem(format!("cannot be read: {error}")))?;
    parse(&text).map(Some).map_err(|mut found| {
        found.file = Some(file.path.clone());
        found
    })
}

/// The dialect: JSON with comments and trailing commas, and nothing else that the parser could take.
const DIALECT: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// Parses JSONC text into a flat list of entries. An empty text is an empty list.
///
/// # Errors
/// Not JSONC, not an object, or a name that stands twice.
pub fn parse(text: &str) -> Result<Vec<Entry>, ConfigProblem> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let collect = CollectOptions {
        comments: CommentCollectionStrategy::Off,
        tokens: false,
    };
    let parsed = parse_to_ast(text, &collect, &DIALECT).map_err(|error| ConfigProblem {
        file: None,
        line: Some(error.line_display()),
        key: None,
        message: format!("is not JSON with comments: {}", error.kind()),
    })?;
    let top = match parsed.value {
        None => return Ok(Vec::new()),
        Some(ast::Value::Object(top)) => top,
        Some(other) => {
            let found = raw(&other).kind();
            let message = format!("expected one object with settings, found {found}");
            return Err(ConfigProblem {
                file: None,
                line: Some(1),
                key: None,
                message,
            });
        }
    };
    let mut entries = Vec::new();
    for property in &top.properties {
        let name = property.name.as_str();
        if let ast::Value::Object(group) = &property.value {
            if group.properties.is_empty() {
                let value = Raw::Object;
                push(
                    &mut entries,
                    Entry {
                        group: String::new(),
                        name: name.to_owned(),
                        value,
                        line: line_of(text, property),
                    },
                )?;
            }
            for inner in &group.properties {
                let entry = Entry {
                    group: name.to_owned(),
                    name: inner.name.as_str().to_owned(),
                    value: raw(&inner.value),
                    line: line_of(text, inner),
                };
                push(&mut entries, entry)?;
            }
        } else {
            let value = raw(&property.value);
            push(
                &mut entries,
                Entry {
                    group: String::new(),
                    name: name.to_owned(),
                    value,
                    line: line_of(text, property),
                },
            )?;
        }
    }
    Ok(entries)
}

/// Adds an entry unless its name is there already.
fn push(entries: &mut Vec<Entry>, entry: Entry) -> Result<(), ConfigProblem> {
    if entries
        .iter()
        .any(|known| known.group == entry.group && known.name == entry.name)
    {
        return Err(ConfigProblem {
            file: None,
            line: Some(entry.line),
            key: Some(if entry.group.is_empty() {
                entry.name
            } else {
                format!("{}.{}", entry.group, entry.name)
            }),
            message: String::from("stands twice; remove one"),
        });
    }
    entries.push(entry);
    Ok(())
}

/// The line of a property's name, from 1.
fn line_of(text: &str, property: &ast::ObjectProp<'_>) -> usize {
    text.as_bytes()
        .get(..property.range.start)
        .map_or(1, |before| 1 + before.iter().filter(|byte| **byte == b'\n').count())
}

/// The value as the settings see it.
fn raw(value: &ast::Value<'_>) -> Raw {
    match value {
        ast::Value::NullKeyword(_) => Raw::Null,
        ast::Value::BooleanLit(literal) => Raw::Bool(literal.value),
        ast::Value::NumberLit(literal) => Raw::Number(literal.value.to_owned()),
        ast::Value::StringLit(literal) => Raw::Str(literal.value.clone().into_owned()),
        ast::Value::Array(array) => Raw::List(array.elements.iter().map(raw).collect()),
        ast::Value::Object(_) => Raw::Object,
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    /// Variables, a platform, and the path that follows.
    type Case = (&'static [(&'static str, &'static str)], Platform, Option<&'static str>);

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), OsString::from(value)))
            .collect()
    }

    /// Proves CONF-02.
    #[test]
    fn user_file_follows_the_environment() {
        let cases: &[Case] = &[
            (
                &[("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")],
                Platform::Linux,
                Some("/x/cortexkit/synapse.jsonc"),
            ),
            (
                &[("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")],
                Platform::MacOs,
                Some("/x/cortexkit/synapse.jsonc"),
            ),
            (
                &[("XDG_CONFIG_HOME", "/x"), ("APPDATA", "/a")],
                Platform::Windows,
                Some("/x/cortexkit/synapse.jsonc"),
            ),
            (
                &[("HOME", "/h")],
                Platform::Linux,
                Some("/h/.config/cortexkit/synapse.jsonc"),
            ),
            (
                &[("HOME", "/h"), ("XDG_CONFIG_HOME", "")],
                Platform::Linux,
                Some("/h/.config/cortexkit/synapse.jsonc"),
            ),
            (
                &[("HOME", "/h"), ("XDG_CONFIG_HOME", "rel")],
                Platform::Linux,
                Some("/h/.config/cortexkit/synapse.jsonc"),
            ),
            (
                &[("APPDATA", "/a"), ("USERPROFILE", "/u")],
                Platform::Windows,
                Some("/a/cortexkit/synapse.jsonc"),
            ),
            (
                &[("USERPROFILE", "/u"), ("HOME", "/h")],
                Platform::Windows,
                Some("/u/cortexkit/synapse.jsonc"),
            ),
            (&[("APPDATA", "/a")], Platform::Linux, None),
            (&[], Platform::Linux, None),
        ];
        for (pairs, platform, expected) in cases {
            let found = user_file(&environment(pairs), *platform);
            assert_eq!(found, expected.map(PathBuf::from), "{pairs:?} on {platform:?}");
        }
    }

    /// Proves CONF-03.
    #[test]
    fn comments_are_dropped_and_strings_are_kept() {
        let entries =
            parse("// first\n{ /* two\nlines */ \"knob\": \"a // b /* c */\", // end\n \"log\": { \"x\": 1, }, }")
                .unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!(
            (entries[0].value.clone(), entries[0].line),
            (Raw::Str(String::from("a // b /* c */")), 3)
        );
        assert_eq!(
            (entries[1].group.as_str(), entries[1].name.as_str(), entries[1].line),
            ("log", "x", 4)
        );
    }

    #[test]
    fn what_is_not_jsonc_is_refused() {
        let deep = format!("{{\"a\": {}1{}}}", "[".repeat(5_000), "]".repeat(5_000));
        for text in [
            "{",
            "[]",
            "1",
            "{a: 1}",
            "{'a': 1}",
            "{\"a\": 0x1}",
            "{\"a\": 1 \"b\": 2}",
            "{\"a\": NaN}",
            &deep,
        ] {
            assert!(parse(text).is_err(), "{:.40}", text);
        }
        assert_eq!(parse("").unwrap(), Vec::new());
        assert_eq!(parse("\u{feff}{}").unwrap(), Vec::new());
    }

    #[test]
    fn a_repeated_name_is_refused_by_name() {
        let problem = parse("{\"log\": {\"x\": 1},\n \"log\": {\"x\": 2}}").unwrap_err();
        assert_eq!((problem.key.as_deref(), problem.line), (Some("log.x"), Some(2)));
    }

    #[test]
    fn a_pipe_or_a_huge_file_is_refused_before_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("big.jsonc");
        File::create(&path).unwrap().set_len(MAX_CONFIG_BYTES + 1).unwrap();
        for path in [path, dir.path().to_owned()] {
            assert!(
                read(&LayerFile {
                    layer: Layer::User,
                    path,
                    required: false
                })
                .is_err()
            );
        }
        let absent = dir.path().join("none");
        assert_eq!(
            read(&LayerFile {
                layer: Layer::User,
                path: absent.clone(),
                required: false
            })
            .unwrap(),
            None
        );
        assert!(
            read(&LayerFile {
                layer: Layer::Environment,
                path: absent,
                required: true
            })
            .is_err()
        );
    }
}
