//! The forms in which the daemon keeps values of the protocol in its store.
//!
//! No state. Callers: the types that are kept, which get `to_text` and `from_text`, or `to_bytes` and `from_bytes`. Equal
//! values have equal forms. Not known here: where a form is kept.

/// A stored form that this version cannot read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stored {what} cannot be read: {detail}")]
pub struct StoredError {
    /// What it should have been.
    pub what: &'static str,
    /// Where it is wrong.
    pub detail: String,
}

pub(super) fn unreadable(what: &'static str) -> impl Fn(serde_json::Error) -> StoredError {
    move |error| StoredError {
        what,
        detail: error.to_string(),
    }
}

/// Values that the store keeps as texts.
macro_rules! kept_as_text {
    ($($name:ident = $what:literal),*) => {$(
        impl $name {
            /// The form that is kept.
            #[must_use]
            pub fn to_text(&self) -> String {
                serde_json::to_string(self).unwrap_or_default()
            }

            /// Reads [`Self::to_text`].
            ///
            /// # Errors
            /// [`StoredError`](crate::client::StoredError).
            pub fn from_text(text: &str) -> Result<Self, $crate::client::StoredError> {
                serde_json::from_str(text).map_err($crate::client::kept::unreadable($what))
            }
        }
    )*};
}

/// Values that the store keeps as bytes.
macro_rules! kept_as_bytes {
    ($($name:ident = $what:literal),*) => {$(
        impl $name {
            /// The form that is kept.
            #[must_use]
            pub fn to_bytes(&self) -> Vec<u8> {
                serde_json::to_vec(self).unwrap_or_default()
            }

            /// Reads [`Self::to_bytes`].
            ///
            /// # Errors
            /// [`StoredError`](crate::client::StoredError).
            pub fn from_bytes(bytes: &[u8]) -> Result<Self, $crate::client::StoredError> {
                serde_json::from_slice(bytes).map_err($crate::client::kept::unreadable($what))
            }
        }
    )*};
}

pub(super) use {kept_as_bytes, kept_as_text};
