//! `synapse probe …`: one file per subcommand; `table.rs` draws what was measured.
//!
//! No state. The measuring is the daemon's.

mod report;
mod run;
pub mod table;

pub use run::{Finished, probe};

use crate::args::{Global, Probe};
use crate::error::CliError;
use crate::output::Output;

/// Carries out a subcommand.
pub async fn run(global: &Global, probe: Probe, output: &mut Output) -> Result<(), CliError> {
    match probe {
        Probe::Run { models, no_wait } => run::run(global, models, no_wait, output).await,
        Probe::Report { models } => report::run(global, models, output).await,
    }
}
