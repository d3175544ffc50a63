//! Generation: letters that depend on everything before them, one of them of two bytes.
//!
//! State: none.

use synapse_plugin_api::{
    CallContext, EngineError, ErrorCode, FinishReason, Flow, GenerateOptions, Generated, ModelRef, Prompt, PromptKind,
    TokenSink,
};

use super::arithmetic::mix;
use super::engine::{Engine, Running};
use super::{error, fault};

/// What a text that spells a control token becomes in a mode.
const CONTROL: &str = "<|im_end|>";
const LETTERS: [char; 8] = ['a', 'b', 'c', 'd', 'e', 'f', 'é', ' '];

fn check(options: &GenerateOptions) -> Result<(), EngineError> {
    if !fault("any-option") {
        let bad = |what: &str| error(ErrorCode::CONFIG_INVALID, format!("{what} is out of range or unknown"));
        if options.max_tokens == 0 {
            return bad("max_tokens");
        }
        if !options.temperature.is_finite() || options.temperature < 0.0 {
            return bad("temperature");
        }
        if !(options.top_p > 0.0 && options.top_p <= 1.0) {
            return bad("top_p");
        }
        if options.stop.iter().any(|stop| stop.is_empty()) {
            return bad("an empty stop text");
        }
        if let Some(pair) = options.extra.first() {
            return bad(pair.key.as_str());
        }
    }
    if !options.grammar.is_empty() && !fault("ignores-grammar") {
        return error(ErrorCode::GRAMMAR_UNAVAILABLE, "there are no grammars; leave it out");
    }
    Ok(())
}

/// The prompt's ids: its own, or the bytes of its text.
fn ids(prompt: Prompt<'_>) -> Result<Vec<i32>, EngineError> {
    match prompt.kind {
        PromptKind::IDS => Ok(prompt.ids.to_vec()),
        PromptKind::TEXT if fault("reads-control") => {
            let text = prompt.text.replace(CONTROL, "\u{1}");
            Ok(text.bytes().map(i32::from).collect())
        }
        PromptKind::TEXT => Ok(prompt.text.bytes().map(i32::from).collect()),
        _ => error(ErrorCode::UNSUPPORTED, "a prompt of an unknown kind"),
    }
}

pub(super) fn generate(
    engine: &Engine,
    ctx: &CallContext<'_>,
    model: ModelRef,
    prompt: Prompt<'_>,
    options: &GenerateOptions,
    mut sink: TokenSink<'_>,
) -> Result<Generated, EngineError> {
    let model = engine.model(model)?;
    check(options)?;
    let prompt = ids(prompt)?;
    if prompt.iter().any(|id| *id < 0) && fault("negative-abort") {
        std::process::abort();
    }
    if prompt.len() > model.max_tokens {
        return error(ErrorCode::INPUT_TOO_LONG, "the prompt is longer than max_tokens");
    }
    let call = Running::enter(engine, ctx, prompt.len());
    let start = if options.temperature > 0.0 {
        mix(model.seed ^ options.seed)
    } else {
        model.seed
    };
    let mut state = prompt
        .iter()
        .fold(start, |state, id| mix(state ^ u64::from(id.cast_unsigned())));
    let most = if fault("over-generates") && options.max_tokens <= 3 {
        options.max_tokens + 1
    } else {
        options.max_tokens
    };
    let (mut text, mut generated, mut finish) = (String::new(), 0, FinishReason::LENGTH);
    let mut pushed = 0;
    while generated < most {
        state = mix(state);
        let letter = LETTERS[usize::try_from(state % 8).unwrap_or(0)];
        text.push(letter);
        generated += 1;
        if let Some(stop) = options.stop.iter().find(|stop| text.ends_with(stop.as_str())) {
            text.truncate(text.len() - stop.len());
            finish = FinishReason::STOP;
            break;
        }
        let keep = options.stop.iter().map(|stop| stop.len()).max().unwrap_or(0);
        let mut end = text.len().saturating_sub(keep).max(pushed);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        push(&mut sink, &text[pushed..end])?;
        pushed = end;
        call.checkpoint(generated.into(), most.into())?;
    }
    push(&mut sink, text.get(pushed..).unwrap_or(""))?;
    Ok(Generated {
        prompt_tokens: u32::try_from(prompt.len()).unwrap_or(u32::MAX),
        generated_tokens: generated,
        finish,
    })
}

/// Gives letters and their ids.
fn push(sink: &mut TokenSink<'_>, text: &str) -> Result<(), EngineError> {
    if text.is_empty() {
        return Ok(());
    }
    let ids: Vec<i32> = text.chars().map(|c| i32::try_from(u32::from(c)).unwrap_or(0)).collect();
    let bytes = text.as_bytes();
    let split = if fault("splits-utf8") {
        bytes.iter().position(|byte| *byte >= 0x80).map_or(0, |at| at + 1)
    } else {
        0
    };
    if split > 0 && sink.push(&[], &bytes[..split]) != Flow::CONTINUE {
        return error(ErrorCode::CANCELLED, "the sink asked for it");
    }
    match sink.push(&ids, &bytes[split..]) {
        Flow::CONTINUE => Ok(()),
        _ => error(ErrorCode::CANCELLED, "the sink asked for it"),
    }
}
