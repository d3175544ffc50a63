//! `synapse jobs cancel ID`: asks a job to stop and shows it as it is then.
//!
//! No state. One that had ended already stays as it was; a job that runs stops at its next quantum.

use super::{now_ms, show};
use crate::args::Global;
use crate::error::CliError;
use crate::output::Output;
use crate::session::{self, Patience};

/// Asks and prints.
pub async fn run(global: &Global, job: &str, output: &mut Output) -> Result<(), CliError> {
    let client = session::open(global, output, Patience::Short).await?;
    let view = client.job_cancel(job).await?.result;
    output.value(&view, |view, style| show::render(view, now_ms(), style))
}
