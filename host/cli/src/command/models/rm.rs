//! `synapse models rm MODEL`: deletes a model's files.
//!
//! No state.

use synapse_client::wire::ModelsRemoveResult;

use crate::args::Global;
use crate::error::CliError;
use crate::output::Output;
use crate::session::{self, Patience};
use crate::style::{Style, bytes, clean};

/// Asks and prints.
pub async fn run(global: &Global, model: &str, output: &mut Output) -> Result<(), CliError> {
    let client = session::open(global, output, Patience::Short).await?;
    let removed = client.models_remove(model).await?.result;
    output.value(&removed, render)
}

fn render(removed: &ModelsRemoveResult, _: Style) -> String {
    let model = clean(&removed.model);
    if removed.removed {
        format!("removed {model}, {} freed\n", bytes(removed.freed_bytes))
    } else {
        format!("{model} was not installed\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_whether_there_was_something() {
        let mut removed = ModelsRemoveResult {
            model: "m".to_owned(),
            removed: true,
            freed_bytes: 2048,
        };
        assert_eq!(render(&removed, Style::plain()), "removed m, 2.0 KiB freed\n");
        removed.removed = false;
        assert_eq!(render(&removed, Style::plain()), "m was not installed\n");
    }
}
