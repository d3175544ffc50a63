//! `server.info`: what this daemon is, and its limits.
//!
//! State: none. Callers: `rpc/dispatch.rs`. Not known here: how it does; that is `health`.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use synapse_wire::API_VERSION;
use synapse_wire::client::{Limits, ServerInfoParams, ServerInfoResult};
use synapse_wire::framing::MAX_DEPTH;

use super::{RequestContext, ServiceError};
use crate::config::Config;
use crate::state::Daemon;

/// What this version offers, sorted.
const CAPABILITIES: [&str; 8] = [
    "embed",
    "encoding.array",
    "encoding.base64",
    "generate",
    "jobs",
    "pull",
    "rerank",
    "tokenize",
];

/// Answers `server.info`.
///
/// # Errors
/// None.
pub async fn run(
    daemon: &Arc<Daemon>,
    _: &RequestContext,
    _: ServerInfoParams,
) -> Result<ServerInfoResult, ServiceError> {
    let since = daemon.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(ServerInfoResult {
        name: String::from("synapse"),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        api_version: API_VERSION.to_owned(),
        pid: std::process::id(),
        started_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        data_dir: daemon.data.root().to_string_lossy().into_owned(),
        socket: daemon.socket.to_string_lossy().into_owned(),
        limits: limits(&daemon.config),
        capabilities: CAPABILITIES.map(str::to_owned).to_vec(),
    })
}

/// The limits that a client should know.
fn limits(config: &Config) -> Limits {
    let (connection, inline, rerank, jobs) = (&config.connection, &config.inline, &config.rerank, &config.jobs);
    Limits {
        max_line_bytes: wide(connection.max_line_bytes),
        max_depth: narrow(MAX_DEPTH),
        max_in_flight_per_connection: narrow(connection.max_in_flight),
        max_in_flight_per_process: narrow(connection.max_in_flight_per_process),
        max_connections: narrow(connection.max_connections),
        line_timeout_ms: connection.line_timeout_ms,
        inline_items: narrow(inline.max_items),
        inline_tokens: narrow(inline.max_tokens),
        inline_text_bytes: wide(inline.max_text_bytes),
        inline_item_bytes: wide(inline.max_item_bytes),
        rerank_candidates: narrow(rerank.max_candidates),
        rerank_interactive_candidates: narrow(rerank.interactive_candidates),
        rerank_tokens: narrow(rerank.max_tokens),
        job_items: wide(jobs.max_items),
        job_bytes: jobs.max_bytes,
        open_jobs: narrow(jobs.max_open),
        open_job_bytes: jobs.max_open_bytes,
        live_jobs: narrow(jobs.max_live),
        job_ttl_ms: jobs.ttl_secs.saturating_mul(1_000),
        microllm_max_tokens: config.microllm_max_tokens,
        default_deadline_ms: config.request.deadline_ms,
        default_max_queue_ms: config.request.max_queue_ms,
    }
}

fn wide(value: usize) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

fn narrow(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limits of DECISIONS, as a client sees them.
    #[test]
    fn the_default_limits_are_the_frozen_ones() {
        assert_eq!(
            limits(&Config::default()),
            Limits {
                max_line_bytes: 16 << 20,
                max_depth: 64,
                max_in_flight_per_connection: 32,
                max_in_flight_per_process: 256,
                max_connections: 1_024,
                line_timeout_ms: 30_000,
                inline_items: 64,
                inline_tokens: 8_192,
                inline_text_bytes: 8 << 20,
                inline_item_bytes: 1 << 20,
                rerank_candidates: 64,
                rerank_interactive_candidates: 20,
                rerank_tokens: 32_768,
                job_items: 100_000,
                job_bytes: 256 << 20,
                open_jobs: 8,
                open_job_bytes: 512 << 20,
                live_jobs: 64,
                job_ttl_ms: 86_400_000,
                microllm_max_tokens: 512,
                default_deadline_ms: 30_000,
                default_max_queue_ms: 5_000,
            }
        );
    }

    #[test]
    fn capabilities_are_sorted_words() {
        assert!(CAPABILITIES.is_sorted());
    }
}
