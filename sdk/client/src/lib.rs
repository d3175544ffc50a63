//! Typed async client of a Synapse daemon, over its Unix socket.
//!
//! It owns one connection, shared by every clone of a [`Client`]: requests are pipelined on it and matched by id. The
//! command line and the tests build on it, and any Rust program may. It deliberately does not know what the operations
//! do, and it never starts a daemon.
//!
//! ```no_run
//! # async fn example() -> Result<(), synapse_client::ClientError> {
//! use synapse_client::{Client, EmbedQueryParams};
//!
//! let client = Client::connect_default().await?;
//! let answer = client.embed_query(EmbedQueryParams::new("all-minilm-l6-v2", "How do I cancel a request?")).await?;
//! assert_eq!(answer.vectors.len(), 1);
//! # Ok(()) }
//! ```
//!
//! - **Retries**: an error that the daemon calls `safe_to_retry_same_request` is retried after its `retry_after_ms`,
//!   within the bounds of [`RetryPolicy`]; operations that change something are not, unless the policy says so.
//! - **Reconnects**: the next call after a lost connection opens a new one.
//! - **Restarts**: every answer carries the daemon's `module_generation`; [`Client::generation`] tells when it changes.
//! - **Cancellation**: dropping the future of a call sends `request.cancel` for it.
#![forbid(unsafe_code)]

mod alias;
mod batch_job;
mod client;
mod connection;
mod error;
mod index;
mod job;
mod operations;
mod retry;

pub use batch_job::{EmbeddedPage, PageRead};
pub use client::{Client, Options, default_socket, surroundings};
pub use error::ClientError;
pub use index::{IndexError, IndexSpaces};
pub use job::JobWait;
pub use operations::{BatchOutcome, Embedded, RerankOutcome, Reranked};
pub use retry::RetryPolicy;
pub use synapse_wire::API_VERSION;
/// The types of the wire: every operation's params and results.
pub use synapse_wire::client as wire;
pub use synapse_wire::client::{
    BatchItem, Class, EmbedBatchParams, EmbedJobOptions, EmbedQueryParams, Encoding, ErrorCode, JobCreateParams,
    JobOperation, JobState, JobView, MicrollmOneshotParams, ModelsPullParams, PullSource, RerankScoreParams, Role,
    Text, TokenizeParams,
};
pub use synapse_wire::socket::Surroundings;
