//! The settings of the daemon: sampled once at start, from layered JSONC files (CONF-01..16).
//!
//! State: none; [`Config`] is a value. Callers: `serve` at start, the command line's `config show`. Not known here:
//! what the settings do. `schema.rs` declares every setting, `layers.rs` reads the files, `resolve.rs` decides which
//! layer wins, `docs.rs` writes docs/configuration.md.

mod docs;
mod layers;
mod resolve;
mod schema;
mod setting;

use std::fmt;
use std::path::PathBuf;

pub use layers::{CONFIG_DIRECTORY, CONFIG_FILE, CONFIG_PATH_VARIABLE, Layer, LayerFile, layer_files, user_file};
pub use resolve::{Resolved, ShownSetting, load};
pub use schema::{
    Config, ConnectionConfig, FIELDS, GROUPS, InlineConfig, JobsConfig, LogConfig, PluginsConfig, PullConfig,
    RequestConfig, ResidencyConfig, ScheduleConfig, ShutdownConfig,
};
pub use setting::{Bounds, Field, Knob, Scope};

/// What is wrong with a configuration, where, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    /// The file; none for settings that contradict each other across files.
    pub file: Option<PathBuf>,
    /// The line, from 1.
    pub line: Option<usize>,
    /// The setting's full name.
    pub key: Option<String>,
    /// What is wrong and what was expected.
    pub message: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}", file.display())?;
            if let Some(line) = self.line {
                write!(f, " line {line}")?;
            }
            f.write_str(": ")?;
        }
        if let Some(key) = &self.key {
            write!(f, "`{key}` ")?;
        }
        f.write_str(&self.message)
    }
}
