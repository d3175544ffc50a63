//! The items of a request: the caller's names for them, and how each one fared.
//!
//! State: none. Callers: `embed.batch`, `rerank.score` and the embedding path. What concerns one item is in its outcome,
//! what concerns the request is its error. Not known here: engines, lanes.

use std::collections::HashSet;

use synapse_wire::client::ItemOutcome;

use super::ServiceError;
use crate::text::Encoded;

/// The longest item id and request key, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// At least one item in `field`, each with a name of its own; a request key, where there is one, that is a name too.
///
/// # Errors
/// `invalid_request` names the field.
pub(super) fn check_names<'a>(
    field: &str,
    ids: impl ExactSizeIterator<Item = &'a str>,
    request_key: Option<&str>,
) -> Result<(), ServiceError> {
    let wrong = |field: &str, message: String| {
        Err(ServiceError::invalid_params(message).detail(|detail| detail.field = Some(field.to_owned())))
    };
    if ids.len() == 0 {
        return wrong(field, format!("`{field}` is empty; expected at least 1"));
    }
    if request_key.is_some_and(|key| key.is_empty() || key.len() > MAX_NAME_BYTES) {
        return wrong(
            "request_key",
            format!("`request_key` must have 1 to {MAX_NAME_BYTES} bytes"),
        );
    }
    let mut seen = HashSet::new();
    for (position, id) in ids.enumerate() {
        if id.is_empty() || id.len() > MAX_NAME_BYTES {
            return wrong(
                field,
                format!("`{field}[{position}].id` must have 1 to {MAX_NAME_BYTES} bytes"),
            );
        }
        if !seen.insert(id) {
            return wrong(
                field,
                format!("the item id {id:?} stands twice; each item needs one of its own"),
            );
        }
    }
    Ok(())
}

/// A request's items after tokenization.
pub(super) struct Sorted<E> {
    /// How each item fared so far, in the request's order.
    pub outcomes: Vec<ItemOutcome>,
    /// What the engine will see: the sound items only, in the request's order.
    pub encoded: Vec<E>,
    /// `sound[n]` is the position in the request of the engine's n-th item.
    pub sound: Vec<usize>,
}

/// Tells the items that the engine will see from those that failed already.
pub(super) fn sort<E>(
    names: Vec<String>,
    tokenized: Vec<Result<E, ServiceError>>,
    encoded: impl Fn(&E) -> &Encoded,
) -> Sorted<E> {
    let mut sorted = Sorted {
        outcomes: Vec::with_capacity(names.len()),
        encoded: Vec::new(),
        sound: Vec::new(),
    };
    for (position, (id, outcome)) in names.into_iter().zip(tokenized).enumerate() {
        sorted.outcomes.push(match outcome {
            Ok(item) => {
                let tokens = encoded(&item);
                let outcome = ItemOutcome {
                    id,
                    submitted_tokens: tokens.submitted_tokens,
                    effective_tokens: tokens.effective_tokens,
                    truncated: tokens.truncated,
                    error: None,
                };
                sorted.sound.push(position);
                sorted.encoded.push(item);
                outcome
            }
            Err(error) => failed(id, &error),
        });
    }
    sorted
}

/// An item that has no result.
pub(super) fn failed(id: String, error: &ServiceError) -> ItemOutcome {
    ItemOutcome {
        id,
        submitted_tokens: 0,
        effective_tokens: 0,
        truncated: false,
        error: Some(error.failure()),
    }
}

/// A length as a number of the wire.
pub(super) fn wide(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(ids: &[&str], key: Option<&str>) -> Option<String> {
        check_names("items", ids.iter().copied(), key)
            .err()
            .map(|error| error.message().to_owned())
    }

    #[test]
    fn names_are_checked_before_anything_else() {
        let long = "x".repeat(257);
        let fits = "x".repeat(256);
        assert_eq!(refusal(&["a", "b"], None), None);
        assert_eq!(refusal(&[&fits], Some(&fits)), None);
        assert!(refusal(&[], None).unwrap().contains("at least 1"));
        assert!(refusal(&["a", "b", "a"], None).unwrap().contains("\"a\""));
        assert!(refusal(&["a", ""], None).unwrap().contains("items[1].id"));
        assert!(refusal(&[&long], None).unwrap().contains("items[0].id"));
        assert!(refusal(&["a"], Some("")).unwrap().contains("request_key"));
        assert!(refusal(&["a"], Some(&long)).unwrap().contains("request_key"));
    }
}
