//! Model records, shape envelopes, and the code that resolves them.
//!
//! State: none beyond the values it hands out; [`Catalog`] is built once at start and read afterwards. Callers: the
//! daemon and the cli. The only I/O is reading TOML files of the operator and of staged bundles. Not known here:
//! what is installed, which bundles are loaded, the network, the tokenizer.
//!
//! A *record* says what a model is and where its files can be had, each with its SHA-256. An *envelope row* says that
//! a bundle may serve it within bounds; a row is a lane, `MODEL@ENGINE:VARIANT`. [`layout`] checks a fetched model's
//! own JSON files against the record before any engine sees the model, and [`profile`] derives what is hashed.

#![forbid(unsafe_code)]

mod catalog;
pub mod check;
pub mod file;
pub mod json;
pub mod layout;
mod path;
pub mod profile;
pub mod record;
mod references;
pub mod selector;

pub use catalog::{Catalog, RefusedFile};
pub use check::{Problem, check, check_envelopes};
pub use record::{
    EnvelopeRow, Format, Kind, ModelFile, Origin, Pooling, Record, ReferencesFile, ScoreKind, Source, TokenizerFile,
};
pub use references::CORPUS;
pub use selector::{LanePin, ModelSelector, SelectorError, parse_model_id};
