//! Between the ABI's types and the core's: what goes in is copied, what comes out is bounded.
//!
//! State: none. Callers: the adapters, discovery.

use synapse_core::engine as core;
use synapse_plugin_api as api;
use synapse_plugin_api::abi_stable::std_types::{RString, RVec};

use crate::descriptor::{Descriptor, DescriptorError, MAX_LIST, MAX_WORD};
use crate::manifest::shown;

/// The longest error message of an engine that is kept, in bytes.
const MAX_MESSAGE: usize = 4096;
/// The most facts of an answer that are kept.
const MAX_FACTS: usize = 64;
/// The longest vector.
pub(super) const MAX_DIMS: u32 = 65_536;
/// The most calls that one model may want to run at once.
const MAX_CONCURRENCY: u32 = 1024;

/// What the library says about itself, copied within bounds and checked.
///
/// # Errors
/// [`DescriptorError`] names the field.
pub(crate) fn descriptor(found: &api::Descriptor) -> Result<Descriptor, DescriptorError> {
    let version = word("package_version", &found.package_version)?;
    let package_version = semver::Version::parse(&version)
        .map_err(|error| DescriptorError(format!("package_version: {} is not semver: {error}", shown(&version))))?;
    bounded("supports", found.supports.len())?;
    let mut supports = Vec::new();
    for row in &found.supports {
        // A kind of work that this host does not know is nothing that it could ask for.
        let Some(kind) = kind(row.kind) else { continue };
        supports.push(core::EngineSupport {
            kind,
            format: word("supports.format", &row.format)?,
            dtype: word("supports.dtype", &row.dtype)?,
            preempt: preempt(row.preempt),
            thread_invariant: row.thread_invariant,
            f32_exact: row.f32_exact,
        });
    }
    // The SDK describes a plugin whose own code failed as one that serves nothing, and says why.
    if supports.is_empty()
        && let Some(fact) = found.extra.iter().take(MAX_FACTS).find(|fact| fact.key == "error")
    {
        return Err(DescriptorError(format!(
            "the library reports: {}",
            clean(&fact.value, 512)
        )));
    }
    let descriptor = Descriptor {
        id: word("id", &found.id)?,
        package_version,
        identity: identity(&found.identity)?,
        supports,
    };
    descriptor.check()?;
    Ok(descriptor)
}

/// An engine's identity, copied within bounds.
pub(super) fn identity(found: &api::EngineIdentity) -> Result<core::EngineIdentity, DescriptorError> {
    bounded("identity.build_flags", found.build_flags.len())?;
    let flags = found.build_flags.iter();
    Ok(core::EngineIdentity {
        engine: word("identity.engine", &found.engine)?,
        version: word("identity.version", &found.version)?,
        build_flags: flags
            .map(|flag| word("identity.build_flags", flag))
            .collect::<Result<_, _>>()?,
    })
}

/// The length is looked at before anything is copied.
fn word(field: &str, text: &RString) -> Result<String, DescriptorError> {
    if text.len() > MAX_WORD {
        let found = text.len();
        return Err(DescriptorError(format!(
            "{field}: expected at most {MAX_WORD} bytes, found {found}"
        )));
    }
    Ok(text.as_str().to_owned())
}

fn bounded(field: &str, found: usize) -> Result<(), DescriptorError> {
    if found > MAX_LIST {
        return Err(DescriptorError(format!(
            "{field}: expected at most {MAX_LIST} entries, found {found}"
        )));
    }
    Ok(())
}

const fn kind(kind: api::EngineKind) -> Option<core::EngineKind> {
    match kind {
        api::EngineKind::EMBED => Some(core::EngineKind::Embed),
        api::EngineKind::RERANK => Some(core::EngineKind::Rerank),
        api::EngineKind::GENERATE => Some(core::EngineKind::Generate),
        _ => None,
    }
}

const fn preempt(preempt: api::Preempt) -> core::Preempt {
    match preempt {
        api::Preempt::CHECKPOINT => core::Preempt::Checkpoint,
        api::Preempt::SHARE => core::Preempt::Share,
        _ => core::Preempt::Quantum,
    }
}

/// The files of an artifact; a path that is no UTF-8 cannot cross.
pub(super) fn artifact(artifact: &core::ValidatedArtifact) -> Result<api::ValidatedArtifact, core::EngineError> {
    let file = |file: &core::VerifiedFile| {
        let path = file.path().to_str().ok_or_else(|| {
            core::EngineError::new(
                core::EngineErrorCode::InvalidArgument,
                core::EngineState::Usable,
                format!("the path of the file {} is not UTF-8", file.role()),
            )
        })?;
        Ok(api::ArtifactFile {
            role: file.role().into(),
            path: path.into(),
            sha256: file.sha256().to_string().into(),
            size: file.size(),
        })
    };
    Ok(api::ValidatedArtifact {
        files: artifact.files().iter().map(file).collect::<Result<_, _>>()?,
    })
}

/// The settings of a load.
pub(super) fn runtime_config(config: &core::RuntimeConfig) -> api::RuntimeConfig {
    api::RuntimeConfig {
        format: config.format.as_str().into(),
        dtype: config.dtype.as_str().into(),
        pooling: config.pooling.as_str().into(),
        max_tokens: config.max_tokens,
        max_batch: config.max_batch,
        max_batch_tokens: config.max_batch_tokens,
        threads: config.threads,
        extra: key_values(&config.extra),
    }
}

fn key_values(pairs: &[(String, String)]) -> RVec<api::KeyValue> {
    pairs
        .iter()
        .map(|(key, value)| api::KeyValue::new(key.as_str(), value.as_str()))
        .collect()
}

/// How to generate.
pub(super) fn generate_options(options: &core::GenerateOptions) -> api::GenerateOptions {
    api::GenerateOptions {
        max_tokens: options.max_tokens,
        temperature: options.temperature,
        top_p: options.top_p,
        seed: options.seed,
        stop: options.stop.iter().map(|text| RString::from(text.as_str())).collect(),
        grammar: options.grammar.as_str().into(),
        extra: key_values(&options.extra),
    }
}

/// What a load gave, or which field of it breaks the contract. `vectors` asks for a length of vectors; `preempt` is
/// how the descriptor says that this combination gives way.
pub(super) fn loaded_model(
    found: &api::LoadedModel,
    vectors: bool,
    preempt: Option<core::Preempt>,
) -> Result<core::LoadedModel, String> {
    let range = |field: &str, found: u32, least: u32, most: u32| {
        if (least..=most).contains(&found) {
            return Ok(found);
        }
        Err(format!("{field}: expected {least} to {most}, found {found}"))
    };
    // A call that is held at a checkpoint must not keep an interactive one out.
    let calls = if preempt == Some(core::Preempt::Checkpoint) {
        2
    } else {
        1
    };
    Ok(core::LoadedModel {
        model: core::ModelRef(found.model.0),
        dims: range("dims", found.dims, u32::from(vectors), MAX_DIMS)?,
        max_tokens: range("max_tokens", found.max_tokens, 1, u32::MAX)?,
        max_concurrency: range("max_concurrency", found.max_concurrency, calls, MAX_CONCURRENCY)?,
        memory_bytes: found.memory_bytes,
        extra: facts(&found.extra),
    })
}

/// Facts are for people: what is out of bounds is left out.
fn facts(found: &RVec<api::KeyValue>) -> Vec<(String, String)> {
    found
        .iter()
        .filter(|fact| crate::manifest::is_setting_key(&fact.key))
        .take(MAX_FACTS)
        .map(|fact| (fact.key.as_str().to_owned(), clean(&fact.value, 256)))
        .collect()
}

/// Bytes held.
pub(super) fn memory(found: &api::MemoryReport) -> core::MemoryReport {
    core::MemoryReport {
        model_bytes: found.model_bytes,
        scratch_bytes: found.scratch_bytes,
    }
}

/// A failed call.
pub(crate) fn error(found: &api::EngineError) -> core::EngineError {
    use core::EngineErrorCode as Code;
    let code = match found.code {
        api::ErrorCode::INVALID_ARGUMENT => Code::InvalidArgument,
        api::ErrorCode::CONFIG_INVALID => Code::ConfigInvalid,
        api::ErrorCode::ARTIFACT_INVALID => Code::ArtifactInvalid,
        api::ErrorCode::UNSUPPORTED => Code::Unsupported,
        api::ErrorCode::OUT_OF_MEMORY => Code::OutOfMemory,
        api::ErrorCode::INPUT_TOO_LONG => Code::InputTooLong,
        api::ErrorCode::NON_FINITE => Code::NonFinite,
        api::ErrorCode::CANCELLED => Code::Cancelled,
        api::ErrorCode::DEADLINE_EXCEEDED => Code::DeadlineExceeded,
        api::ErrorCode::DEVICE => Code::Device,
        api::ErrorCode::GRAMMAR_INVALID => Code::GrammarInvalid,
        api::ErrorCode::GRAMMAR_UNAVAILABLE => Code::GrammarUnavailable,
        api::ErrorCode::PANIC => Code::Panic,
        api::ErrorCode::INTERNAL => Code::Internal,
        api::ErrorCode(other) => Code::Other(other),
    };
    let state = match found.state {
        // A panic leaves the engine in an unknown state, whatever it says.
        _ if code == Code::Panic => core::EngineState::EngineBad,
        api::EngineState::USABLE => core::EngineState::Usable,
        api::EngineState::MODEL_BAD => core::EngineState::ModelBad,
        _ => core::EngineState::EngineBad,
    };
    core::EngineError::new(code, state, clean(&found.message, MAX_MESSAGE))
}

/// Foreign text without control characters, cut to `most` bytes at a character's end.
pub(super) fn clean(text: &str, most: usize) -> String {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end]
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded() -> api::LoadedModel {
        api::LoadedModel {
            model: api::ModelRef(1),
            dims: 384,
            max_tokens: 512,
            max_concurrency: 2,
            memory_bytes: 1,
            extra: RVec::new(),
        }
    }

    #[test]
    fn a_loaded_model_is_checked_by_field() {
        let checkpoint = Some(core::Preempt::Checkpoint);
        assert_eq!(loaded_model(&loaded(), true, checkpoint).unwrap().dims, 384);
        let check = |change: &dyn Fn(&mut api::LoadedModel), preempt, words: &str| {
            let mut changed = loaded();
            change(&mut changed);
            let message = loaded_model(&changed, true, preempt).unwrap_err();
            assert!(message.contains(words), "{message}");
        };
        check(&|m| m.dims = 0, None, "dims: expected 1 to 65536, found 0");
        check(&|m| m.dims = u32::MAX, None, "dims: expected");
        check(&|m| m.max_tokens = 0, None, "max_tokens: expected");
        check(
            &|m| m.max_concurrency = 0,
            None,
            "max_concurrency: expected 1 to 1024, found 0",
        );
        check(&|m| m.max_concurrency = 1, checkpoint, "max_concurrency: expected 2 to");
        assert_eq!(
            loaded_model(&api::LoadedModel { dims: 0, ..loaded() }, false, None)
                .unwrap()
                .dims,
            0
        );
    }

    #[test]
    fn facts_and_messages_are_cut_and_cleaned() {
        let mut found = loaded();
        found.extra = (0..100)
            .map(|n| api::KeyValue::new(format!("k{n}"), "v\n"))
            .chain([api::KeyValue::new("Bad key", "x")])
            .collect();
        let facts = loaded_model(&found, true, None).unwrap().extra;
        assert_eq!(facts.len(), MAX_FACTS);
        assert_eq!(facts[0], ("k0".to_owned(), "v ".to_owned()));
        let long = api::EngineError::new(api::ErrorCode::INTERNAL, format!("a\n{}", "é".repeat(5000)));
        let message = error(&long).message;
        assert!(
            message.starts_with("a é") && message.len() <= MAX_MESSAGE,
            "{}",
            message.len()
        );
    }

    #[test]
    fn unknown_integers_are_read_as_the_contract_says() {
        let made = |code, state| {
            error(&api::EngineError {
                code: api::ErrorCode(code),
                state: api::EngineState(state),
                message: RString::new(),
            })
        };
        assert_eq!(made(0x8000_0001, 0).code, core::EngineErrorCode::Other(0x8000_0001));
        assert_eq!(made(14, 77).state, core::EngineState::EngineBad);
        assert_eq!(made(13, 0).state, core::EngineState::EngineBad);
        assert_eq!(preempt(api::Preempt(9)), core::Preempt::Quantum);
        assert_eq!(kind(api::EngineKind(9)), None);
    }
}
