//! From a method's name to its operation: reads the parameters, sets the deadline, runs the operation, writes the answer.
//!
//! State: none of its own. Callers: `connection`, through [`Dispatch`], so that a connection can be tested without a
//! daemon. Not known here: sockets and slots. A new operation is one arm in [`Operations::call`].

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::value::RawValue;
use synapse_core::limits::Patience;
use synapse_wire::client as wire;
use synapse_wire::client::{Constraints, Id, Method, Operation};
use tokio_util::sync::CancellationToken;

use super::context::{Holds, RequestContext};
use super::error::ServiceError;
use super::reply::{Reply, Sender};
use crate::config::RequestConfig;
use crate::service;
use crate::state::Daemon;

/// An admitted request.
#[derive(Debug)]
pub struct Call {
    /// The operation.
    pub method: Method,
    /// The client's name of the request.
    pub id: Id,
    /// The parameters, unread.
    pub params: Option<Box<RawValue>>,
    /// When the last byte of the request was read.
    pub received: Instant,
    /// Names the answer.
    pub sender: Sender,
    /// Fires when the request is to stop.
    pub cancel: CancellationToken,
    /// Has fired when the daemon stops.
    pub draining: CancellationToken,
}

/// Answers requests.
pub trait Dispatch: Send + Sync + 'static {
    /// Does what the request asks and gives the answer.
    fn call(self: Arc<Self>, call: Call) -> impl Future<Output = Reply> + Send;
}

/// The daemon's operations.
#[derive(Debug)]
pub struct Operations {
    daemon: Arc<Daemon>,
}

impl Operations {
    /// The operations of a daemon.
    #[must_use]
    pub const fn new(daemon: Arc<Daemon>) -> Self {
        Self { daemon }
    }
}

/// The waits of an operation that takes none from its parameters.
fn no_constraints<P>(_: &P) -> Constraints {
    Constraints::default()
}

/// Runs one operation: parameters, context, work against deadline and cancellation, answer.
macro_rules! answer {
    ($self:ident, $call:ident, $operation:ty, $service:ident, $constraints:expr) => {{
        let begun = begin::<$operation>(&$call, &$self.daemon.config.request, $constraints);
        let (outcome, holds) = match begun {
            Ok((context, params)) => {
                let outcome = race(
                    &context,
                    &$call.draining,
                    service::$service::run(&$self.daemon, &context, params),
                )
                .await;
                (outcome, context.holds)
            }
            Err(error) => (Err(error), Holds::default()),
        };
        Reply {
            line: finish::<$operation>(&$call, &outcome),
            holds,
        }
    }};
}

impl Dispatch for Operations {
    async fn call(self: Arc<Self>, call: Call) -> Reply {
        match call.method {
            Method::ServerInfo => answer!(self, call, wire::ServerInfo, server_info, no_constraints),
            Method::Health => answer!(self, call, wire::Health, health, no_constraints),
            // Answered by the connection, which alone knows its requests in flight.
            Method::RequestCancel => {
                let error = ServiceError::internal("request.cancel belongs to the connection");
                call.sender.failed(Some(&call.id), &error).into()
            }
            Method::EmbedQuery => {
                answer!(
                    self,
                    call,
                    wire::EmbedQuery,
                    embed_query,
                    wire::EmbedQueryParams::constraints
                )
            }
            Method::EmbedBatch => {
                answer!(
                    self,
                    call,
                    wire::EmbedBatch,
                    embed_batch,
                    wire::EmbedBatchParams::constraints
                )
            }
            Method::RerankScore => {
                answer!(
                    self,
                    call,
                    wire::RerankScore,
                    rerank_score,
                    wire::RerankScoreParams::constraints
                )
            }
            Method::MicrollmOneshot => {
                answer!(
                    self,
                    call,
                    wire::MicrollmOneshot,
                    microllm_oneshot,
                    wire::MicrollmOneshotParams::constraints
                )
            }
            Method::ModelsList => answer!(self, call, wire::ModelsList, models_list, no_constraints),
            Method::ModelLoad => answer!(self, call, wire::ModelLoad, model_load, no_constraints),
            Method::ModelStatus => answer!(self, call, wire::ModelStatus, model_status, no_constraints),
            Method::ModelUnload => answer!(self, call, wire::ModelUnload, model_unload, no_constraints),
            Method::JobCreate => answer!(self, call, wire::JobCreate, job_create, no_constraints),
            Method::JobAppend => answer!(self, call, wire::JobAppend, job_append, no_constraints),
            Method::JobSeal => answer!(self, call, wire::JobSeal, job_seal, no_constraints),
            Method::JobPages => answer!(self, call, wire::JobPages, job_result, no_constraints),
            Method::JobStatus => answer!(self, call, wire::JobStatus, job_status, no_constraints),
            Method::JobCancel => answer!(self, call, wire::JobCancel, job_cancel, no_constraints),
            Method::JobList => answer!(self, call, wire::JobList, job_list, no_constraints),
            Method::ModelsPull => answer!(self, call, wire::ModelsPull, models_pull, no_constraints),
            Method::ModelsRemove => answer!(self, call, wire::ModelsRemove, models_remove, no_constraints),
            Method::TextTokenize => answer!(self, call, wire::TextTokenize, tokenize, no_constraints),
            Method::ProbeStart => answer!(self, call, wire::ProbeStart, probe_start, no_constraints),
            Method::ProbeStatus => answer!(self, call, wire::ProbeStatus, probe_status, no_constraints),
            Method::ProbeReport => answer!(self, call, wire::ProbeReport, probe_report, no_constraints),
            Method::AdmissionStatus => {
                answer!(self, call, wire::AdmissionStatus, admission_status, no_constraints)
            }
            Method::ModelsExplain => answer!(self, call, wire::ModelsExplain, models_explain, no_constraints),
            Method::AliasesList => answer!(self, call, wire::AliasesList, aliases_list, no_constraints),
            Method::AliasesDeclare => answer!(self, call, wire::AliasesDeclare, aliases_declare, no_constraints),
            Method::AliasesRetract => answer!(self, call, wire::AliasesRetract, aliases_retract, no_constraints),
            Method::AliasesCheckIndex => {
                answer!(self, call, wire::AliasesCheckIndex, aliases_check_index, no_constraints)
            }
            Method::PluginsList => answer!(self, call, wire::PluginsList, plugins_list, no_constraints),
            Method::PluginsRescan => answer!(self, call, wire::PluginsRescan, plugins_rescan, no_constraints),
        }
    }
}

/// Reads the parameters and sets the deadline, which counts from the receipt of the request.
fn begin<O: Operation>(
    call: &Call,
    defaults: &RequestConfig,
    constraints: impl FnOnce(&O::Params) -> Constraints,
) -> Result<(RequestContext, O::Params), ServiceError> {
    let params: O::Params = wire::parse_params(call.params.as_deref()).map_err(|error| invalid_params(&error.0))?;
    let constraints = constraints(&params);
    let patience = Patience {
        deadline_ms: defaults.deadline_ms,
        max_queue_ms: defaults.max_queue_ms,
    }
    .resolve(constraints.deadline_ms, constraints.max_queue_ms)?;
    let context = RequestContext {
        request_id: call.sender.request_id.clone(),
        received: call.received,
        deadline: call.received + Duration::from_millis(patience.deadline_ms),
        max_queue: Duration::from_millis(patience.max_queue_ms),
        cancel: call.cancel.clone(),
        holds: Holds::default(),
    };
    Ok((context, params))
}

/// The refusal of parameters, with the field's name as a fact where the message has one.
fn invalid_params(message: &str) -> ServiceError {
    let named = ["unknown field `", "missing field `", "duplicate field `"];
    let field = named
        .iter()
        .find_map(|start| message.strip_prefix(start)?.split_once('`'))
        .map(|(name, _)| name.to_owned());
    ServiceError::invalid_params(message).detail(|detail| detail.field = field)
}

/// The work's outcome, unless the request is cancelled or its deadline passes first; the work is then dropped.
async fn race<R>(
    context: &RequestContext,
    draining: &CancellationToken,
    work: impl Future<Output = Result<R, ServiceError>>,
) -> Result<R, ServiceError> {
    tokio::select! {
        biased;
        outcome = work => outcome,
        () = context.cancel.cancelled() => {
            Err(if draining.is_cancelled() { ServiceError::shutting_down() } else { ServiceError::cancelled() })
        }
        () = tokio::time::sleep_until(context.deadline.into()) => {
            // What the work has started elsewhere (a call on a lane) watches the same token.
            context.cancel.cancel();
            Err(ServiceError::deadline_exceeded("the deadline passed before the work was done"))
        }
    }
}

/// Logs how the request went and writes its answer.
fn finish<O: Operation>(call: &Call, outcome: &Result<O::Result, ServiceError>) -> Vec<u8> {
    let (method, elapsed_ms) = (call.method.name(), call.received.elapsed().as_millis());
    match outcome {
        Ok(_) => tracing::debug!(target: "synapse", method, elapsed_ms, "answered"),
        Err(error) if *error.code() == wire::ErrorCode::Internal => {
            tracing::error!(target: "synapse", method, elapsed_ms, "a defect: {error}");
        }
        Err(error) => tracing::debug!(target: "synapse", method, elapsed_ms, code = error.code().as_str(), "failed"),
    }
    call.sender.outcome(&call.id, outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::context::RequestId;

    fn call(method: Method, params: &str) -> Call {
        Call {
            method,
            id: Id::Number(1),
            params: Some(RawValue::from_string(params.to_owned()).unwrap()),
            received: Instant::now(),
            sender: Sender {
                generation: 3,
                request_id: RequestId::new(1, 1),
            },
            cancel: CancellationToken::new(),
            draining: CancellationToken::new(),
        }
    }

    fn begin_query(params: &str) -> Result<(RequestContext, wire::EmbedQueryParams), ServiceError> {
        begin::<wire::EmbedQuery>(
            &call(Method::EmbedQuery, params),
            &RequestConfig::default(),
            wire::EmbedQueryParams::constraints,
        )
    }

    /// Proves API-04. A field that no operation has is refused by name.
    #[test]
    fn parameters_are_checked_and_the_wrong_field_is_named() {
        for (params, field) in [
            (r#"{"model":"m","text":"t","deadline":1}"#, Some("deadline")),
            (r#"{"model":"m"}"#, Some("text")),
            (r#"{"model":"m","text":"t","model":"m"}"#, Some("model")),
            (r#"{"model":"m","text":"t","deadline_ms":0}"#, Some("deadline_ms")),
            (
                r#"{"model":"m","text":"t","deadline_ms":10,"max_queue_ms":11}"#,
                Some("max_queue_ms"),
            ),
            (r#"{"model":"m","text":"t","deadline_ms":"soon"}"#, None),
            (r#"["m","t"]"#, None),
        ] {
            let error = begin_query(params).unwrap_err();
            assert_eq!(error.integer(), -32_602, "{params}");
            assert_eq!(
                error.facts().and_then(|facts| facts.field.as_deref()),
                field,
                "{params}"
            );
        }
    }

    #[test]
    fn the_deadline_counts_from_the_receipt() {
        let (context, _) = begin_query(r#"{"model":"m","text":"t"}"#).unwrap();
        assert_eq!(context.deadline - context.received, Duration::from_secs(30));
        assert_eq!(context.max_queue, Duration::from_secs(5));
        let (context, _) = begin_query(r#"{"model":"m","text":"t","deadline_ms":70,"max_queue_ms":20}"#).unwrap();
        assert_eq!(context.deadline - context.received, Duration::from_millis(70));
        assert_eq!(context.max_queue, Duration::from_millis(20));
        let (context, _) = begin_query(r#"{"model":"m","text":"t","deadline_ms":70}"#).unwrap();
        assert_eq!(
            context.max_queue,
            Duration::from_millis(70),
            "a default wait is cut to the deadline"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn cancellation_stop_and_deadline_end_the_work() {
        let forever = std::future::pending::<Result<(), ServiceError>>;
        let (context, _) = begin_query(r#"{"model":"m","text":"t","deadline_ms":70}"#).unwrap();
        let draining = CancellationToken::new();
        let code = |outcome: Result<(), ServiceError>| outcome.unwrap_err().code().as_str().to_owned();
        assert_eq!(code(race(&context, &draining, forever()).await), "deadline_exceeded");
        assert!(
            context.cancel.is_cancelled(),
            "the engine call sees the end of the wait"
        );
        let (context, _) = begin_query(r#"{"model":"m","text":"t"}"#).unwrap();
        context.cancel.cancel();
        assert_eq!(
            race(&context, &draining, async { Ok(()) }).await,
            Ok(()),
            "work that is done is answered"
        );
        assert_eq!(code(race(&context, &draining, forever()).await), "cancelled");
        draining.cancel();
        assert_eq!(code(race(&context, &draining, forever()).await), "shutting_down");
    }
}
