//! `synapse models list`: the catalog with the state of each model.
//!
//! No state.

use synapse_client::wire::ModelsListResult;

use crate::args::Global;
use crate::command::status::state_cell;
use crate::error::CliError;
use crate::output::Output;
use crate::session::{self, Patience};
use crate::style::{Style, bytes};
use crate::table::Table;

/// Asks and prints.
pub async fn run(global: &Global, output: &mut Output) -> Result<(), CliError> {
    let client = session::open(global, output, Patience::Short).await?;
    let list = client.models_list().await?.result;
    output.value(&list, render)
}

fn render(list: &ModelsListResult, style: Style) -> String {
    let mut table = Table::new(&["MODEL", "STATE", "KIND", "DIMS", "TOKENS", "SIZE", "LICENCE"]);
    for model in &list.models {
        let mark = if model.default { " *" } else { "" };
        table.row(vec![
            format!("{}{mark}", model.id).into(),
            state_cell(model.state),
            model.kind.as_str().into(),
            model.dims.to_string().into(),
            model.max_tokens.to_string().into(),
            bytes(model.size_bytes).into(),
            (&model.licence).into(),
        ]);
    }
    let mut text = table.render(style);
    if list.models.iter().any(|model| model.default) {
        text.push_str("\n* the default model\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::models::samples::model;

    #[test]
    fn the_default_model_is_marked() {
        let list = ModelsListResult {
            models: vec![model()],
            free_bytes: None,
        };
        assert_eq!(
            render(&list, Style::plain()),
            "\
MODEL               STATE          KIND   DIMS  TOKENS  SIZE      LICENCE
all-minilm-l6-v2 *  not installed  embed  384   256     87.1 MiB  Apache-2.0

* the default model
"
        );
    }
}
