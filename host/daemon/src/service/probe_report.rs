//! `probe.report`: the whole measured table (API-22), as it was kept.
//!
//! State: none. The report is made in `crate::probe::report`.

use std::sync::Arc;

use synapse_wire::client::{ProbeReportParams, ProbeReportResult};

use super::{RequestContext, ServiceError};
use crate::probe::report;
use crate::state::Daemon;

/// Shows what was measured.
///
/// # Errors
/// A name is wrong, or the store cannot be read.
pub async fn run(
    daemon: &Arc<Daemon>,
    _ctx: &RequestContext,
    params: ProbeReportParams,
) -> Result<ProbeReportResult, ServiceError> {
    report::report(daemon, &params.models).await
}
