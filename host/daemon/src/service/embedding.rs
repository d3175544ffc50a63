//! The one path of every embedding request: constraints, lane, shape, tokens, engine, vectors (ARCHITECTURE §3).
//!
//! State: none. Callers: `embed_query` and `embed_batch`, which say what was asked. Everything that can be refused is
//! refused before the engine is given anything, and a refusal changes nothing (API-05): an engine only sees calls
//! within its envelope. Not known here: JSON, the order of calls, how an engine is packaged.

use std::sync::Arc;
use std::time::Instant;

use synapse_catalog::parse_model_id;
use synapse_core::fingerprint::ServedShape;
use synapse_core::limits::{InlineCaps, InteractiveBatch};
use synapse_core::schedule::Class;
use synapse_wire::client::{
    Constraints, EmbedReply, Encoding, ItemOutcome, Placement, Provenance, Role, ServedBy, Text, Vector,
};

use super::{RequestContext, ServiceError};
use crate::lane::in_process::{Batch, EmbedWork, Loaded};
use crate::lane::select::{NoLane, select};
use crate::lane::{Lane, Standing, load, output, profile};
use crate::schedule::{CallError, CallSpec, QuantumBounds, cut};
use crate::state::Daemon;
use crate::text::{Encoded, Limits};

/// The epoch of the alias table: there is none yet.
const TABLE_EPOCH: u64 = 0;
/// The devices that the engines of this process run on.
const DEVICE: &str = "cpu";
/// Advice to a caller whose model is being loaded, in milliseconds.
const LOADING_RETRY_MS: u64 = 500;
/// Advice to a caller while bundles are being described, in milliseconds.
const SCANNING_RETRY_MS: u64 = 250;

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

/// A text after tokenization: what the engine will see, or why it will not.
type Tokenized = Result<Encoded, ServiceError>;

/// Serves a request.
///
/// # Errors
/// What concerns the request as a whole; what concerns one text is in that item's outcome.
pub(super) async fn embed(daemon: &Arc<Daemon>, ctx: &RequestContext, ask: Ask) -> Result<EmbedReply, ServiceError> {
    let texts = ask.items.iter().map(|(_, text)| wide(text.byte_len()));
    inline_caps(daemon).check_text(wide(ask.items.len()), texts.fold(0, u64::saturating_add))?;
    check_constraints(&ask.constraints)?;
    let lane = find_lane(daemon, ctx, &ask).await?;
    let shape = profile::served_shape(&lane.record, ask.dimensions, ask.normalize)?;
    let fingerprint = lane.fingerprint(shape).to_string();
    check_fingerprint(&ask, &fingerprint)?;
    let loaded = ready(daemon, &lane)?;
    lane.touch();

    let names: Vec<String> = ask.items.iter().map(|(id, _)| id.clone()).collect();
    let truncate = ask.truncate.unwrap_or(lane.record.truncate_default);
    let limits = Limits {
        max_tokens: lane.max_tokens(),
        truncate,
        max_bytes: daemon.config.inline.max_item_bytes,
    };
    let tokenized = tokenize(daemon, ctx, &loaded, ask.items, ask.role, limits).await?;
    let (vectors, items) = run(daemon, ctx, &lane, &loaded, names, tokenized, shape, ask.query).await?;
    lane.touch();

    let vector = |vector: Option<Vec<f32>>| vector.map(|values| Vector::encode(&values, ask.encoding));
    Ok(EmbedReply {
        model: lane.record.id.clone(),
        numeric_profile_id: lane.profile_id.to_string(),
        table_epoch: TABLE_EPOCH,
        dims: shape.dims,
        provenance: provenance(&lane, &loaded, fingerprint.clone(), ask.role, shape),
        fingerprint,
        real_token_counts: items.iter().map(|item| item.effective_tokens).collect(),
        vectors: vectors.into_iter().map(vector).collect(),
        items,
        equivalent_to: Vec::new(),
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

/// What needs no lane: the alias table's epoch and the device.
fn check_constraints(constraints: &Constraints) -> Result<(), ServiceError> {
    if let Some(epoch) = constraints.required_epoch
        && epoch != TABLE_EPOCH
    {
        let message = format!("`required_epoch` is {epoch}, the alias table's epoch is {TABLE_EPOCH}");
        return Err(ServiceError::substitution_rejected(message).detail(|detail| {
            detail.reason = Some("epoch_mismatch".to_owned());
            detail.table_epoch = Some(TABLE_EPOCH);
        }));
    }
    if let Some(device) = &constraints.require_device
        && device != DEVICE
    {
        let message = format!("`require_device` is {device:?}; the lanes of this daemon run on {DEVICE:?}");
        return Err(ServiceError::not_certified(message).detail(|detail| {
            detail.field = Some("require_device".to_owned());
            detail.reason = Some("device".to_owned());
        }));
    }
    Ok(())
}

/// The numeric space that the caller demands must be the one that is served; nothing is equivalent to it yet (API-06,
/// API-10).
fn check_fingerprint(ask: &Ask, served: &str) -> Result<(), ServiceError> {
    let demands = [
        ("required_fingerprint", &ask.constraints.required_fingerprint),
        ("target_fingerprint", &ask.target_fingerprint),
    ];
    for (field, demanded) in demands {
        let Some(demanded) = demanded else { continue };
        let is_digest = demanded.len() == 64
            && demanded
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        if !is_digest {
            let message = format!("`{field}` is no fingerprint: expected 64 lower-case hex digits");
            return Err(ServiceError::invalid_params(message).detail(|detail| detail.field = Some(field.to_owned())));
        }
        if demanded != served {
            let message = format!("`{field}` is {demanded}; this lane serves {served} in the shape asked for");
            return Err(ServiceError::substitution_rejected(message).detail(|detail| {
                detail.reason = Some("fingerprint_mismatch".to_owned());
                detail.field = Some(field.to_owned());
                detail.fingerprint = Some(served.to_owned());
            }));
        }
    }
    Ok(())
}

/// The lane that serves the model. While bundles are still being described the answer is not known: the request waits
/// for it, within its `max_queue_ms`, unless it is to fail at once (API-08).
async fn find_lane(daemon: &Arc<Daemon>, ctx: &RequestContext, ask: &Ask) -> Result<Arc<Lane>, ServiceError> {
    if !daemon.plugins.is_scanned() {
        let until = (ctx.received + ctx.max_queue).min(ctx.deadline);
        let scanned = tokio::time::timeout_at(until.into(), daemon.plugins.scanned());
        if ask.constraints.fail_if_not_ready || scanned.await.is_err() {
            let message = "the engine bundles are still being described; try again";
            return Err(ServiceError::model_loading(message).retry_after(SCANNING_RETRY_MS));
        }
    }
    lane_of(daemon, &ask.model).await
}

/// The lane that a model or lane name stands for.
///
/// # Errors
/// The name is wrong, or no lane can serve it.
pub(super) async fn lane_of(daemon: &Arc<Daemon>, model: &str) -> Result<Arc<Lane>, ServiceError> {
    let selector = parse_model_id(model)?;
    let catalog = daemon.catalog();
    let bundles = daemon.plugins.bundles();
    let find = |installed: &[_]| {
        select(&catalog, &selector, &bundles, installed)
            .map(|choice| daemon.lanes.lane(&choice, daemon.threads_per_call))
    };
    match find(&daemon.installed()) {
        // What is installed may have changed since it was last read.
        Err(NoLane::NotInstalled { .. }) => {
            daemon.refresh_installed().await?;
            find(&daemon.installed()).map_err(ServiceError::from)
        }
        found => found.map_err(ServiceError::from),
    }
}

/// The loaded model, or why it does not serve now. Never waits for a load, and starts one where none has failed
/// (ERR-09, SCHED-10).
fn ready(daemon: &Arc<Daemon>, lane: &Arc<Lane>) -> Result<Arc<Loaded>, ServiceError> {
    match lane.standing() {
        Standing::Ready(loaded) => Ok(loaded),
        Standing::Failed(failure) => Err(failure),
        Standing::Idle | Standing::Loading => {
            let job = load::start(daemon, lane)?;
            let message = format!("{} is being loaded; try again", lane.record.id);
            Err(ServiceError::model_loading(message)
                .retry_after(LOADING_RETRY_MS)
                .detail(|detail| {
                    detail.model = Some(lane.record.id.clone());
                    detail.lane = Some(lane.name.clone());
                    detail.job_id = Some(job.to_string());
                }))
        }
    }
}

/// Tokenizes every text on the blocking pool. A tokenizer cannot be interrupted: the caller's wait ends at its
/// deadline, the permit when the tokenizer is done.
async fn tokenize(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    loaded: &Arc<Loaded>,
    items: Vec<(String, Text)>,
    role: Role,
    limits: Limits,
) -> Result<Vec<Tokenized>, ServiceError> {
    let late = || ServiceError::deadline_exceeded("the deadline passed before the texts were tokenized");
    let permit = tokio::time::timeout_at(ctx.deadline.into(), Arc::clone(&daemon.tokenizing).acquire_owned())
        .await
        .map_err(|_| late())?
        .map_err(|_| ServiceError::shutting_down())?;
    ctx.check()?;
    let loaded = Arc::clone(loaded);
    let (cancel, deadline) = (ctx.cancel.clone(), ctx.deadline);
    let work = daemon.tasks.blocking("tokenize", move || {
        let _permit = permit;
        let template = (role != Role::None)
            .then(|| loaded.templates.get(role.as_str()))
            .flatten();
        let gone = || cancel.is_cancelled() || Instant::now() >= deadline;
        let encode = |text: Text| -> Tokenized {
            let text = text
                .as_str()
                .map_err(|invalid| ServiceError::invalid_text(invalid.to_string()))?;
            Ok(loaded.tokenizer.encode(text, template, limits)?)
        };
        // Nobody waits for the rest of a request whose caller has left.
        items
            .into_iter()
            .map_while(|(_, text)| (!gone()).then(|| encode(text)))
            .collect::<Vec<_>>()
    });
    let tokenized = tokio::time::timeout_at(ctx.deadline.into(), work)
        .await
        .map_err(|_| late())??;
    ctx.check()?;
    Ok(tokenized)
}

/// Gives the tokenized texts to the engine, in quanta, and finishes its rows.
#[expect(clippy::too_many_arguments, reason = "the parts of one request, each used once")]
async fn run(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    lane: &Arc<Lane>,
    loaded: &Loaded,
    names: Vec<String>,
    tokenized: Vec<Tokenized>,
    shape: ServedShape,
    query: bool,
) -> Result<(Vec<Option<Vec<f32>>>, Vec<ItemOutcome>), ServiceError> {
    // The engine sees the sound texts only; `sound[n]` is the position of its n-th item in the request.
    let mut sound = Vec::new();
    let mut encoded = Vec::new();
    let mut outcomes = Vec::new();
    for (position, (id, outcome)) in names.into_iter().zip(tokenized).enumerate() {
        outcomes.push(match outcome {
            Ok(text) => {
                let item = ItemOutcome {
                    id,
                    submitted_tokens: text.submitted_tokens,
                    effective_tokens: text.effective_tokens,
                    truncated: text.truncated,
                    error: None,
                };
                sound.push(position);
                encoded.push(text);
                item
            }
            // The one text of a query is the request.
            Err(error) if query => return Err(error),
            Err(error) => failed(id, &error),
        });
    }
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
    let batches: Vec<Batch> = cut(&lengths, quantum_bounds(daemon, lane, loaded, class))
        .into_iter()
        .map(|items| Batch::gather(items, &encoded))
        .collect();
    let work = EmbedWork::new(loaded, batches, encoded.len());
    let spec = CallSpec {
        request: ctx.request_id.number(),
        class,
        start_by: start_by(ctx, class),
        deadline: ctx.deadline,
        // Ids and segments, the engine's rows, and the vectors made of them.
        bytes: tokens
            .saturating_mul(8)
            .saturating_add(wide(encoded.len()) * u64::from(loaded.model.dims) * 8),
    };
    drop(encoded);
    let rows = match loaded.executor.submit(spec, work)?.outcome(&ctx.cancel).await {
        Ok(rows) => rows,
        Err(error) => {
            if let CallError::Engine(error) = &error {
                load::after_failure(daemon, lane, error);
            }
            return Err(error.into());
        }
    };

    for (position, row) in sound.into_iter().zip(rows) {
        match output::serve(&row, shape) {
            Ok(vector) => vectors[position] = Some(vector),
            Err(not_finite) => {
                let error = ServiceError::non_finite_output(not_finite.to_string());
                if query {
                    return Err(error);
                }
                let id = std::mem::take(&mut outcomes[position].id);
                outcomes[position] = failed(id, &error);
            }
        }
    }
    Ok((vectors, outcomes))
}

/// What one engine call may hold: the envelope's bounds, and for bulk work about 200 ms of it (SCHED-04).
fn quantum_bounds(daemon: &Daemon, lane: &Lane, loaded: &Loaded, class: Class) -> QuantumBounds {
    const QUANTUM_NANOS: u64 = 200_000_000;
    let bounds = lane.row.bounds;
    let envelope = u64::from(bounds.max_batch_tokens);
    let max_tokens = match class {
        Class::Bulk => {
            let start = wide(daemon.config.schedule.bulk_quantum_tokens);
            loaded.executor.units_in(QUANTUM_NANOS).unwrap_or(start).min(envelope)
        }
        Class::Interactive | Class::Control => envelope,
    };
    QuantumBounds {
        max_items: bounds.max_batch.min(bounds.max_sequences),
        max_tokens,
    }
}

/// The last moment to start: interactive work within `max_queue_ms`, bulk work within its deadline (SCHED-03).
fn start_by(ctx: &RequestContext, class: Class) -> Instant {
    match class {
        Class::Interactive => (ctx.received + ctx.max_queue).min(ctx.deadline),
        Class::Bulk | Class::Control => ctx.deadline,
    }
}

/// An item without a vector.
fn failed(id: String, error: &ServiceError) -> ItemOutcome {
    ItemOutcome {
        id,
        submitted_tokens: 0,
        effective_tokens: 0,
        truncated: false,
        error: Some(error.failure()),
    }
}

fn provenance(lane: &Lane, loaded: &Loaded, fingerprint: String, role: Role, shape: ServedShape) -> Provenance {
    Provenance {
        by: ServedBy {
            fingerprint,
            engine: lane.profile.engine.engine.clone(),
            engine_version: lane.profile.engine.version.clone(),
            bundle_digest: lane.bundle.digest.map(|digest| digest.to_string()).unwrap_or_default(),
            lane: lane.name.clone(),
            placement: match loaded.engine.supervisor() {
                Some(_) => Placement::Worker,
                None => Placement::InProcess,
            },
            model_digest: lane.profile.model_digest.to_string(),
            machine_profile_hash: None,
            certification: None,
        },
        role,
        template_id: profile::template_id(&lane.record, role),
        normalized: shape.normalized,
    }
}

/// A length as a number of the wire.
fn wide(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
