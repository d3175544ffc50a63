//! `text.tokenize`: the ids that an embedding of the same text would give to the engine (DECISIONS, tokenize op).
//!
//! State: none. The model needs to be installed, not loaded; no engine is asked. The limit is the lane's where one can
//! serve the model, so that counts equal those of an embedding, and the record's otherwise.

use std::sync::Arc;

use synapse_catalog::{Catalog, EnvelopeRow, ModelSelector, Record, parse_model_id};
use synapse_wire::client::{Role, TokenizeParams, TokenizeResult};

use super::{RequestContext, ServiceError, tokenizing};
use crate::lane::profile;
use crate::lane::select::{NoLane, installed_form, select};
use crate::models::Installed;
use crate::state::Daemon;
use crate::text::Limits;

/// Tokenizes one text.
///
/// # Errors
/// The model is unknown or not installed, or the text cannot be tokenized within the limits.
pub async fn run(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    params: TokenizeParams,
) -> Result<TokenizeResult, ServiceError> {
    let selector = parse_model_id(&params.model)?;
    let catalog = daemon.catalog();
    let record = catalog.record(&selector.model).ok_or_else(|| NoLane::UnknownModel {
        model: selector.model.clone(),
    })?;
    let installed = match find(&catalog, &selector, &daemon.installed()) {
        Some(installed) => installed,
        // What is installed may have changed since it was last read.
        None => {
            daemon.refresh_installed().await?;
            find(&catalog, &selector, &daemon.installed()).ok_or_else(|| NoLane::NotInstalled {
                model: selector.model.clone(),
            })?
        }
    };
    let text = params
        .text
        .into_string()
        .map_err(|invalid| ServiceError::invalid_text(invalid.to_string()))?;
    let role = params.role.unwrap_or(Role::Query);
    let template = if role == Role::None {
        None
    } else {
        profile::templates(record)?.remove(role.as_str())
    };
    let limits = Limits {
        max_tokens: max_tokens(daemon, &catalog, &selector, record),
        truncate: params.truncate.unwrap_or(record.truncate_default),
        max_bytes: daemon.config.inline.max_item_bytes,
    };

    let models = daemon.models.clone();
    let (digest, encoded) = tokenizing::on_the_pool(daemon, ctx, move |_| {
        let tokenizer = models.tokenizer(&installed)?;
        let encoded = tokenizer.encode(&text, template.as_ref(), limits)?;
        Ok::<_, ServiceError>((tokenizer.digest(), encoded))
    })
    .await??;
    Ok(TokenizeResult {
        model: record.id.clone(),
        tokenizer_digest: digest.to_string(),
        role,
        template_id: profile::template_id(record, role),
        count: encoded.effective_tokens,
        submitted_tokens: encoded.submitted_tokens,
        effective_tokens: encoded.effective_tokens,
        truncated: encoded.truncated,
        offsets: encoded
            .offsets
            .iter()
            .map(|place| place.map_or([0, 0], |(begin, end)| [begin, end]))
            .collect(),
        ids: encoded.ids,
    })
}

/// The installed form that the selector stands for: of the named lane's row, or any of the model's.
fn find(catalog: &Catalog, selector: &ModelSelector, installed: &[Installed]) -> Option<Installed> {
    let rows: Vec<&EnvelopeRow> = catalog.lanes(&selector.model).into_iter().collect();
    let of_rows = rows
        .into_iter()
        .filter(|row| selector.takes(row))
        .find_map(|row| installed_form(row, installed));
    of_rows
        .or_else(|| installed.iter().find(|form| form.record().model == selector.model))
        .cloned()
}

/// What an embedding would cut at.
fn max_tokens(daemon: &Daemon, catalog: &Catalog, selector: &ModelSelector, record: &Record) -> u32 {
    let bundles = daemon.plugins.bundles();
    match select(catalog, selector, None, &bundles, &daemon.installed()) {
        Ok(choice) => daemon.lanes.lane(&choice, daemon.threads_per_call).max_tokens(),
        Err(_) => record.max_tokens,
    }
}
