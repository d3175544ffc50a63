//! `rerank.score`: one raw score for each candidate, answered inline; more than the caps take become a job, if the request
//! has a key (API-11, API-15).
//!
//! State: none. Callers: `rpc/dispatch.rs`. Scores go back as the engine gave them, in the request's order; what they mean
//! is the record's `score_kind`. Only documents are cut: a query that leaves no room for one fails the request, anything
//! else that concerns one candidate fails that candidate. Not known here: JSON, how an engine is packaged.

use std::sync::Arc;

use synapse_catalog::{Record, ScoreKind};
use synapse_core::engine::EngineKind;
use synapse_core::fingerprint::ServedShape;
use synapse_core::limits::{InteractiveBatch, RerankCaps};
use synapse_wire::client::{
    self as wire, BatchItem, Constraints, ItemOutcome, JobAccepted, RerankReply, RerankScoreParams, RerankScoreResult,
    Text,
};

use super::admission::{Admitted, Demand, admit};
use super::items::{self, Sorted, wide};
use super::{RequestContext, ServiceError, call, job_input, tokenizing};
use crate::lane::profile::{self, ShapeRefused};
use crate::lane::work::{RerankWork, Results};
use crate::state::Daemon;
use crate::text::{EncodedPair, Limits, TextError};

/// Scores the candidates.
///
/// # Errors
/// Every refusal of the request, its lane or its query; what concerns one candidate is in its item.
pub async fn run(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    params: RerankScoreParams,
) -> Result<RerankScoreResult, ServiceError> {
    let ids = params.candidates.iter().map(|candidate| candidate.id.as_str());
    items::check_names("candidates", ids, params.request_key.as_deref())?;
    let query = query(daemon, &params.query)?;
    let keyed = params.request_key.is_some().then(|| (params.clone(), query.clone()));
    match (inline(daemon, ctx, params, query).await, keyed) {
        (Err(error), Some((request, query))) if job_input::is_over_a_cap(&error) => {
            let job = job_input::accept_rerank(daemon, ctx, request, query).await?;
            Ok(RerankScoreResult::Accepted(JobAccepted { job_id: job.job_id }))
        }
        (outcome, _) => Ok(outcome?.into()),
    }
}

/// What a rerank asks of a lane.
pub(super) const fn demand<'a>(model: &'a str, constraints: &'a Constraints) -> Demand<'a> {
    Demand {
        model,
        kind: EngineKind::Rerank,
        constraints,
        target_fingerprint: None,
        query: false,
    }
}

/// Scores have one shape, which the record's defaults say.
pub(super) fn shape(record: &Record) -> Result<ServedShape, ShapeRefused> {
    profile::served_shape(record, None, None)
}

/// Scores what is within the caps.
async fn inline(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    params: RerankScoreParams,
    query: String,
) -> Result<RerankReply, ServiceError> {
    let documents = params.candidates.iter().map(|candidate| candidate.text.byte_len());
    let bytes = documents.fold(wide(query.len()), |sum, next| sum.saturating_add(wide(next)));
    caps(daemon).check_text(wide(params.candidates.len()), bytes)?;
    let constraints = params.constraints();
    let admitted = admit(daemon, ctx, demand(&params.model, &constraints), shape).await?;
    let record = &admitted.lane.record;

    let names: Vec<String> = params.candidates.iter().map(|candidate| candidate.id.clone()).collect();
    let limits = Limits {
        max_tokens: admitted.lane.max_tokens(),
        truncate: params.truncate.unwrap_or(record.truncate_default),
        max_bytes: daemon.config.inline.max_item_bytes,
    };
    let tokenized = tokenize(daemon, ctx, &admitted, query, params.candidates, limits).await?;
    let (scores, items) = score(daemon, ctx, &admitted, names, tokenized).await?;
    Ok(RerankReply {
        model: record.id.clone(),
        fingerprint: admitted.fingerprint.clone(),
        numeric_profile_id: admitted.numeric_profile_id(),
        table_epoch: admitted.table.epoch(),
        score_kind: score_kind(record.score_kind),
        scores,
        real_token_counts: items.iter().map(|item| item.effective_tokens).collect(),
        items,
        provenance: admitted.served_by(),
    })
}

fn caps(daemon: &Daemon) -> RerankCaps {
    let (rerank, inline) = (&daemon.config.rerank, &daemon.config.inline);
    RerankCaps {
        max_candidates: wide(rerank.max_candidates),
        max_tokens: wide(rerank.max_tokens),
        max_text_bytes: wide(inline.max_text_bytes),
    }
}

/// The query, which is the request's: not cut, and not too large to be tokenized.
fn query(daemon: &Daemon, text: &Text) -> Result<String, ServiceError> {
    let field = |error: ServiceError| error.detail(|detail| detail.field = Some("query".to_owned()));
    let query = text
        .as_str()
        .map_err(|invalid| field(ServiceError::invalid_text(invalid.to_string())))?;
    let (found, limit) = (query.len(), daemon.config.inline.max_item_bytes);
    if found > limit {
        let (found, limit) = (wide(found), wide(limit));
        return Err(field(TextError::TooManyBytes { found, limit }.into()));
    }
    Ok(query.to_owned())
}

/// Tokenizes every pair, until its caller leaves or the query turns out to be too long.
async fn tokenize(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    admitted: &Admitted,
    query: String,
    candidates: Vec<BatchItem>,
    limits: Limits,
) -> Result<Vec<Result<EncodedPair, ServiceError>>, ServiceError> {
    let loaded = Arc::clone(&admitted.loaded);
    tokenizing::on_the_pool(daemon, ctx, move |caller| {
        let mut pairs = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            if caller.has_left() {
                break;
            }
            pairs.push(match candidate.text.as_str() {
                Err(invalid) => Err(ServiceError::invalid_text(invalid.to_string())),
                Ok(document) => match loaded.tokenizer.encode_pair(&query, document, limits) {
                    // It would be the same for every candidate.
                    Err(error @ (TextError::QueryTooLong { .. } | TextError::NoPairs)) => return Err(error.into()),
                    encoded => encoded.map_err(ServiceError::from),
                },
            });
        }
        Ok(pairs)
    })
    .await?
}

/// Gives the pairs to the engine, in quanta, and checks its scores.
async fn score(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    admitted: &Admitted,
    names: Vec<String>,
    tokenized: Vec<Result<EncodedPair, ServiceError>>,
) -> Result<(Vec<Option<f32>>, Vec<ItemOutcome>), ServiceError> {
    let Sorted {
        mut outcomes,
        encoded,
        sound,
    } = items::sort(names, tokenized, |pair: &EncodedPair| &pair.encoded);
    let mut scores = vec![None; outcomes.len()];
    if encoded.is_empty() {
        return Ok((scores, outcomes));
    }

    let lengths: Vec<u32> = encoded.iter().map(|pair| pair.encoded.effective_tokens).collect();
    let tokens: u64 = lengths.iter().map(|&length| u64::from(length)).sum();
    caps(daemon).check_tokens(tokens)?;
    // Small is few, and each within what counts as interactive in a batch of texts too (SCHED-02).
    let small = InteractiveBatch {
        max_items: daemon.config.rerank.interactive_candidates,
        max_item_tokens: u32::try_from(daemon.config.inline.interactive_item_tokens).unwrap_or(u32::MAX),
    };
    let class = small.class(&lengths);
    // A score that is not written is not a number, which no finite check lets pass.
    let scored = Results::together(encoded.len(), f32::NAN);
    // Ids and segments, the documents' starts, and a score a pair.
    let bytes = tokens.saturating_mul(8).saturating_add(wide(encoded.len()) * 8);
    let work = RerankWork::new(&admitted.loaded, encoded.into(), call::envelope(admitted), scored);
    let raw = call::run(daemon, ctx, admitted, class, bytes, None, work).await?;

    for (position, score) in sound.into_iter().zip(raw) {
        match finite(score) {
            Ok(score) => scores[position] = Some(score),
            Err(error) => {
                let id = std::mem::take(&mut outcomes[position].id);
                outcomes[position] = items::failed(id, &error);
            }
        }
    }
    Ok((scores, outcomes))
}

/// The engine's score, if it is one.
pub(super) fn finite(score: f32) -> Result<f32, ServiceError> {
    if score.is_finite() {
        return Ok(score);
    }
    let message = "the engine's score is not finite; the candidate was not scored";
    Err(ServiceError::non_finite_output(message))
}

/// What the scores mean, on the wire. A record of a reranker always says.
pub(super) const fn score_kind(kind: Option<ScoreKind>) -> wire::ScoreKind {
    match kind {
        Some(ScoreKind::Logit) => wire::ScoreKind::Logit,
        Some(ScoreKind::LogOdds) => wire::ScoreKind::LogOdds,
        Some(ScoreKind::Probability) => wire::ScoreKind::Probability,
        None => wire::ScoreKind::Unknown,
    }
}
