//! The operations: one file for each method of the socket.
//!
//! State: none; every operation works on [`crate::state::Daemon`]. Callers: `rpc/dispatch.rs`, which parses the
//! parameters and writes the reply. Not known here: JSON, sockets, connections. Each file has
//! `pub async fn run(daemon: &Arc<Daemon>, ctx: &RequestContext, params: P) -> Result<R, ServiceError>`, where `P`
//! and `R` are types of `synapse_wire::client`. The future may be dropped at any await point (cancellation, deadline),
//! so whatever it holds must be given back by a `Drop`.

mod admission;
pub mod admission_status;
pub mod aliases_check_index;
pub mod aliases_declare;
pub mod aliases_list;
pub mod aliases_retract;
mod batch_job;
#[cfg(test)]
mod batch_job_tests;
mod batch_kind;
mod call;
pub mod embed_batch;
pub mod embed_query;
mod embedding;
#[cfg(test)]
mod embedding_tests;
mod grammar;
pub mod health;
mod items;
pub mod job_append;
pub mod job_cancel;
pub mod job_create;
mod job_input;
pub mod job_list;
pub mod job_result;
pub mod job_seal;
pub mod job_status;
#[cfg(test)]
mod lane_tests;
pub mod microllm_oneshot;
pub mod model_load;
pub mod model_status;
pub mod model_unload;
mod model_view;
pub mod models_explain;
pub mod models_list;
pub mod models_pull;
pub mod models_remove;
#[cfg(test)]
mod oneshot_tests;
pub mod plugins_list;
pub mod plugins_rescan;
pub mod probe_report;
pub mod probe_start;
pub mod probe_status;
pub mod request_cancel;
pub mod rerank_score;
#[cfg(test)]
mod rerank_tests;
#[cfg(test)]
mod routing_tests;
pub mod server_info;
pub mod tokenize;
mod tokenizing;
#[cfg(test)]
mod toy;

pub use crate::rpc::context::RequestContext;
pub use crate::rpc::error::ServiceError;
pub use synapse_wire::client::ErrorCode;
