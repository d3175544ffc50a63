//! `embed.batch`: up to 64 texts, answered inline (API-11).
//!
//! State: none. The work is `embedding.rs`; each text has its own outcome.

use std::collections::HashSet;
use std::sync::Arc;

use synapse_wire::client::{BatchItem, EmbedBatchParams, EmbedBatchResult, Role};

use super::embedding::{Ask, embed};
use super::{RequestContext, ServiceError};
use crate::state::Daemon;

/// The longest item id and request key, in bytes.
const MAX_NAME_BYTES: usize = 256;

/// Embeds a batch.
///
/// # Errors
/// Every refusal of the request or its lane; what concerns one text is in its item.
pub async fn run(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    params: EmbedBatchParams,
) -> Result<EmbedBatchResult, ServiceError> {
    check_names(&params.items, params.request_key.as_deref())?;
    let ask = Ask {
        constraints: params.constraints(),
        model: params.model,
        items: params.items.into_iter().map(|item| (item.id, item.text)).collect(),
        role: params.role.unwrap_or(Role::Document),
        dimensions: params.dimensions,
        normalize: params.normalize,
        truncate: params.truncate,
        encoding: params.encoding.unwrap_or_default(),
        target_fingerprint: params.target_fingerprint,
        query: false,
    };
    Ok(embed(daemon, ctx, ask).await?.into())
}

/// At least one item, each with a name of its own.
fn check_names(items: &[BatchItem], request_key: Option<&str>) -> Result<(), ServiceError> {
    let wrong = |field: &str, message: String| {
        Err(ServiceError::invalid_params(message).detail(|detail| detail.field = Some(field.to_owned())))
    };
    if items.is_empty() {
        return wrong("items", "`items` is empty; expected at least 1".to_owned());
    }
    if request_key.is_some_and(|key| key.is_empty() || key.len() > MAX_NAME_BYTES) {
        return wrong(
            "request_key",
            format!("`request_key` must have 1 to {MAX_NAME_BYTES} bytes"),
        );
    }
    let mut seen = HashSet::new();
    for (position, item) in items.iter().enumerate() {
        if item.id.is_empty() || item.id.len() > MAX_NAME_BYTES {
            return wrong(
                "items",
                format!("`items[{position}].id` must have 1 to {MAX_NAME_BYTES} bytes"),
            );
        }
        if !seen.insert(item.id.as_str()) {
            return wrong(
                "items",
                format!("the item id {:?} stands twice; each item needs one of its own", item.id),
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(ids: &[&str], key: Option<&str>) -> Option<String> {
        let items: Vec<BatchItem> = ids.iter().map(|id| BatchItem::new(*id, "text")).collect();
        check_names(&items, key).err().map(|error| error.message().to_owned())
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
