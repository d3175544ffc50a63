//! Model ids as clients write them: `MODEL`, `MODEL@ENGINE`, `MODEL@ENGINE:VARIANT`.
//!
//! State: none. Callers: every operation that takes a model. A pinned lane never falls back to another (DECISIONS).

use std::fmt;

use crate::record::EnvelopeRow;

/// The longest id that is looked at, in bytes.
pub const MAX_ID_BYTES: usize = 256;

/// A model, and the lane that is asked for, if one is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelSelector {
    /// The record's id.
    pub model: String,
    /// The lane.
    pub pin: Option<LanePin>,
}

/// A pinned lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LanePin {
    /// The bundle's id.
    pub engine: String,
    /// The row's variant; `None` leaves the choice among the engine's lanes.
    pub variant: Option<String>,
}

/// Text that is no model id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// Longer than [`MAX_ID_BYTES`].
    #[error("the model id has {0} bytes, expected at most {MAX_ID_BYTES}")]
    TooLong(usize),
    /// A part is empty or has a character outside `a-z 0-9 . _ -`.
    #[error("{part} in the model id {id:?}: expected MODEL, MODEL@ENGINE or MODEL@ENGINE:VARIANT in a-z 0-9 . _ -")]
    Part {
        /// What is wrong, for example `empty engine`.
        part: &'static str,
        /// The whole id.
        id: String,
    },
}

/// Reads a model id.
///
/// # Errors
/// [`SelectorError`] names the part.
pub fn parse_model_id(text: &str) -> Result<ModelSelector, SelectorError> {
    if text.len() > MAX_ID_BYTES {
        return Err(SelectorError::TooLong(text.len()));
    }
    let wrong = |part| SelectorError::Part {
        part,
        id: text.to_owned(),
    };
    let (model, rest) = match text.split_once('@') {
        Some((model, rest)) => (model, Some(rest)),
        None => (text, None),
    };
    if !is_model_id(model) {
        return Err(wrong("bad model"));
    }
    let pin = match rest {
        None => None,
        Some(rest) => {
            let (engine, variant) = match rest.split_once(':') {
                Some((engine, variant)) => (engine, Some(variant)),
                None => (rest, None),
            };
            if !is_name(engine) {
                return Err(wrong("bad engine"));
            }
            if variant.is_some_and(|variant| !is_name(variant)) {
                return Err(wrong("bad variant"));
            }
            Some(LanePin {
                engine: engine.to_owned(),
                variant: variant.map(str::to_owned),
            })
        }
    };
    Ok(ModelSelector {
        model: model.to_owned(),
        pin,
    })
}

impl ModelSelector {
    /// Whether a row is one of the lanes asked for.
    #[must_use]
    pub fn takes(&self, row: &EnvelopeRow) -> bool {
        row.model == self.model
            && self.pin.as_ref().is_none_or(|pin| {
                pin.engine == row.engine && pin.variant.as_ref().is_none_or(|variant| *variant == row.variant)
            })
    }
}

impl fmt::Display for ModelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.model)?;
        if let Some(pin) = &self.pin {
            write!(f, "@{}", pin.engine)?;
            if let Some(variant) = &pin.variant {
                write!(f, ":{variant}")?;
            }
        }
        Ok(())
    }
}

/// A record's id: a name, or a bundle's id, `/` and a name.
pub(crate) fn is_model_id(text: &str) -> bool {
    match text.split_once('/') {
        Some((bundle, name)) => is_name(bundle) && is_name(name),
        None => is_name(text),
    }
}

/// 1 to 64 characters of `a-z 0-9 . _ -`, the first a letter or a digit.
pub(crate) fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= 64
        && bytes
            .first()
            .is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        && bytes
            .iter()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-'))
}
