//! The numeric space of a lane, and the shape in which a request is served from it (FPR-01..07).
//!
//! State: none. Callers: `Lane` makes its profile once, each request resolves its shape. What a lane runs with and
//! what is hashed come from the same record, row and descriptor. Not known here: hashing (`synapse_core`).

use std::collections::BTreeMap;

use synapse_catalog::Record;
use synapse_catalog::profile::{LaneFacts, numeric_profile};
use synapse_core::fingerprint::{NumericProfile, ServedShape, ThreadPolicy};
use synapse_wire::client::Role;

use super::select::Choice;
use crate::text::{Template, TextError};

/// The profile of a lane whose calls use `threads` threads.
#[must_use]
pub fn profile(choice: &Choice<'_>, threads: u32) -> NumericProfile {
    let thread_policy = if choice.support.thread_invariant {
        ThreadPolicy::Invariant
    } else {
        ThreadPolicy::Class(threads.to_string())
    };
    let facts = LaneFacts {
        model_digest: choice.installed.model_digest(),
        tokenizer_digest: choice.installed.tokenizer_digest(),
        engine: choice.descriptor.identity.clone(),
        thread_policy,
    };
    numeric_profile(choice.record, choice.row, facts)
}

/// Why a shape cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeRefused {
    /// The record does not list the length.
    #[error("`dimensions` is {asked}; {model} serves {known}")]
    Dimensions {
        /// As asked.
        asked: u32,
        /// The model.
        model: String,
        /// The lengths it serves.
        known: String,
    },
    /// The model's graph normalises.
    #[error("`normalize: false` cannot be served: {model} normalises in its own graph")]
    AlwaysNormalized {
        /// The model.
        model: String,
    },
}

/// The shape that a request is served in: the record's defaults, and what the request says.
///
/// # Errors
/// [`ShapeRefused`]: the record does not allow it.
pub fn served_shape(
    record: &Record,
    dimensions: Option<u32>,
    normalize: Option<bool>,
) -> Result<ServedShape, ShapeRefused> {
    let dims = dimensions.unwrap_or(record.dims);
    if dims != record.dims && !record.dimensions.contains(&dims) {
        let known: Vec<String> = record
            .dimensions
            .iter()
            .chain([&record.dims])
            .map(ToString::to_string)
            .collect();
        return Err(ShapeRefused::Dimensions {
            asked: dims,
            model: record.id.clone(),
            known: known.join(", "),
        });
    }
    let normalized = normalize.unwrap_or(record.normalize);
    if record.output_normalized && !normalized {
        return Err(ShapeRefused::AlwaysNormalized {
            model: record.id.clone(),
        });
    }
    Ok(ServedShape { dims, normalized })
}

/// The record's templates, parsed.
///
/// # Errors
/// [`TextError::Template`].
pub fn templates(record: &Record) -> Result<BTreeMap<String, Template>, TextError> {
    record
        .templates
        .iter()
        .map(|(role, text)| Ok((role.clone(), Template::parse(text)?)))
        .collect()
}

/// The public name of the template that a role applies, where the model has one: `MODEL/ROLE`.
#[must_use]
pub fn template_id(record: &Record, role: Role) -> Option<String> {
    let named = role != Role::None && record.template(role.as_str()).is_some();
    named.then(|| format!("{}/{}", record.id, role.as_str()))
}
