//! The commands, one file each, and the step from the command line to the right one.
//!
//! No state. A command gets its own arguments, the global ones and the output; async ones run on a runtime of one
//! thread, the daemon on one with several.

mod aliases;
mod call;
mod catalog;
mod completions;
mod config;
mod doctor;
mod embed;
mod embed_file;
mod explain;
mod generate;
mod jobs;
mod models;
mod plugin;
mod probe;
mod rerank;
mod serve;
mod setup;
mod status;
mod tokenize;

use tokio::runtime::Builder;

use crate::args::{Arguments, Command};
use crate::error::CliError;
use crate::output::Output;

/// Carries out what the command line says.
pub fn run(arguments: Arguments, output: &mut Output) -> Result<(), CliError> {
    let global = arguments.global;
    match arguments.command {
        Command::Serve(serve) => serve::run(&global, serve),
        Command::Embed(embed) => client_side(embed::run(&global, embed, output)),
        Command::Rerank(rerank) => client_side(rerank::run(&global, rerank, output)),
        Command::Generate(generate) => client_side(generate::run(&global, generate, output)),
        Command::Tokenize(tokenize) => client_side(tokenize::run(&global, tokenize, output)),
        Command::Models(models) => client_side(models::run(&global, models, output)),
        Command::Jobs(jobs) => client_side(jobs::run(&global, jobs, output)),
        Command::Setup(setup) => client_side(setup::run(&global, setup, output)),
        Command::Probe(probe) => client_side(probe::run(&global, probe, output)),
        Command::Explain(explain) => client_side(explain::run(&global, explain, output)),
        Command::Aliases(aliases) => client_side(aliases::run(&global, aliases, output)),
        Command::Plugin(plugin) => client_side(plugin::run(&global, plugin, output)),
        Command::Status => client_side(status::run(&global, output)),
        Command::Call(call) => client_side(call::run(&global, call, output)),
        Command::Catalog(catalog) => catalog::run(catalog, output),
        Command::Config(config) => config::run(&global, config, output),
        Command::Doctor(places) => client_side(doctor::run(&global, places, output)),
        Command::Completions { shell } => completions::run(shell, output),
    }
}

/// Runs a command that talks to the daemon.
fn client_side(command: impl Future<Output = Result<(), CliError>>) -> Result<(), CliError> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::io("starting the runtime", error))?
        .block_on(command)
}
