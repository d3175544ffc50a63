//! How much a certificate says.

use std::fmt;
use std::str::FromStr;

/// What a certificate rests on (DECISIONS, certificates). Ordered: a larger level includes what a smaller one says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// No independent vectors exist: shape invariance, query ≡ batch and repeatability were measured.
    Consistent,
    /// Measured against vectors of an independent implementation.
    Reference,
}

impl Level {
    /// The name in the database, in configuration and on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Consistent => "consistent",
            Self::Reference => "reference",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Text that names no level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected `reference` or `consistent`, found {0:?}")]
pub struct NotALevel(pub String);

impl FromStr for Level {
    type Err = NotALevel;

    fn from_str(text: &str) -> Result<Self, NotALevel> {
        [Self::Consistent, Self::Reference]
            .into_iter()
            .find(|level| level.as_str() == text)
            .ok_or_else(|| NotALevel(text.to_owned()))
    }
}
