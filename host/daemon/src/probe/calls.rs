//! One step of a plan on its lane: texts to tokens, the engine call among the lane's other work, its answer to the plan.
//!
//! State: none. Caller: `run.rs`. Not known here: why a step is asked, and what its answer means.
//!
//! A step comes when no query waits, or when queries have left no gap for [`PATIENCE`]; a query that comes meanwhile waits
//! for one step, never for the next. A step of a query's size has the lane to itself, so that what it times is the engine
//! and not the traffic. A larger one is bulk work: an engine in this process then gives way in the middle of it, or shares.
//! Where neither can be, as in a worker, a query waits for the step's end: such a lane's plan is made of short steps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use synapse_certify::plan::{PairItem, TextItem};
use synapse_certify::{Step, StepOutput, Work};
use synapse_core::engine::{EngineError, EngineErrorCode, EngineState, GenerateOptions};
use synapse_core::schedule::Class;
use tokio_util::sync::CancellationToken;

use crate::lane::loaded::Loaded;
use crate::lane::work::{Batch, ProbeAnswer, ProbeCall, ProbeWork};
use crate::rpc::error::ServiceError;
use crate::schedule::{CallError, CallSpec, Refused};
use crate::state::Daemon;
use crate::text::{ChatMessage, ChatRole, Encoded, EncodedPair, Limits, Piece, TextError, Tokenizer};

/// The most tokens of a step that has its lane to itself: those of the longest timed query.
const ALONE_TOKENS: u64 = 512;
/// How long a step waits for a moment without queries.
const PATIENCE: Duration = Duration::from_millis(1_000);
/// Between two looks for such a moment.
const LOOK: Duration = Duration::from_millis(2);
/// The most time of one step, its wait included.
const STEP_DEADLINE: Duration = Duration::from_secs(600);
/// Between two tries of a step that the lane had no room for.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(50);

/// What became of a step.
#[derive(Debug)]
pub(super) enum Outcome {
    /// An answer for the plan, an engine's error included.
    Answer(StepOutput),
    /// The model left memory before the step began: load it again and repeat the step.
    Left,
    /// The engine cannot be called again: what the plan has not asked yet stays unanswered.
    Lost(StepOutput),
}

/// A step's tokens.
struct Encoding {
    call: ProbeCall,
    /// Tokens of each item.
    tokens: Vec<u32>,
}

/// Runs a step.
///
/// # Errors
/// The probe was cancelled, or the daemon stops.
pub(super) async fn run(
    daemon: &Arc<Daemon>,
    loaded: &Arc<Loaded>,
    step: &Step,
    cancel: &CancellationToken,
) -> Result<Outcome, ServiceError> {
    let encoding = match encode(daemon, loaded, step).await? {
        Ok(encoding) => encoding,
        Err(error) => return Ok(Outcome::Answer(failed(&error))),
    };
    let deadline = Instant::now() + STEP_DEADLINE;
    loop {
        lull(loaded, cancel).await?;
        let class = if step.tokens > ALONE_TOKENS {
            Class::Bulk
        } else {
            Class::Control
        };
        let spec = CallSpec {
            request: 0,
            class,
            start_by: deadline,
            deadline,
            bytes: step.tokens.saturating_mul(8),
            flow: None,
        };
        let work = ProbeWork::new(loaded, encoding.call.clone(), step.threads);
        let outcome = match loaded.executor.submit(spec, work) {
            Ok(pending) => pending.outcome(cancel).await.map(|(answer, _)| answer),
            Err(Refused::Closed(_)) => return Ok(Outcome::Left),
            Err(Refused::NotAdmitted { why, .. }) if Instant::now() >= deadline => {
                return Ok(Outcome::Answer(failed(&why)));
            }
            Err(Refused::NotAdmitted { .. }) => {
                pause(cancel, NO_ROOM_PAUSE).await?;
                continue;
            }
        };
        return match outcome {
            Ok(Some((answer, elapsed))) => {
                let elapsed_ms = elapsed.as_secs_f64() * 1e3;
                tracing::debug!(target: "synapse", step = step.id.0, ?class, tokens = step.tokens, elapsed_ms, "probe step");
                Ok(Outcome::Answer(given(answer, encoding.tokens, elapsed)))
            }
            Ok(None) | Err(CallError::Closed(_)) => Ok(Outcome::Left),
            Err(CallError::Cancelled) => Err(ServiceError::cancelled()),
            Err(CallError::Engine(error)) if is_lost(loaded, &error) => Ok(Outcome::Lost(failed(&error))),
            Err(error) => Ok(Outcome::Answer(failed(&error))),
        };
    }
}

/// Whether no further call can reach the model after this error.
fn is_lost(loaded: &Loaded, error: &EngineError) -> bool {
    let gone = matches!(error.state, EngineState::ModelBad | EngineState::EngineBad);
    gone || error.code == EngineErrorCode::Quarantined || loaded.is_given_up() || loaded.engine.closed().is_some()
}

fn failed(error: &impl ToString) -> StepOutput {
    StepOutput::Failed {
        message: error.to_string(),
    }
}

fn given(answer: ProbeAnswer, tokens: Vec<u32>, elapsed: Duration) -> StepOutput {
    match answer {
        ProbeAnswer::Rows(rows) => StepOutput::Rows { rows, tokens, elapsed },
        ProbeAnswer::Scores(scores) => StepOutput::Scores {
            scores,
            tokens,
            elapsed,
        },
        ProbeAnswer::Text(written) => StepOutput::Text {
            text: written.text,
            tokens: written.tokens,
            elapsed,
        },
    }
}

/// Waits for a moment in which no query waits or runs on the lane.
async fn lull(loaded: &Loaded, cancel: &CancellationToken) -> Result<(), ServiceError> {
    let until = Instant::now() + PATIENCE;
    loop {
        let load = loaded.executor.load();
        if load.running + load.interactive_waiting == 0 || Instant::now() >= until {
            return Ok(());
        }
        pause(cancel, LOOK).await?;
    }
}

/// Waits, unless the probe is cancelled.
async fn pause(cancel: &CancellationToken, time: Duration) -> Result<(), ServiceError> {
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(ServiceError::cancelled()),
        () = tokio::time::sleep(time) => Ok(()),
    }
}

/// Tokenizes a step off the runtime's threads, under one of the daemon's permits.
async fn encode(
    daemon: &Arc<Daemon>,
    loaded: &Arc<Loaded>,
    step: &Step,
) -> Result<Result<Encoding, TextError>, ServiceError> {
    let permit = Arc::clone(&daemon.tokenizing)
        .acquire_owned()
        .await
        .map_err(|_| ServiceError::shutting_down())?;
    let (loaded, step) = (Arc::clone(loaded), step.clone());
    let max_bytes = daemon.config.inline.max_item_bytes;
    let encoding = daemon.tasks.blocking("probe-tokenize", move || {
        let _permit = permit;
        match &step.work {
            Work::Embed(items) => texts(&loaded.tokenizer, items, step.as_query, max_bytes),
            Work::Rerank(pairs) => candidates(&loaded.tokenizer, pairs, max_bytes),
            Work::Generate { prompt, max_tokens } => generation(&loaded, prompt, *max_tokens),
        }
    });
    Ok(encoding.await?)
}

fn limits(max_tokens: u32, max_bytes: usize) -> Limits {
    Limits {
        max_tokens,
        truncate: true,
        max_bytes,
    }
}

fn texts(tokenizer: &Tokenizer, items: &[TextItem], as_query: bool, max_bytes: usize) -> Result<Encoding, TextError> {
    let encoded: Vec<Encoded> = items
        .iter()
        .map(|item| tokenizer.encode(&item.text, None, limits(item.max_tokens, max_bytes)))
        .collect::<Result<_, _>>()?;
    Ok(Encoding {
        tokens: encoded.iter().map(|text| text.effective_tokens).collect(),
        call: ProbeCall::Embed {
            batch: Batch::gather((0..encoded.len()).collect(), |item| &encoded[item]),
            as_query,
        },
    })
}

fn candidates(tokenizer: &Tokenizer, pairs: &[PairItem], max_bytes: usize) -> Result<Encoding, TextError> {
    let encoded: Vec<EncodedPair> = pairs
        .iter()
        .map(|pair| tokenizer.encode_pair(&pair.query, &pair.document, limits(pair.max_tokens, max_bytes)))
        .collect::<Result<_, _>>()?;
    Ok(Encoding {
        tokens: encoded.iter().map(|pair| pair.encoded.effective_tokens).collect(),
        call: ProbeCall::Rerank {
            batch: Batch::gather((0..encoded.len()).collect(), |item| &encoded[item].encoded),
            doc_starts: encoded.iter().map(|pair| pair.doc_start).collect(),
        },
    })
}

/// A greedy continuation: in the model's chat template where it has one.
fn generation(loaded: &Loaded, prompt: &str, max_tokens: u32) -> Result<Encoding, TextError> {
    let pieces = match &loaded.chat {
        Some(template) => template.render(&[ChatMessage {
            role: ChatRole::User,
            content: prompt.to_owned(),
        }])?,
        None => vec![Piece::Content(prompt.to_owned())],
    };
    let prompt = loaded.tokenizer.encode_prompt(&pieces, loaded.model.max_tokens)?;
    Ok(Encoding {
        tokens: vec![u32::try_from(prompt.len()).unwrap_or(u32::MAX)],
        call: ProbeCall::Generate {
            prompt,
            options: GenerateOptions {
                max_tokens,
                temperature: 0.0,
                top_p: 1.0,
                seed: 0,
                stop: Vec::new(),
                grammar: String::new(),
                extra: Vec::new(),
            },
        },
    })
}
