//! The path of every embedding request, once admitted: shape, tokens, engine, vectors (ARCHITECTURE §3).
//!
//! State: none. Callers: `embed_query` and `embed_batch`, which say what was asked. Everything that can be refused is
//! refused before the engine is given anything: an engine only sees calls within its envelope. Not known here: JSON, the
//! order of calls, how an engine is packaged.

use std::sync::Arc;

use synapse_core::engine::EngineKind;
use synapse_core::limits::{InlineCaps, InteractiveBatch};
use synapse_core::schedule::Class;
use synapse_wire::client::{Constraints, EmbedReply, Encoding, ItemOutcome, Provenance, Role, Text, Vector};

use super::admission::{Admitted, Demand, admit};
use super::items::{self, Sorted, wide};
use super::{RequestContext, ServiceError, call, tokenizing};
use crate::lane::work::{EmbedWork, Results};
use crate::lane::{output, profile};
use crate::state::Daemon;
use crate::text::{Encoded, Limits};

/// One request, query or batch.
pub(super) struct Ask {
    /// The model or lane, as written.
    pub model: String,
    /// The texts, with the caller's names for them.
    pub items: Vec<(String, Text)>,
    /// What they are for.
    pub role: Role,
    /// The length asked for.
    pub dimensions: Option<u32>,
    /// Unit length or not, as asked.
    pub normalize: Option<bool>,
    /// Cut or refuse, as asked.
    pub truncate: Option<bool>,
    /// How to write vectors.
    pub encoding: Encoding,
    /// The space of the caller's index.
    pub target_fingerprint: Option<String>,
    /// The fields of API-04.
    pub constraints: Constraints,
    /// `embed.query` is interactive whatever its length.
    pub query: bool,
}

/// Serves a request.
///
/// # Errors
/// What concerns the request as a whole; what concerns one text is in that item's outcome.
pub(super) async fn embed(daemon: &Arc<Daemon>, ctx: &RequestContext, ask: Ask) -> Result<EmbedReply, ServiceError> {
    let texts = ask.items.iter().map(|(_, text)| wide(text.byte_len()));
    inline_caps(daemon).check_text(wide(ask.items.len()), texts.fold(0, u64::saturating_add))?;
    let demand = Demand {
        model: &ask.model,
        kind: EngineKind::Embed,
        constraints: &ask.constraints,
        target_fingerprint: ask.target_fingerprint.as_deref(),
        query: ask.query,
    };
    let admitted = admit(daemon, ctx, demand, |record| {
        profile::served_shape(record, ask.dimensions, ask.normalize)
    })
    .await?;
    let record = &admitted.lane.record;

    let names: Vec<String> = ask.items.iter().map(|(id, _)| id.clone()).collect();
    let limits = Limits {
        max_tokens: admitted.lane.max_tokens(),
        truncate: ask.truncate.unwrap_or(record.truncate_default),
        max_bytes: daemon.config.inline.max_item_bytes,
    };
    let tokenized = tokenize(daemon, ctx, &admitted, ask.items, ask.role, limits).await?;
    let (vectors, items) = run(daemon, ctx, &admitted, names, tokenized, ask.query).await?;

    let vector = |vector: Option<Vec<f32>>| vector.map(|values| Vector::encode(&values, ask.encoding));
    Ok(EmbedReply {
        model: record.id.clone(),
        numeric_profile_id: admitted.numeric_profile_id(),
        table_epoch: admitted.table.epoch(),
        dims: admitted.shape.dims,
        provenance: Provenance {
            by: admitted.served_by(),
            role: ask.role,
            template_id: profile::template_id(record, ask.role),
            normalized: admitted.shape.normalized,
        },
        fingerprint: admitted.fingerprint.clone(),
        real_token_counts: items.iter().map(|item| item.effective_tokens).collect(),
        vectors: vectors.into_iter().map(vector).collect(),
        items,
        equivalent_to: admitted.equivalent_to(),
    })
}

fn inline_caps(daemon: &Daemon) -> InlineCaps {
    let inline = &daemon.config.inline;
    InlineCaps {
        max_items: wide(inline.max_items),
        max_tokens: wide(inline.max_tokens),
        max_text_bytes: wide(inline.max_text_bytes),
    }
}

/// Tokenizes every text, until its caller leaves.
async fn tokenize(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    admitted: &Admitted,
    items: Vec<(String, Text)>,
    role: Role,
    limits: Limits,
) -> Result<Vec<Result<Encoded, ServiceError>>, ServiceError> {
    let loaded = Arc::clone(&admitted.loaded);
    tokenizing::on_the_pool(daemon, ctx, move |caller| {
        let template = (role != Role::None)
            .then(|| loaded.templates.get(role.as_str()))
            .flatten();
        let encode = |text: Text| -> Result<Encoded, ServiceError> {
            let text = text
                .as_str()
                .map_err(|invalid| ServiceError::invalid_text(invalid.to_string()))?;
            Ok(loaded.tokenizer.encode(text, template, limits)?)
        };
        items
            .into_iter()
            .map_while(|(_, text)| (!caller.has_left()).then(|| encode(text)))
            .collect()
    })
    .await
}

/// Gives the tokenized texts to the engine, in quanta, and finishes its rows.
async fn run(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    admitted: &Admitted,
    names: Vec<String>,
    tokenized: Vec<Result<Encoded, ServiceError>>,
    query: bool,
) -> Result<(Vec<Option<Vec<f32>>>, Vec<ItemOutcome>), ServiceError> {
    // The one text of a query is the request.
    if query && let Some(Err(error)) = tokenized.first() {
        return Err(error.clone());
    }
    let Sorted {
        mut outcomes,
        encoded,
        sound,
    } = items::sort(names, tokenized, |text| text);
    let mut vectors = vec![None; outcomes.len()];
    if encoded.is_empty() {
        return Ok((vectors, outcomes));
    }

    let lengths: Vec<u32> = encoded.iter().map(|text| text.effective_tokens).collect();
    let tokens: u64 = lengths.iter().map(|&length| u64::from(length)).sum();
    inline_caps(daemon).check_tokens(tokens)?;
    let interactive = InteractiveBatch {
        max_items: daemon.config.inline.interactive_items,
        max_item_tokens: u32::try_from(daemon.config.inline.interactive_item_tokens).unwrap_or(u32::MAX),
    };
    let class = if query {
        Class::Interactive
    } else {
        interactive.class(&lengths)
    };
    let rows = Results::together(encoded.len(), Vec::new());
    // Ids and segments, the engine's rows, and the vectors made of them.
    let bytes = tokens
        .saturating_mul(8)
        .saturating_add(wide(encoded.len()) * u64::from(admitted.loaded.model.dims) * 8);
    let work = EmbedWork::new(&admitted.loaded, encoded.into(), call::envelope(admitted), rows);
    let rows = call::run(daemon, ctx, admitted, class, bytes, None, work).await?;

    for (position, row) in sound.into_iter().zip(rows) {
        match output::serve(&row, admitted.shape) {
            Ok(vector) => vectors[position] = Some(vector),
            Err(not_finite) => {
                let error = ServiceError::non_finite_output(not_finite.to_string());
                if query {
                    return Err(error);
                }
                let id = std::mem::take(&mut outcomes[position].id);
                outcomes[position] = items::failed(id, &error);
            }
        }
    }
    Ok((vectors, outcomes))
}
