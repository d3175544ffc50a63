//! The table of public errors: every code a client can see, with its number, class and advice.
//!
//! State: none. Callers: [`ServiceError`] takes its number, class and advice from here; docs/errors.md is generated
//! from [`TABLE`]. The errors of other crates become public codes in `rpc/convert.rs` and nowhere else. Not known here:
//! connections and requests.

use synapse_wire::client::{Class, ErrorCode};

pub use super::failure::ServiceError;

/// One public error code: what it means and how a client should treat it.
#[derive(Debug)]
pub struct ErrorRow {
    /// The code.
    pub code: ErrorCode,
    /// The JSON-RPC integer, fixed for ever. `invalid_request` has four, by what is wrong with the request.
    pub integer: i32,
    /// Whether trying again later can help, unless the failure itself says otherwise.
    pub class: Class,
    /// After how many milliseconds to try again, unless the failure itself says otherwise; transient codes only.
    pub retry_after_ms: Option<u64>,
    /// Whether the very same request may be sent again without doing anything twice.
    pub safe_to_retry_same_request: bool,
    /// What happened.
    pub meaning: &'static str,
    /// What the client or the operator should do.
    pub remedy: &'static str,
}

/// The line is not JSON.
pub const PARSE_ERROR: i32 = -32700;
/// The JSON is no request.
pub const INVALID_REQUEST: i32 = -32600;
/// No such method.
pub const METHOD_NOT_FOUND: i32 = -32601;
/// The parameters are wrong.
pub const INVALID_PARAMS: i32 = -32602;

/// A row whose failure passes by itself.
const fn transient(code: ErrorCode, integer: i32, after: u64, meaning: &'static str, remedy: &'static str) -> ErrorRow {
    ErrorRow {
        code,
        integer,
        class: Class::Transient,
        retry_after_ms: Some(after),
        safe_to_retry_same_request: true,
        meaning,
        remedy,
    }
}

/// A row whose failure stays until something changes.
const fn permanent(code: ErrorCode, integer: i32, meaning: &'static str, remedy: &'static str) -> ErrorRow {
    ErrorRow {
        code,
        integer,
        class: Class::Permanent,
        retry_after_ms: None,
        safe_to_retry_same_request: false,
        meaning,
        remedy,
    }
}

/// Every public code (ERR-01, ERR-02, DECISIONS "errors"). Rows are added at the end and never renumbered.
pub static TABLE: &[ErrorRow] = &[
    permanent(
        ErrorCode::InvalidRequest,
        INVALID_PARAMS,
        "The line is not JSON (-32700), not a request (-32600), names no known method (-32601), or its parameters are \
         wrong (-32602).",
        "Correct the request; `detail.field` names the field where there is one.",
    ),
    transient(
        ErrorCode::QueueFull,
        -32000,
        100,
        "As much work waits or runs as the daemon accepts: of the lane, the connection or the client process.",
        "Send fewer requests at once; try again after `retry_after_ms`.",
    ),
    transient(
        ErrorCode::DeadlineExceeded,
        -32001,
        1_000,
        "The request's deadline passed, or it could not start within `max_queue_ms`.",
        "Try again later, or allow more time with `deadline_ms` and `max_queue_ms`.",
    ),
    transient(
        ErrorCode::ModelLoading,
        -32002,
        500,
        "The model is installed but not in memory yet; its load has been started (`detail.job_id`).",
        "Try again after `retry_after_ms`, or poll the job.",
    ),
    permanent(
        ErrorCode::NotCertified,
        -32003,
        "No lane may serve this model as asked: none is available, or none of them is certified for it.",
        "`synapse doctor` says what is missing.",
    ),
    permanent(
        ErrorCode::SubstitutionRejected,
        -32004,
        "A lane could serve, but not in the numeric space or under the alias epoch that the request demands.",
        "Rebuild the index for the space that serves now, or drop the constraint.",
    ),
    permanent(
        ErrorCode::ArtifactInvalid,
        -32005,
        "A model file or tokenizer is not what its record says. No engine has opened it.",
        "Remove the model and pull it again; if that fails, the record or the source is wrong.",
    ),
    transient(
        ErrorCode::EngineCrashed,
        -32006,
        1_000,
        "The engine failed; `detail.stage` says where (`load`, `call`, `panic`, `timeout`). A failure to load is \
         permanent and is not tried again by itself.",
        "Try again where the class is transient; otherwise see the daemon's log.",
    ),
    permanent(
        ErrorCode::ProbeRequired,
        -32007,
        "The model must pass a probe before it may serve, for example after a quarantine (`detail.reason`).",
        "Run the probe, then try again.",
    ),
    permanent(
        ErrorCode::MigrationRequired,
        -32008,
        "The index spans a pair of numeric spaces whose equivalence was retracted (`detail.retracted_pair`).",
        "Rebuild the index for `detail.rebuild_target`.",
    ),
    transient(
        ErrorCode::ModuleRestarted,
        -32009,
        100,
        "The daemon was started anew while the job was open.",
        "Send the request again, with the same `request_key` where it had one.",
    ),
    permanent(
        ErrorCode::GrammarUnavailableInBuild,
        -32010,
        "This build of the engine has no grammar sampling.",
        "Install a build that has it, or send no grammar.",
    ),
    transient(
        ErrorCode::ShapeCompiling,
        -32011,
        5_000,
        "The device program for this input length is being compiled.",
        "Try again after `retry_after_ms`, which is the predicted delay.",
    ),
    transient(
        ErrorCode::AneResourcesExhausted,
        -32012,
        5_000,
        "The Neural Engine refused the program for lack of resources.",
        "Try again later, or unload other models.",
    ),
    transient(
        ErrorCode::AneTempSpaceLow,
        -32013,
        60_000,
        "Too little space is left for the Neural Engine's temporary files.",
        "Free disk space, then try again.",
    ),
    permanent(
        ErrorCode::UnknownModel,
        -32014,
        "The catalog has no such model, or the model has no such lane.",
        "`synapse models list` shows the catalog.",
    ),
    permanent(
        ErrorCode::ModelNotInstalled,
        -32015,
        "The model is in the catalog, but its files are not on this machine.",
        "`synapse models pull MODEL`.",
    ),
    permanent(
        ErrorCode::InputTooLong,
        -32016,
        "A text has more tokens than the model takes, and cutting it was not allowed.",
        "Shorten or split the text, or allow truncation.",
    ),
    permanent(
        ErrorCode::InvalidText,
        -32017,
        "A text is not valid Unicode, for example because of half a surrogate pair.",
        "Correct the text; the other items of a batch are served.",
    ),
    permanent(
        ErrorCode::NonFiniteOutput,
        -32018,
        "The engine's output holds a value that is not finite, so it was thrown away.",
        "Report it with the model and the engine's version; another text may work.",
    ),
    permanent(
        ErrorCode::LimitExceeded,
        -32019,
        "A size cap was passed; `detail` has its name, its value and what the request had.",
        "Send less at a time.",
    ),
    permanent(
        ErrorCode::Unsupported,
        -32020,
        "This daemon, model or engine does not offer what was asked.",
        "Leave the option out, or choose another model or lane.",
    ),
    permanent(
        ErrorCode::Cancelled,
        -32021,
        "The request or the job was cancelled by its client.",
        "Nothing; send it again if its result is wanted after all.",
    ),
    permanent(
        ErrorCode::UnknownJob,
        -32022,
        "There is no such job, or it ended so long ago that it was forgotten.",
        "`job.list` shows the jobs that are remembered.",
    ),
    permanent(
        ErrorCode::IdempotencyConflict,
        -32023,
        "The same `request_key` came with another payload.",
        "Use a new key for a new payload.",
    ),
    transient(
        ErrorCode::DownloadFailed,
        -32024,
        5_000,
        "A source could not be reached, or what it sent ended early.",
        "Try again; check the network and the source.",
    ),
    permanent(
        ErrorCode::StorageFailed,
        -32025,
        "A file or the database could not be read or written. Where the disk or a quota is full, or another process has \
         the database locked, the class is transient and nothing of the request was kept.",
        "Where the class is transient, make room or close what holds the lock, and try again; otherwise check \
         permissions and the disk. The message names the file.",
    ),
    permanent(
        ErrorCode::PluginRefused,
        -32026,
        "The engine bundle that would serve this was refused (`detail.plugin`, `detail.reason`).",
        "`synapse doctor` says why, and what to do.",
    ),
    transient(
        ErrorCode::ShuttingDown,
        -32027,
        2_000,
        "The daemon is stopping and takes no new work.",
        "Connect again when it has been started.",
    ),
    permanent(
        ErrorCode::Internal,
        -32028,
        "A fault of the daemon itself; its log has the line with this request's id.",
        "Report it with the log's line.",
    ),
    permanent(
        ErrorCode::Disabled,
        -32029,
        "A gate in the configuration is closed; `detail.config` names it.",
        "Open the gate in the user's configuration and start the daemon again.",
    ),
    permanent(
        ErrorCode::GrammarDisabled,
        -32030,
        "Grammars are switched off in the configuration (`grammar_enabled`).",
        "Open the gate in the user's configuration and start the daemon again.",
    ),
    permanent(
        ErrorCode::GrammarInvalid,
        -32031,
        "The grammar is empty, too deeply nested, or does not parse.",
        "Correct the grammar; the message says what is wrong.",
    ),
];

/// The row of a code. Codes of another version have the row of `internal`: this daemon never makes one.
#[must_use]
pub fn row(code: &ErrorCode) -> &'static ErrorRow {
    static INTERNAL: ErrorRow = permanent(ErrorCode::Internal, -32028, "", "");
    TABLE.iter().find(|row| row.code == *code).unwrap_or(&INTERNAL)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    use super::*;
    use crate::golden;

    const INTRODUCTION: &str = "\
# Errors

This page is generated from `host/daemon/src/rpc/error.rs`.

A failed request is answered with a JSON-RPC error: `error.code` is the integer, `error.message` says what was wrong,
what was expected and what to do, and `error.data` holds `{code, class, retry_after_ms?, safe_to_retry_same_request,
module_generation, request_id, detail?}`. A failed item of a batch and a failed job carry the same facts inside the
result.

Programs decide by `code`, and by `class` for a code that they do not know:

- `transient`: it may succeed later. Wait `retry_after_ms`; send the very same request again where
  `safe_to_retry_same_request` says so.
- `permanent`: it will fail again until the request or something on the machine is changed. There is no
  `retry_after_ms`.

`detail` holds facts by name (`field`, `limit`, `model`, `job_id`, …), each only where it applies. `request_id` is on
the daemon's log lines of that request.

A failure can differ from its row in class and delay, for example a failure to load, which is permanent.

| code | integer | class | retry after | safe to retry | meaning | what to do |
|---|---|---|---|---|---|---|
";

    fn page() -> String {
        let mut page = String::from(INTRODUCTION);
        for row in TABLE {
            let class = match row.class {
                Class::Transient => "transient",
                Class::Permanent => "permanent",
            };
            let after = row
                .retry_after_ms
                .map_or_else(String::new, |after| format!("{after} ms"));
            let safe = if row.safe_to_retry_same_request { "yes" } else { "no" };
            let (code, integer, meaning, remedy) = (&row.code, row.integer, row.meaning, row.remedy);
            writeln!(
                page,
                "| `{code}` | {integer} | {class} | {after} | {safe} | {meaning} | {remedy} |"
            )
            .unwrap();
        }
        page
    }

    /// Proves ERR-01, ERR-02.
    #[test]
    fn the_page_and_the_wire_have_the_codes_of_the_table() {
        let table: BTreeSet<&str> = TABLE.iter().map(|row| row.code.as_str()).collect();
        let wire: BTreeSet<&str> = ErrorCode::ALL.iter().map(ErrorCode::as_str).collect();
        assert_eq!(table, wire);
        assert_eq!(table.len(), TABLE.len(), "a code stands twice");
        let integers: BTreeSet<i32> = TABLE.iter().map(|row| row.integer).collect();
        assert_eq!(integers.len(), TABLE.len(), "an integer stands twice");
        assert!(
            TABLE
                .iter()
                .skip(1)
                .all(|row| (-32_099..=-32_000).contains(&row.integer))
        );
        golden::assert_doc("errors.md", &page());
    }

    /// Proves ERR-01. The codes as the requirements list them, written out a second time.
    #[test]
    fn the_frozen_codes_are_all_there() {
        for code in [
            "queue_full",
            "deadline_exceeded",
            "model_loading",
            "not_certified",
            "substitution_rejected",
            "artifact_invalid",
            "engine_crashed",
            "probe_required",
            "migration_required",
            "module_restarted",
            "grammar_unavailable_in_build",
            "shape_compiling",
            "ane_resources_exhausted",
            "ane_temp_space_low",
            "invalid_request",
            "unknown_model",
            "model_not_installed",
            "input_too_long",
            "invalid_text",
            "non_finite_output",
            "limit_exceeded",
            "unsupported",
            "cancelled",
            "unknown_job",
            "idempotency_conflict",
            "download_failed",
            "storage_failed",
            "plugin_refused",
            "shutting_down",
            "internal",
            "disabled",
            "grammar_disabled",
            "grammar_invalid",
        ] {
            assert!(TABLE.iter().any(|row| row.code.as_str() == code), "{code}");
        }
    }

    /// Proves ERR-04.
    #[test]
    fn transient_errors_say_when_to_retry_and_permanent_ones_never_do() {
        for row in TABLE {
            let plain = ServiceError::new(row.code.clone(), "m");
            for error in [
                plain.clone(),
                plain.clone().retry_after(7),
                plain.clone().permanent(),
                plain.transient(9),
            ] {
                assert_eq!(
                    error.retry_after_ms().is_some(),
                    error.class() == Class::Transient,
                    "{error:?}"
                );
                assert_eq!(error.failure().retry_after_ms, error.retry_after_ms());
                if error.class() == Class::Permanent {
                    assert!(!error.safe_to_retry_same_request());
                }
            }
        }
        assert_eq!(ServiceError::queue_full("m").retry_after(7).retry_after_ms(), Some(7));
    }
}
