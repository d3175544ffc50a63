//! `synapse probe report`: what each lane was measured to be on this machine.
//!
//! No state.

use synapse_client::wire::ProbeReportParams;

use super::table::{self, Detail};
use crate::args::Global;
use crate::error::CliError;
use crate::output::Output;
use crate::session::{self, Patience};

/// Asks and prints.
pub async fn run(global: &Global, models: Vec<String>, output: &mut Output) -> Result<(), CliError> {
    let client = session::open(global, output, Patience::Short).await?;
    let report = client.probe_report(&ProbeReportParams { models }).await?.result;
    output.value(&report, |report, style| table::render(report, Detail::Every, style))
}
