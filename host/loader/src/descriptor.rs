//! What a library says about itself, and the only place of this crate where that is JSON.
//!
//! State: none. Callers: the describe child writes it, the scan reads it back, [`crate::ScanMemory`] keeps it. The text is untrusted: every string is capped and the support list is bounded before it becomes a value.

use serde::{Deserialize, Serialize};
use synapse_core::engine::{EngineIdentity, EngineKind, EngineSupport, Preempt};

use crate::bundle::Refusal;

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
}

/// Why a text or a library's answer is no descriptor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DescriptorError(pub String);

/// The longest name, version or flag in bytes.
pub(crate) const MAX_WORD: usize = 128;
/// The most entries of any list.
pub(crate) const MAX_LIST: usize = 256;
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
        };
        descriptor.check()?;
        Ok(descriptor)
    }

    /// Whether every part is within its bounds: words of 1 to 128 printable ASCII bytes without spaces, build flags
    /// sorted without duplicates, 1 to 256 distinct supports.
    ///
    /// # Errors
    /// [`DescriptorError`] names the first field that is not.
    pub fn check(&self) -> Result<(), DescriptorError> {
        word("id", &self.id)?;
        word("identity.engine", &self.identity.engine)?;
        word("identity.version", &self.identity.version)?;
        sorted_words("identity.build_flags", &self.identity.build_flags)?;
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

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RefusalForm {
    refused: String,
    message: String,
}

/// How a describe child says that the bundle is refused, as one line of JSON.
pub(crate) fn refusal_to_json(refusal: &Refusal) -> String {
    let form = RefusalForm {
        refused: refusal.reason.as_str().to_owned(),
        message: refusal.message.clone(),
    };
    serde_json::to_string(&form).unwrap_or_else(|error| unreachable!("strings always serialise: {error}"))
}

/// The refusal from [`refusal_to_json`]'s text; the message is cut to 1,000 characters.
pub(crate) fn refusal_from_json(text: &str) -> Option<Refusal> {
    let form: RefusalForm = serde_json::from_str(text).ok()?;
    let message: String = form.message.chars().take(1000).collect();
    Some(Refusal::new(form.refused.parse().ok()?, message))
}

/// Settings for an engine as the ABI wants them: one JSON object of strings.
pub(crate) fn settings_to_json(settings: &std::collections::BTreeMap<String, String>) -> String {
    serde_json::to_string(settings).unwrap_or_else(|error| unreachable!("strings always serialise: {error}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> Descriptor {
        let support = |kind, preempt| EngineSupport {
            kind,
            format: "onnx".to_owned(),
            dtype: "f32".to_owned(),
            preempt,
            thread_invariant: true,
            f32_exact: false,
        };
        Descriptor {
            id: "toy".to_owned(),
            package_version: semver::Version::new(1, 2, 3),
            identity: EngineIdentity {
                engine: "toy".to_owned(),
                version: "7".to_owned(),
                build_flags: vec!["a".to_owned(), "b".to_owned()],
            },
            supports: vec![
                support(EngineKind::Embed, Preempt::Checkpoint),
                support(EngineKind::Rerank, Preempt::Share),
                support(EngineKind::Generate, Preempt::Quantum),
            ],
        }
    }

    #[test]
    fn a_descriptor_survives_its_json() {
        assert_eq!(Descriptor::from_json(&descriptor().to_json()).unwrap(), descriptor());
        let refusal = Refusal::new(crate::RefusalReason::LinkFailed, "a\nb");
        assert_eq!(refusal_from_json(&refusal_to_json(&refusal)), Some(refusal));
    }

    #[test]
    fn untrusted_descriptors_are_checked_by_field() {
        let check = |change: &dyn Fn(&mut Descriptor), words: &str| {
            let mut changed = descriptor();
            change(&mut changed);
            let message = Descriptor::from_json(&changed.to_json()).unwrap_err().to_string();
            assert!(message.contains(words), "{message}");
        };
        check(&|d| d.id = String::new(), "id: expected 1 to 128 bytes, found 0");
        check(
            &|d| d.identity.engine = "x".repeat(129),
            "identity.engine: expected 1 to 128 bytes, found 129",
        );
        check(
            &|d| d.identity.version = "1 2".to_owned(),
            "identity.version: expected printable ASCII",
        );
        check(
            &|d| d.identity.build_flags.reverse(),
            "identity.build_flags: expected sorted",
        );
        check(
            &|d| d.identity.build_flags[1] = "a".to_owned(),
            "identity.build_flags: expected sorted",
        );
        check(&|d| d.supports.clear(), "supports: expected 1 to 256 entries, found 0");
        check(&|d| d.supports.push(d.supports[0].clone()), "listed twice");
        check(
            &|d| d.supports[0].format = "\u{1b}[2J".to_owned(),
            "supports.format: expected printable ASCII",
        );
        let newer = descriptor().to_json().replace("\"form\":1", "\"form\":2");
        assert!(Descriptor::from_json(&newer).is_err());
    }
}
