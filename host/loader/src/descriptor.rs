//! What a library says about itself, and the only place where that is JSON.
//!
//! State: none. Callers: `synapse-worker --describe` writes it, the scan reads it back, [`crate::ScanMemory`] keeps
//! it. The text is untrusted: every string is capped and the support list is bounded before it becomes a value.

use serde::{Deserialize, Serialize};
use synapse_core::engine::{EngineIdentity, EngineKind, EngineSupport, Preempt};

/// What a library says about itself, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The bundle's id; equals the manifest's.
    pub id: String,
    /// The package version; equals the manifest's.
    pub package_version: semver::Version,
    /// The numeric identity of the engine (FPR-03).
    pub identity: EngineIdentity,
    /// What the engine serves; at least one entry.
    pub supports: Vec<EngineSupport>,
    /// The extensions offered, `NAME/REV`, sorted.
    pub extensions: Vec<String>,
}

/// Why a text or a library's answer is no descriptor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DescriptorError(pub String);

/// The longest name, version or flag in bytes.
const MAX_WORD: usize = 128;
/// The most entries of any list.
const MAX_LIST: usize = 256;
/// The number of this JSON form; another one is scanned again.
const FORM: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    form: u32,
    id: String,
    package_version: semver::Version,
    engine: String,
    engine_version: String,
    build_flags: Vec<String>,
    supports: Vec<SupportForm>,
    extensions: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SupportForm {
    kind: KindForm,
    format: String,
    dtype: String,
    preempt: PreemptForm,
    thread_invariant: bool,
    f32_exact: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KindForm {
    Embed,
    Rerank,
    Generate,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PreemptForm {
    Checkpoint,
    Share,
    Quantum,
}

impl Descriptor {
    /// The descriptor as one line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let form = Form {
            form: FORM,
            id: self.id.clone(),
            package_version: self.package_version.clone(),
            engine: self.identity.engine.clone(),
            engine_version: self.identity.version.clone(),
            build_flags: self.identity.build_flags.clone(),
            supports: self.supports.iter().map(support_form).collect(),
            extensions: self.extensions.clone(),
        };
        serde_json::to_string(&form)
            .unwrap_or_else(|error| unreachable!("strings and numbers always serialise: {error}"))
    }

    /// The descriptor from [`Self::to_json`]'s text, checked as [`Self::check`] does.
    ///
    /// # Errors
    /// [`DescriptorError`] names the field.
    pub fn from_json(text: &str) -> Result<Self, DescriptorError> {
        let form: Form = serde_json::from_str(text).map_err(|error| DescriptorError(error.to_string()))?;
        if form.form != FORM {
            return Err(DescriptorError(format!("form: expected {FORM}, found {}", form.form)));
        }
        let descriptor = Self {
            id: form.id,
            package_version: form.package_version,
            identity: EngineIdentity {
                engine: form.engine,
                version: form.engine_version,
                build_flags: form.build_flags,
            },
            supports: form.supports.into_iter().map(support).collect(),
            extensions: form.extensions,
        };
        descriptor.check()?;
        Ok(descriptor)
    }

    /// Whether every part is within its bounds: words of 1 to 128 printable ASCII bytes without spaces, build flags
    /// and extensions sorted without duplicates, 1 to 256 distinct supports.
    ///
    /// # Errors
    /// [`DescriptorError`] names the first field that is not.
    pub fn check(&self) -> Result<(), DescriptorError> {
        word("id", &self.id)?;
        word("identity.engine", &self.identity.engine)?;
        word("identity.version", &self.identity.version)?;
        sorted_words("identity.build_flags", &self.identity.build_flags)?;
        sorted_words("extensions", &self.extensions)?;
        if self.supports.is_empty() || self.supports.len() > MAX_LIST {
            let found = self.supports.len();
            return Err(DescriptorError(format!(
                "supports: expected 1 to {MAX_LIST} entries, found {found}"
            )));
        }
        for (index, support) in self.supports.iter().enumerate() {
            word("supports.format", &support.format)?;
            word("supports.dtype", &support.dtype)?;
            let same = |other: &&EngineSupport| {
                (other.kind, &other.format, &other.dtype) == (support.kind, &support.format, &support.dtype)
            };
            if let Some(twin) = self.supports[..index].iter().find(same) {
                return Err(DescriptorError(format!(
                    "supports: {:?} of {} in {} is listed twice",
                    twin.kind, twin.format, twin.dtype
                )));
            }
        }
        Ok(())
    }
}

fn word(field: &str, text: &str) -> Result<(), DescriptorError> {
    if text.is_empty() || text.len() > MAX_WORD {
        let found = text.len();
        return Err(DescriptorError(format!(
            "{field}: expected 1 to {MAX_WORD} bytes, found {found}"
        )));
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let shown = text.escape_debug();
        return Err(DescriptorError(format!(
            "{field}: expected printable ASCII without spaces, found \"{shown}\""
        )));
    }
    Ok(())
}

fn sorted_words(field: &str, list: &[String]) -> Result<(), DescriptorError> {
    if list.len() > MAX_LIST {
        let found = list.len();
        return Err(DescriptorError(format!(
            "{field}: expected at most {MAX_LIST} entries, found {found}"
        )));
    }
    for text in list {
        word(field, text)?;
    }
    if !list.is_sorted_by(|a, b| a < b) {
        return Err(DescriptorError(format!(
            "{field}: expected sorted entries without duplicates"
        )));
    }
    Ok(())
}

fn support_form(support: &EngineSupport) -> SupportForm {
    SupportForm {
        kind: match support.kind {
            EngineKind::Embed => KindForm::Embed,
            EngineKind::Rerank => KindForm::Rerank,
            EngineKind::Generate => KindForm::Generate,
        },
        format: support.format.clone(),
        dtype: support.dtype.clone(),
        preempt: match support.preempt {
            Preempt::Checkpoint => PreemptForm::Checkpoint,
            Preempt::Share => PreemptForm::Share,
            Preempt::Quantum => PreemptForm::Quantum,
        },
        thread_invariant: support.thread_invariant,
        f32_exact: support.f32_exact,
    }
}

fn support(form: SupportForm) -> EngineSupport {
    EngineSupport {
        kind: match form.kind {
            KindForm::Embed => EngineKind::Embed,
            KindForm::Rerank => EngineKind::Rerank,
            KindForm::Generate => EngineKind::Generate,
        },
        format: form.format,
        dtype: form.dtype,
        preempt: match form.preempt {
            PreemptForm::Checkpoint => Preempt::Checkpoint,
            PreemptForm::Share => Preempt::Share,
            PreemptForm::Quantum => Preempt::Quantum,
        },
        thread_invariant: form.thread_invariant,
        f32_exact: form.f32_exact,
    }
}
