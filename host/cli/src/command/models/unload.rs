//! `synapse models unload MODEL`: frees a loaded model.
//!
//! No state.

use synapse_client::wire::ModelUnloadResult;

use crate::args::Global;
use crate::error::CliError;
use crate::output::Output;
use crate::session::{self, Patience};
use crate::style::{Style, clean};

/// Asks and prints.
pub async fn run(global: &Global, model: &str, output: &mut Output) -> Result<(), CliError> {
    let client = session::open(global, output, Patience::Short).await?;
    let unloaded = client.model_unload(model).await?.result;
    output.value(&unloaded, render)
}

fn render(unloaded: &ModelUnloadResult, _: Style) -> String {
    let model = clean(&unloaded.model);
    if unloaded.unloaded {
        format!("unloaded {model}\n")
    } else {
        format!("{model} was not loaded\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_whether_it_was_loaded() {
        let mut unloaded = ModelUnloadResult {
            model: "m".to_owned(),
            unloaded: true,
        };
        assert_eq!(render(&unloaded, Style::plain()), "unloaded m\n");
        unloaded.unloaded = false;
        assert_eq!(render(&unloaded, Style::plain()), "m was not loaded\n");
    }
}
