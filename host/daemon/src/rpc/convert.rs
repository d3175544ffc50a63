//! How the errors of the daemon's rooms and of other crates become public codes. The only place where they do.
//!
//! State: none. Callers: operations, through `?`. Not known here: requests. A message goes through as it is: each
//! error says what was wrong, what was expected and what to do, and none holds a text, a token or a vector (LOG-11).

use std::io::ErrorKind;

use synapse_catalog::SelectorError;
use synapse_core::engine::{EngineError, EngineErrorCode, EngineState};
use synapse_core::limits::{CapExceeded, PatienceError};
use synapse_core::schedule::NotAdmitted;
use synapse_loader::LoaderError;

use super::error::ServiceError;
use crate::lane::profile::ShapeRefused;
use crate::lane::select::NoLane;
use crate::models::ModelsError;
use crate::plugins::EngineUnavailable;
use crate::schedule::{CallError, Refused};
use crate::store::StoreError;
use crate::task::TaskFailed;
use crate::text::TextError;

/// After so many milliseconds a disk may have room again, or a lock may be gone.
const STORAGE_RETRY_MS: u64 = 1_000;

/// Where an engine failed, for `detail.stage` (ERR-08).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// While a model was loaded: permanent, never tried again by itself (ERR-06).
    Load,
    /// During a call.
    Call,
}

/// An engine's failure as a public error (ERR-03, OQ-7).
#[must_use]
pub fn engine(error: &EngineError, stage: Stage) -> ServiceError {
    use synapse_wire::client::ErrorCode;
    let code = match error.code {
        EngineErrorCode::ArtifactInvalid => ErrorCode::ArtifactInvalid,
        EngineErrorCode::InputTooLong => ErrorCode::InputTooLong,
        EngineErrorCode::NonFinite => ErrorCode::NonFiniteOutput,
        EngineErrorCode::Cancelled => ErrorCode::Cancelled,
        EngineErrorCode::DeadlineExceeded => ErrorCode::DeadlineExceeded,
        EngineErrorCode::GrammarInvalid => ErrorCode::GrammarInvalid,
        EngineErrorCode::GrammarUnavailable => ErrorCode::GrammarUnavailableInBuild,
        EngineErrorCode::Unsupported => ErrorCode::Unsupported,
        EngineErrorCode::Quarantined => ErrorCode::ProbeRequired,
        EngineErrorCode::InvalidArgument
        | EngineErrorCode::ConfigInvalid
        | EngineErrorCode::OutOfMemory
        | EngineErrorCode::Device
        | EngineErrorCode::Panic
        | EngineErrorCode::Crashed
        | EngineErrorCode::Internal
        | EngineErrorCode::Other(_) => ErrorCode::EngineCrashed,
    };
    let crashed = code == ErrorCode::EngineCrashed;
    let public = ServiceError::new(code, error.message.clone()).detail(|detail| {
        detail.engine_code = Some(error.code.name().to_owned());
        let stage = match (error.code, &error.crash, stage) {
            (EngineErrorCode::Panic, ..) => "panic",
            (_, Some(crash), _) => crash.stage,
            (_, None, Stage::Load) => "load",
            (_, None, Stage::Call) => "call",
        };
        detail.stage = Some(stage.to_owned());
        detail.tail = error.crash.as_ref().map(|crash| crash.last_words.clone());
        detail.reason = (error.code == EngineErrorCode::Quarantined).then(|| String::from("quarantined"));
    });
    // A broken call (the host's or the engine's fault) is broken again with the same request; a device or memory that
    // was short may be there later.
    let lasting = matches!(
        error.code,
        EngineErrorCode::InvalidArgument | EngineErrorCode::ConfigInvalid
    );
    // An engine that is not called again in this process fails every later request too.
    let closed = error.state == EngineState::EngineBad;
    if crashed && (stage == Stage::Load || lasting || closed) {
        public.permanent()
    } else {
        public
    }
}

impl From<CallError> for ServiceError {
    fn from(error: CallError) -> Self {
        let message = error.to_string();
        match error {
            CallError::NotStarted { retry_after_ms } => Self::deadline_exceeded(message).retry_after(retry_after_ms),
            CallError::Deadline => Self::deadline_exceeded(message),
            CallError::Cancelled => Self::cancelled(),
            CallError::Engine(error) => engine(&error, Stage::Call),
            CallError::Panicked(_) => {
                Self::engine_crashed(message).detail(|detail| detail.stage = Some(String::from("panic")))
            }
            CallError::Closed(_) => Self::model_loading(message),
        }
    }
}

impl From<Refused> for ServiceError {
    fn from(refused: Refused) -> Self {
        let message = refused.to_string();
        match refused {
            Refused::NotAdmitted { why, retry_after_ms } => Self::from(why).retry_after(retry_after_ms),
            Refused::Closed(_) => Self::model_loading(message),
        }
    }
}

impl From<NotAdmitted> for ServiceError {
    fn from(why: NotAdmitted) -> Self {
        let message = why.to_string();
        match why {
            NotAdmitted::Depth { .. } | NotAdmitted::Bytes { .. } => Self::queue_full(message),
            NotAdmitted::Closed => Self::model_loading(message),
            NotAdmitted::Late | NotAdmitted::TooBusy { .. } => Self::deadline_exceeded(message),
            NotAdmitted::NeverFits { asked, limit } => Self::limit_exceeded(message).detail(|detail| {
                detail.limit = Some(String::from("schedule.lane_byte_budget"));
                detail.maximum = Some(limit);
                detail.actual = Some(asked);
            }),
        }
    }
}

impl From<NoLane> for ServiceError {
    fn from(no_lane: NoLane) -> Self {
        let message = no_lane.to_string();
        match no_lane {
            NoLane::UnknownModel { model } => Self::unknown_model(message).detail(|detail| detail.model = Some(model)),
            NoLane::UnknownLane { asked, .. } => {
                Self::unknown_model(message).detail(|detail| detail.lane = Some(asked))
            }
            NoLane::OtherKind { model, .. } => Self::unsupported(message).detail(|detail| detail.model = Some(model)),
            NoLane::NotInstalled { model } => {
                Self::model_not_installed(message).detail(|detail| detail.model = Some(model))
            }
            NoLane::NoRow { model } | NoLane::NoEngine { model, .. } => {
                Self::not_certified(message).detail(|detail| detail.model = Some(model))
            }
            NoLane::PluginRefused { plugin, reason, .. } => Self::plugin_refused(message).detail(|detail| {
                detail.plugin = Some(plugin);
                detail.reason = Some(reason);
            }),
        }
    }
}

impl From<ShapeRefused> for ServiceError {
    fn from(refused: ShapeRefused) -> Self {
        let (message, field) = (
            refused.to_string(),
            match refused {
                ShapeRefused::Dimensions { .. } => "dimensions",
                ShapeRefused::AlwaysNormalized { .. } => "normalize",
            },
        );
        Self::unsupported(message).detail(|detail| detail.field = Some(field.to_owned()))
    }
}

impl From<CapExceeded> for ServiceError {
    fn from(exceeded: CapExceeded) -> Self {
        Self::limit_exceeded(exceeded.to_string()).detail(|detail| {
            detail.limit = Some(exceeded.cap.name().to_owned());
            detail.maximum = Some(exceeded.limit);
            detail.actual = Some(exceeded.found);
        })
    }
}

impl From<PatienceError> for ServiceError {
    fn from(error: PatienceError) -> Self {
        let field = match error {
            PatienceError::QueueBeyondDeadline { .. } => "max_queue_ms",
            PatienceError::DeadlineRange { .. } => "deadline_ms",
        };
        Self::invalid_params(error.to_string()).detail(|detail| detail.field = Some(field.to_owned()))
    }
}

impl From<SelectorError> for ServiceError {
    fn from(error: SelectorError) -> Self {
        Self::invalid_params(error.to_string()).detail(|detail| detail.field = Some(String::from("model")))
    }
}

impl From<TextError> for ServiceError {
    fn from(error: TextError) -> Self {
        let message = error.to_string();
        match error {
            TextError::Refused(_) => Self::artifact_invalid(message),
            TextError::Template { .. } => Self::internal(message),
            TextError::TooManyBytes { found, limit } => Self::limit_exceeded(message).detail(|detail| {
                detail.limit = Some(String::from("inline.max_item_bytes"));
                detail.maximum = Some(limit);
                detail.actual = Some(found);
            }),
            TextError::TooManyTokens { found, limit } => Self::input_too_long(message).detail(|detail| {
                detail.maximum = Some(u64::from(limit));
                detail.actual = Some(u64::from(found));
            }),
            TextError::QueryTooLong { found, limit } => Self::input_too_long(message).detail(|detail| {
                detail.field = Some(String::from("query"));
                detail.maximum = Some(u64::from(limit));
                detail.actual = Some(u64::from(found));
            }),
            TextError::NoPairs => Self::unsupported(message),
            TextError::ChatTemplate(_) => Self::artifact_invalid(message),
            TextError::ChatRefused(_) => Self::unsupported(message),
            TextError::Failed(_) => Self::invalid_text(message),
        }
    }
}

impl From<ModelsError> for ServiceError {
    fn from(error: ModelsError) -> Self {
        let message = error.to_string();
        match error {
            ModelsError::NotInstalled { model } => {
                Self::model_not_installed(message).detail(|detail| detail.model = Some(model))
            }
            ModelsError::Download { .. } => Self::download_failed(message),
            ModelsError::Prerequisite { .. } => Self::download_failed(message).permanent(),
            ModelsError::ArtifactInvalid { .. } => Self::artifact_invalid(message),
            ModelsError::Unsupported(_) => Self::unsupported(message),
            ModelsError::InUse { model, .. } | ModelsError::Pinned { model, .. } => {
                Self::unsupported(message).detail(|detail| {
                    detail.model = Some(model);
                    detail.reason = Some(String::from("in_use"));
                })
            }
            ModelsError::NoSpace { .. } => Self::storage_failed(message).transient(STORAGE_RETRY_MS),
            ModelsError::Storage { source, .. } => file_failed(message, &source),
            ModelsError::Tokenizer(error) => Self::from(error),
            ModelsError::Cancelled => Self::cancelled(),
        }
    }
}

impl From<StoreError> for ServiceError {
    fn from(error: StoreError) -> Self {
        let passes = error.may_pass();
        let failed = Self::storage_failed(error.to_string());
        if passes {
            failed.transient(STORAGE_RETRY_MS)
        } else {
            failed
        }
    }
}

/// A file that could not be read or written. It may be later only where the disk or a quota has no room: permissions, a
/// read-only disk and a failing one stay.
fn file_failed(message: String, source: &std::io::Error) -> ServiceError {
    let failed = ServiceError::storage_failed(message);
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            failed.transient(STORAGE_RETRY_MS)
        }
        _ => failed,
    }
}

impl From<EngineUnavailable> for ServiceError {
    fn from(error: EngineUnavailable) -> Self {
        match error {
            EngineUnavailable::Loader(error) => error.into(),
            EngineUnavailable::Store(error) => error.into(),
        }
    }
}

impl From<LoaderError> for ServiceError {
    fn from(error: LoaderError) -> Self {
        let message = error.to_string();
        let refused = |id: String, reason: Option<String>| {
            Self::plugin_refused(message.clone()).detail(|detail| {
                detail.plugin = Some(id);
                detail.reason = reason;
            })
        };
        match error {
            LoaderError::Io { source, .. } => file_failed(message, &source),
            LoaderError::NoExec { .. } | LoaderError::Trust { .. } => Self::storage_failed(message),
            LoaderError::NotReady { id, status } => refused(id, Some(status)),
            LoaderError::Load { id, reason, .. } => refused(id, Some(reason.as_str().to_owned())),
            LoaderError::SonameConflict { id, .. } => refused(id, Some(String::from("soname_conflict"))),
            LoaderError::NoEngine { .. } => Self::unsupported(message),
            LoaderError::EngineBad { id, .. } => Self::engine_crashed(message.clone()).permanent().detail(|detail| {
                detail.plugin = Some(id);
                detail.stage = Some(String::from("panic"));
            }),
            LoaderError::Engine { id, .. } => Self::engine_crashed(message.clone()).permanent().detail(|detail| {
                detail.plugin = Some(id);
                detail.stage = Some(String::from("load"));
            }),
        }
    }
}

impl From<TaskFailed> for ServiceError {
    fn from(failed: TaskFailed) -> Self {
        match failed {
            TaskFailed::Panicked { .. } => Self::internal(format!("{failed}; the daemon's log has more")),
            TaskFailed::Stopped { .. } => Self::shutting_down(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use synapse_core::engine::{Crash, EngineState};
    use synapse_wire::client::{Class, ErrorCode};

    use super::*;

    /// Proves ERR-03, ERR-06.
    #[test]
    fn engine_codes_become_client_codes_and_none_leaks() {
        use EngineErrorCode as E;
        let cases = [
            (E::ArtifactInvalid, "artifact_invalid", Class::Permanent),
            (E::OutOfMemory, "engine_crashed", Class::Transient),
            (E::ConfigInvalid, "engine_crashed", Class::Permanent),
            (E::InvalidArgument, "engine_crashed", Class::Permanent),
            (E::Unsupported, "unsupported", Class::Permanent),
            (E::InputTooLong, "input_too_long", Class::Permanent),
            (E::NonFinite, "non_finite_output", Class::Permanent),
            (E::Cancelled, "cancelled", Class::Permanent),
            (E::DeadlineExceeded, "deadline_exceeded", Class::Transient),
            (E::Device, "engine_crashed", Class::Transient),
            (E::GrammarInvalid, "grammar_invalid", Class::Permanent),
            (E::GrammarUnavailable, "grammar_unavailable_in_build", Class::Permanent),
            (E::Panic, "engine_crashed", Class::Transient),
            (E::Internal, "engine_crashed", Class::Transient),
            (E::Crashed, "engine_crashed", Class::Transient),
            (E::Quarantined, "probe_required", Class::Permanent),
            (E::Other(900), "engine_crashed", Class::Transient),
        ];
        for (code, expected, class) in cases {
            let failed = EngineError::new(code, EngineState::Usable, "words");
            let public = engine(&failed, Stage::Call);
            assert_eq!((public.code().as_str(), public.class()), (expected, class), "{code:?}");
            let load = engine(&failed, Stage::Load);
            if *load.code() == ErrorCode::EngineCrashed {
                assert_eq!(load.class(), Class::Permanent, "a failed load is permanent: {code:?}");
            }
            let stage = if code == E::Panic { "panic" } else { "load" };
            assert_eq!(load.facts().unwrap().stage.as_deref(), Some(stage));
        }
    }

    /// Proves ERR-08, ERR-13.
    #[test]
    fn a_lost_process_leaves_its_stage_and_its_last_words() {
        let mut failed = EngineError::new(EngineErrorCode::Crashed, EngineState::EngineBad, "the worker ended");
        failed.crash = Some(Box::new(Crash {
            stage: "timeout",
            last_words: String::from("last line"),
        }));
        let public = engine(&failed, Stage::Call);
        let facts = public.facts().unwrap();
        assert_eq!(
            (facts.stage.as_deref(), facts.tail.as_deref()),
            (Some("timeout"), Some("last line"))
        );
        let refused = EngineError::new(EngineErrorCode::Quarantined, EngineState::ModelBad, "three crashes");
        let public = engine(&refused, Stage::Call);
        assert_eq!(public.facts().unwrap().reason.as_deref(), Some("quarantined"));
    }

    /// Proves ERR-04. A full disk and a lock pass, and their words say what to do; what a restart or an operator must
    /// mend does not.
    #[test]
    fn a_full_disk_and_a_lock_pass_and_damage_stays() {
        let path = || PathBuf::from("/data/store.db");
        let detail = || String::from("words");
        let io = |kind: ErrorKind| {
            ServiceError::from(ModelsError::Storage {
                path: path(),
                source: kind.into(),
            })
        };
        let (passes, stays) = (
            [
                (StoreError::Full { path: path() }.into(), "free some"),
                (StoreError::Locked { path: path() }.into(), "Close whatever has it open"),
                (
                    StoreError::Io {
                        path: path(),
                        detail: detail(),
                    }
                    .into(),
                    "check the disk",
                ),
                (io(ErrorKind::StorageFull), "/data/store.db"),
                (io(ErrorKind::QuotaExceeded), "/data/store.db"),
            ],
            [
                (
                    StoreError::Corrupt {
                        path: path(),
                        detail: detail(),
                    }
                    .into(),
                    "move store.db",
                ),
                (
                    StoreError::Unwritable {
                        path: path(),
                        detail: detail(),
                    }
                    .into(),
                    "may write it",
                ),
                (
                    StoreError::WriterGone {
                        path: path(),
                        reason: detail(),
                    }
                    .into(),
                    "started again",
                ),
                (
                    StoreError::Sql {
                        path: path(),
                        detail: detail(),
                    }
                    .into(),
                    "words",
                ),
                (io(ErrorKind::PermissionDenied), "/data/store.db"),
                (io(ErrorKind::ReadOnlyFilesystem), "/data/store.db"),
            ],
        );
        let check = |error: &ServiceError, class, words: &str| {
            assert_eq!(
                (error.code(), error.class()),
                (&ErrorCode::StorageFailed, class),
                "{error}"
            );
            assert_eq!(error.retry_after_ms().is_some(), class == Class::Transient, "{error}");
            assert_eq!(error.safe_to_retry_same_request(), class == Class::Transient, "{error}");
            assert!(error.message().contains(words), "{error}");
        };
        passes
            .iter()
            .for_each(|(error, words)| check(error, Class::Transient, words));
        stays
            .iter()
            .for_each(|(error, words)| check(error, Class::Permanent, words));
    }

    #[test]
    fn a_refused_call_says_when_to_come_back() {
        let why = NotAdmitted::Depth { limit: 3 };
        let public = ServiceError::from(Refused::NotAdmitted {
            why,
            retry_after_ms: 77,
        });
        assert_eq!(
            (public.code(), public.retry_after_ms()),
            (&ErrorCode::QueueFull, Some(77))
        );
        let public = ServiceError::from(CallError::NotStarted { retry_after_ms: 5 });
        assert_eq!(
            (public.code(), public.retry_after_ms()),
            (&ErrorCode::DeadlineExceeded, Some(5))
        );
        let never = ServiceError::from(NotAdmitted::NeverFits { asked: 9, limit: 8 });
        assert_eq!(
            (never.code(), never.facts().unwrap().actual),
            (&ErrorCode::LimitExceeded, Some(9))
        );
    }
}
