//! `microllm.oneshot`: one prompt to one text, from a small model (API-16..18).
//!
//! State: none. Callers: `rpc/dispatch.rs`. Not known here: JSON, how a template is rendered, how an engine is packaged.
//!
//! A generation is bulk work, whatever its length: interactive are queries and small reranks only (SCHED-02), and a text
//! of some hundred tokens takes seconds in which no query may wait for it. It has its own deadline, and waits for its
//! start as long as that allows, or as long as the request says. Its lane has threads of its own, and a query may overdraw
//! the compute permits, so no query of another lane waits for it.
//!
//! A request's way: its bounds, without any lane; admission; the prompt rendered and tokenized; its length against the
//! lane's context; the engine, which asks at every token whether to go on.

use std::sync::Arc;

use synapse_core::engine::{self, EngineKind, GenerateOptions};
use synapse_core::schedule::Class;
use synapse_wire::client::oneshot::{MAX_STOP_BYTES, MAX_STOPS};
use synapse_wire::client::{FinishReason, MicrollmOneshotParams, MicrollmOneshotResult, Text};

use super::admission::{Admitted, Demand, admit};
use super::items::wide;
use super::{RequestContext, ServiceError, call, grammar, tokenizing};
use crate::config::Config;
use crate::lane::profile;
use crate::lane::work::{GenerateWork, MAX_TEXT_BYTES, Written};
use crate::state::Daemon;
use crate::text::{ChatMessage, ChatRole, Piece, TextError};

/// The highest temperature.
const MAX_TEMPERATURE: f32 = 2.0;

/// What was asked, within its bounds.
struct Asked {
    prompt: String,
    system: Option<String>,
    chat: Option<bool>,
    max_tokens: Option<u32>,
    options: GenerateOptions,
}

/// Generates.
///
/// # Errors
/// Every refusal of the request, its lane or its prompt.
pub async fn run(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    params: MicrollmOneshotParams,
) -> Result<MicrollmOneshotResult, ServiceError> {
    let (constraints, model) = (params.constraints(), params.model.clone());
    let Asked {
        prompt,
        system,
        chat,
        max_tokens,
        mut options,
    } = check(&daemon.config, params)?;
    let demand = Demand {
        model: &model,
        kind: EngineKind::Generate,
        constraints: &constraints,
        target_fingerprint: None,
        query: false,
    };
    // Texts have one shape, which the record's defaults say.
    let admitted = admit(daemon, ctx, demand, |record| profile::served_shape(record, None, None)).await?;

    let chat = has_chat(&admitted, chat, system.is_some())?;
    let ids = tokenize(daemon, ctx, &admitted, prompt, system, chat).await?;
    let prompt_tokens = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    options.max_tokens = room(
        prompt_tokens,
        max_tokens,
        admitted.lane.max_tokens(),
        daemon.config.microllm_max_tokens,
    )?;
    // The ids, and the text: tokens of many bytes are rare, and the text is bounded in any case.
    let bytes = (wide(ids.len()) + u64::from(options.max_tokens)).saturating_mul(8);
    let work = GenerateWork::new(&admitted.loaded, ids, options);
    let written = call::run(daemon, ctx, &admitted, Class::Bulk, bytes, None, work).await?;
    let Written {
        text,
        tokens,
        finish,
        overlong,
    } = written;
    if overlong {
        let message = format!("the text reached {MAX_TEXT_BYTES} bytes, the most of one answer; ask for fewer tokens");
        return Err(ServiceError::limit_exceeded(message).detail(|detail| {
            detail.limit = Some(String::from("microllm.max_text_bytes"));
            detail.maximum = Some(wide(MAX_TEXT_BYTES));
        }));
    }
    Ok(MicrollmOneshotResult {
        model: admitted.lane.record.id.clone(),
        text,
        finish_reason: match finish {
            engine::FinishReason::Stop => FinishReason::Stop,
            engine::FinishReason::Length => FinishReason::Length,
        },
        prompt_tokens,
        generated_tokens: tokens,
        chat,
        fingerprint: admitted.fingerprint.clone(),
        numeric_profile_id: admitted.numeric_profile_id(),
        table_epoch: admitted.table.epoch(),
        provenance: admitted.served_by(),
    })
}

/// A refusal of one field, with its bounds.
fn out_of_bounds(field: &str, message: String) -> ServiceError {
    ServiceError::invalid_params(message).detail(|detail| detail.field = Some(field.to_owned()))
}

/// Everything that needs no lane.
fn check(config: &Config, params: MicrollmOneshotParams) -> Result<Asked, ServiceError> {
    if let Some(grammar) = &params.grammar {
        grammar::check(grammar, config.grammar_enabled)?;
    }
    check_max_tokens(params.max_tokens, config.microllm_max_tokens)?;
    let temperature = params.temperature.unwrap_or(0.0);
    // A range holds no NaN.
    if !(0.0..=MAX_TEMPERATURE).contains(&temperature) {
        let message = format!("`temperature` is {temperature}, expected 0 (greedy) to {MAX_TEMPERATURE}");
        return Err(out_of_bounds("temperature", message));
    }
    let top_p = params.top_p.unwrap_or(1.0);
    if !(top_p > 0.0 && top_p <= 1.0) {
        let message = format!("`top_p` is {top_p}, expected more than 0 and at most 1");
        return Err(out_of_bounds("top_p", message));
    }
    check_stops(&params.stop)?;
    if params.chat == Some(false) && params.system.is_some() {
        let message = "`system` has no place without a chat: leave it out, or `chat: false`";
        return Err(out_of_bounds("system", message.to_owned()));
    }
    let system = params.system.map(|text| whole(config, "system", text)).transpose()?;
    Ok(Asked {
        prompt: whole(config, "prompt", params.prompt)?,
        system,
        chat: params.chat,
        max_tokens: params.max_tokens,
        options: GenerateOptions {
            max_tokens: 0,
            temperature,
            top_p,
            seed: params.seed.unwrap_or(0),
            stop: params.stop,
            grammar: params.grammar.unwrap_or_default(),
            extra: Vec::new(),
        },
    })
}

/// More than the operator allows is refused, never clamped (API-17).
fn check_max_tokens(asked: Option<u32>, most: u32) -> Result<(), ServiceError> {
    match asked {
        Some(asked) if asked == 0 || asked > most => {
            let message = format!("`max_tokens` is {asked}, expected 1 to {most} (`microllm_max_tokens`)");
            Err(out_of_bounds("max_tokens", message).detail(|detail| {
                detail.limit = Some(String::from("microllm_max_tokens"));
                detail.config = Some(String::from("microllm_max_tokens"));
                detail.maximum = Some(u64::from(most));
                detail.actual = Some(u64::from(asked));
            }))
        }
        _ => Ok(()),
    }
}

fn check_stops(stops: &[String]) -> Result<(), ServiceError> {
    let over = |limit: &str, maximum: usize, actual: usize, message: String| {
        ServiceError::limit_exceeded(message).detail(|detail| {
            detail.field = Some(String::from("stop"));
            detail.limit = Some(limit.to_owned());
            detail.maximum = Some(wide(maximum));
            detail.actual = Some(wide(actual));
        })
    };
    if stops.len() > MAX_STOPS {
        let message = format!("`stop` has {} texts, at most {MAX_STOPS} are taken", stops.len());
        return Err(over("microllm.max_stops", MAX_STOPS, stops.len(), message));
    }
    for (position, stop) in stops.iter().enumerate() {
        if stop.is_empty() {
            let message = format!("`stop[{position}]` is empty: it would end every text; leave it out");
            return Err(out_of_bounds("stop", message));
        }
        if stop.len() > MAX_STOP_BYTES {
            let message = format!(
                "`stop[{position}]` has {} bytes, at most {MAX_STOP_BYTES} are taken",
                stop.len()
            );
            return Err(over("microllm.max_stop_bytes", MAX_STOP_BYTES, stop.len(), message));
        }
    }
    Ok(())
}

/// A text of the request, whole and not too large to be tokenized.
fn whole(config: &Config, field: &str, text: Text) -> Result<String, ServiceError> {
    let named = |error: ServiceError| error.detail(|detail| detail.field = Some(field.to_owned()));
    let text = text
        .into_string()
        .map_err(|invalid| named(ServiceError::invalid_text(invalid.to_string())))?;
    let (found, limit) = (wide(text.len()), wide(config.inline.max_item_bytes));
    if found > limit {
        return Err(named(TextError::TooManyBytes { found, limit }.into()));
    }
    Ok(text)
}

/// Whether the prompt goes into the model's chat template.
fn has_chat(admitted: &Admitted, asked: Option<bool>, system: bool) -> Result<bool, ServiceError> {
    let has = admitted.loaded.chat.is_some();
    let refused = |field: &str| {
        let message = format!(
            "{} has no chat template, so `{field}` cannot be served",
            admitted.lane.record.id
        );
        Err(ServiceError::unsupported(message).detail(|detail| {
            detail.field = Some(field.to_owned());
            detail.model = Some(admitted.lane.record.id.clone());
        }))
    };
    match asked {
        Some(true) if !has => refused("chat"),
        _ if system && !has => refused("system"),
        asked => Ok(asked.unwrap_or(has)),
    }
}

/// Renders and tokenizes the prompt.
async fn tokenize(
    daemon: &Arc<Daemon>,
    ctx: &RequestContext,
    admitted: &Admitted,
    prompt: String,
    system: Option<String>,
    chat: bool,
) -> Result<Vec<i32>, ServiceError> {
    let loaded = Arc::clone(&admitted.loaded);
    let max_tokens = admitted.lane.max_tokens();
    let encoded = tokenizing::on_the_pool(daemon, ctx, move |_| {
        let pieces = match loaded.chat.as_ref().filter(|_| chat) {
            Some(template) => {
                let message = |role, content| ChatMessage { role, content };
                let system = system.map(|content| message(ChatRole::System, content));
                let messages: Vec<ChatMessage> = system.into_iter().chain([message(ChatRole::User, prompt)]).collect();
                template.render(&messages)?
            }
            None => vec![Piece::Content(prompt)],
        };
        loaded.tokenizer.encode_prompt(&pieces, max_tokens)
    });
    // A prompt is never cut: what a text's error says about truncation is no help here.
    let ids = encoded.await?.map_err(|error| match error {
        TextError::TooManyTokens { found, limit } => too_long(found, 1, limit),
        other => other.into(),
    })?;
    if ids.is_empty() {
        return Err(out_of_bounds(
            "prompt",
            "`prompt` is empty: nothing to continue".to_owned(),
        ));
    }
    Ok(ids)
}

/// How many tokens may be generated: as asked, or what the lane's context leaves, within the operator's bound.
fn room(prompt: u32, asked: Option<u32>, context: u32, most: u32) -> Result<u32, ServiceError> {
    let left = context.saturating_sub(prompt);
    match asked {
        Some(asked) if asked > left => Err(too_long(prompt, asked, context)),
        Some(asked) => Ok(asked),
        None if left == 0 => Err(too_long(prompt, 1, context)),
        None => Ok(left.min(most)),
    }
}

fn too_long(prompt: u32, generated: u32, context: u32) -> ServiceError {
    let sum = u64::from(prompt) + u64::from(generated);
    let message = format!(
        "the prompt has {prompt} tokens (template and special tokens included) and {generated} are to be generated: \
         {sum}, the lane takes {context} in all; shorten the prompt or ask for fewer tokens"
    );
    ServiceError::input_too_long(message).detail(|detail| {
        detail.field = Some(String::from("prompt"));
        detail.maximum = Some(u64::from(context));
        detail.actual = Some(sum);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves API-17, CONF-09: the default limit, at the edge.
    #[test]
    fn more_tokens_than_allowed_are_refused_and_not_clamped() {
        let most = Config::default().microllm_max_tokens;
        assert_eq!(most, 512);
        for fits in [None, Some(1), Some(512)] {
            assert_eq!(check_max_tokens(fits, most), Ok(()));
        }
        for asked in [0, 513, u32::MAX] {
            let error = check_max_tokens(Some(asked), most).unwrap_err();
            assert_eq!(error.code().as_str(), "invalid_request");
            let facts = error.facts().unwrap();
            assert_eq!(
                (facts.limit.as_deref(), facts.maximum, facts.actual),
                (Some("microllm_max_tokens"), Some(512), Some(u64::from(asked)))
            );
            assert!(error.message().contains("microllm_max_tokens"), "{error}");
        }
    }

    #[test]
    fn prompt_and_text_share_the_context() {
        assert_eq!(room(100, Some(28), 128, 512), Ok(28));
        assert_eq!(room(100, None, 128, 512), Ok(28));
        assert_eq!(room(100, None, 2_048, 512), Ok(512));
        assert_eq!(room(127, None, 128, 512), Ok(1));
        for (prompt, asked, sum) in [
            (100, Some(29), 129),
            (128, None, 129),
            (200, None, 201),
            (u32::MAX, Some(u32::MAX), 8_589_934_590),
        ] {
            let error = room(prompt, asked, 128, 512).unwrap_err();
            assert_eq!(error.code().as_str(), "input_too_long");
            let facts = error.facts().unwrap();
            assert_eq!((facts.maximum, facts.actual), (Some(128), Some(sum)));
        }
    }
}
