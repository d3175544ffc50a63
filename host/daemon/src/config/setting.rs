//! What one setting is: its type, its bounds, who may set it, and how it is read and shown.
//!
//! State: none. Callers: the declaration in `schema.rs` makes one [`Field`] per setting; `resolve.rs` and `docs.rs`
//! walk them. Not known here: files and layers.

use std::path::PathBuf;

use serde_json::Value;
use synapse_core::route::{self, Level, NotALevel};

use super::schema::Config;

/// Which files may set a field (OQ-14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Any layer, the project's file included.
    Project,
    /// Only the file named by `SYNAPSE_CONFIG_PATH` and the user's file: gates, and what concerns the whole machine.
    Machine,
}

/// The inclusive range of an integer setting; ignored by other types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The smallest value allowed.
    pub min: u64,
    /// The largest value allowed.
    pub max: u64,
}

/// A value as it stands in a file, before its setting is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Raw {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as spelled.
    Number(String),
    /// A string.
    Str(String),
    /// An array.
    List(Vec<Raw>),
    /// An object where no group stands.
    Object,
}

impl Raw {
    /// The value's kind in words, for messages.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Str(_) => "a string",
            Self::List(_) => "a list",
            Self::Object => "an object",
        }
    }
}

/// One setting: everything the resolver and the documentation need.
pub struct Field {
    /// The group's name, empty for a top-level setting.
    pub group: &'static str,
    /// The name inside its group.
    pub name: &'static str,
    /// What it does, its unit, its requirement.
    pub doc: &'static str,
    /// Which files may set it.
    pub scope: Scope,
    /// The type in words.
    pub kind: &'static str,
    /// The range of an integer.
    pub bounds: Option<Bounds>,
    /// Writes the value of a file into the configuration.
    pub set: fn(&mut Config, &Raw) -> Result<(), String>,
    /// Reads the resolved value.
    pub get: fn(&Config) -> Value,
}

impl Field {
    /// The full name, for example `connection.max_in_flight`.
    #[must_use]
    pub fn key(&self) -> String {
        if self.group.is_empty() {
            self.name.to_owned()
        } else {
            format!("{}.{}", self.group, self.name)
        }
    }
}

/// A type that a setting can have.
pub trait Setting: Sized {
    /// The type in words.
    const KIND: &'static str;

    /// Reads a value of a file. The message says what was expected.
    ///
    /// # Errors
    /// The value has another type or lies outside `bounds`.
    fn read(raw: &Raw, bounds: Option<Bounds>) -> Result<Self, String>;

    /// The value for `config show`.
    fn show(&self) -> Value;
}

/// Words for a value of the wrong type.
fn expected(kind: &str, raw: &Raw) -> String {
    format!("expected {kind}, found {}", raw.kind())
}

impl Setting for bool {
    const KIND: &'static str = "boolean";

    fn read(raw: &Raw, _: Option<Bounds>) -> Result<Self, String> {
        match raw {
            Raw::Bool(value) => Ok(*value),
            other => Err(expected("true or false", other)),
        }
    }

    fn show(&self) -> Value {
        Value::Bool(*self)
    }
}

impl Setting for u64 {
    const KIND: &'static str = "integer";

    fn read(raw: &Raw, bounds: Option<Bounds>) -> Result<Self, String> {
        let bounds = bounds.unwrap_or(Bounds { min: 0, max: u64::MAX });
        let wanted = || format!("an integer from {} to {}", bounds.min, bounds.max);
        match raw {
            Raw::Number(spelled) => match spelled.parse::<Self>() {
                Ok(value) if (bounds.min..=bounds.max).contains(&value) => Ok(value),
                _ => Err(format!("expected {}, found {spelled}", wanted())),
            },
            other => Err(expected(&wanted(), other)),
        }
    }

    fn show(&self) -> Value {
        Value::from(*self)
    }
}

impl Setting for u32 {
    const KIND: &'static str = "integer";

    fn read(raw: &Raw, bounds: Option<Bounds>) -> Result<Self, String> {
        let bounds = bounds.unwrap_or(Bounds {
            min: 0,
            max: u64::from(Self::MAX),
        });
        let bounds = Bounds {
            min: bounds.min,
            max: bounds.max.min(u64::from(Self::MAX)),
        };
        u64::read(raw, Some(bounds)).and_then(|value| Self::try_from(value).map_err(|error| error.to_string()))
    }

    fn show(&self) -> Value {
        Value::from(*self)
    }
}

impl Setting for usize {
    const KIND: &'static str = "integer";

    fn read(raw: &Raw, bounds: Option<Bounds>) -> Result<Self, String> {
        u64::read(raw, bounds).and_then(|value| Self::try_from(value).map_err(|error| error.to_string()))
    }

    fn show(&self) -> Value {
        Value::from(*self)
    }
}

/// A list setting holds at most this many entries.
const MAX_LIST: usize = 256;

impl Setting for Vec<String> {
    const KIND: &'static str = "list of strings";

    fn read(raw: &Raw, _: Option<Bounds>) -> Result<Self, String> {
        let Raw::List(entries) = raw else {
            return Err(expected("a list of strings", raw));
        };
        if entries.len() > MAX_LIST {
            return Err(format!("expected at most {MAX_LIST} entries, found {}", entries.len()));
        }
        let mut list = Self::with_capacity(entries.len());
        for entry in entries {
            match entry {
                Raw::Str(text) if !text.is_empty() => list.push(text.clone()),
                Raw::Str(_) => return Err(String::from("expected no empty string in the list")),
                other => return Err(expected("only strings in the list", other)),
            }
        }
        Ok(list)
    }

    fn show(&self) -> Value {
        Value::from(self.clone())
    }
}

impl Setting for Vec<PathBuf> {
    const KIND: &'static str = "list of absolute paths";

    fn read(raw: &Raw, bounds: Option<Bounds>) -> Result<Self, String> {
        let list = Vec::<String>::read(raw, bounds)?;
        list.into_iter()
            .map(|text| {
                let path = PathBuf::from(&text);
                if path.is_absolute() {
                    Ok(path)
                } else {
                    Err(format!("expected an absolute path, found {text:?}"))
                }
            })
            .collect()
    }

    fn show(&self) -> Value {
        Value::from(
            self.iter()
                .map(|path| path.to_string_lossy().into_owned())
                .collect::<Vec<_>>(),
        )
    }
}

/// How much of the machine Synapse may use (CONF-05, OQ-15).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Knob {
    /// All physical cores.
    Performance,
    /// Half of the cores, at least one.
    #[default]
    Balanced,
    /// One or two threads.
    Quiet,
}

impl Knob {
    /// The spelling in files and replies.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Performance => "performance",
            Self::Balanced => "balanced",
            Self::Quiet => "quiet",
        }
    }

    /// The compute threads that this knob allows on a machine with `cores` cores (PLAT-03; x86 and Apple alike).
    #[must_use]
    pub const fn threads(self, cores: usize) -> usize {
        let cores = if cores == 0 { 1 } else { cores };
        match self {
            Self::Performance => cores,
            Self::Balanced => cores.div_ceil(2),
            Self::Quiet => {
                if cores >= 8 {
                    2
                } else {
                    1
                }
            }
        }
    }
}

impl Setting for Level {
    const KIND: &'static str = "`reference` or `consistent`";

    fn read(raw: &Raw, _: Option<Bounds>) -> Result<Self, String> {
        match raw {
            Raw::Str(text) => text.parse().map_err(|error: NotALevel| error.to_string()),
            other => Err(expected("reference or consistent", other)),
        }
    }

    fn show(&self) -> Value {
        Value::from(self.as_str())
    }
}

impl From<Knob> for route::Knob {
    fn from(knob: Knob) -> Self {
        match knob {
            Knob::Performance => Self::Performance,
            Knob::Balanced => Self::Balanced,
            Knob::Quiet => Self::Quiet,
        }
    }
}

impl Setting for Knob {
    const KIND: &'static str = "`performance`, `balanced` or `quiet`";

    fn read(raw: &Raw, _: Option<Bounds>) -> Result<Self, String> {
        match raw {
            Raw::Str(text) => match text.as_str() {
                "performance" => Ok(Self::Performance),
                "balanced" => Ok(Self::Balanced),
                "quiet" => Ok(Self::Quiet),
                other => Err(format!("expected performance, balanced or quiet, found {other:?}")),
            },
            other => Err(expected("performance, balanced or quiet", other)),
        }
    }

    fn show(&self) -> Value {
        Value::from(self.as_str())
    }
}
