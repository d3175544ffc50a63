//! `synapse completions SHELL`: the completion script of a shell, made from the command line's definition.
//!
//! No state.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Arguments;
use crate::error::CliError;
use crate::output::Output;

/// Prints the script.
pub fn run(shell: Shell, output: &mut Output) -> Result<(), CliError> {
    output.text(&script(shell)?)
}

fn script(shell: Shell) -> Result<String, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "synapse", &mut script);
    String::from_utf8(script).map_err(|error| CliError::Internal(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_has_a_script_that_knows_the_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
            let script = script(shell).unwrap();
            for command in ["tokenize", "rerank", "generate", "jobs", "doctor"] {
                assert!(script.contains(command), "{shell}: {command}");
            }
        }
    }
}
