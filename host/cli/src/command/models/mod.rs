//! `synapse models …`: one file per subcommand.
//!
//! No state.

mod list;
mod load;
mod pull;
mod rm;
mod show;
mod unload;

use synapse_client::wire::{ModelEntry, ModelsListResult};

use crate::args::{Global, Models};
use crate::error::CliError;
use crate::output::Output;

/// Carries out a subcommand.
pub async fn run(global: &Global, models: Models, output: &mut Output) -> Result<(), CliError> {
    match models {
        Models::List => list::run(global, output).await,
        Models::Show { model } => show::run(global, &model, output).await,
        Models::Pull(pull) => pull::run(global, pull, output).await,
        Models::Rm { model } => rm::run(global, &model, output).await,
        Models::Load { model, no_wait } => load::run(global, &model, no_wait, output).await,
        Models::Unload { model } => unload::run(global, &model, output).await,
    }
}

/// The model of an id or of a lane, or an error that names those there are.
pub fn find<'a>(list: &'a ModelsListResult, id: &str) -> Result<&'a ModelEntry, CliError> {
    let wanted = id.split_once('@').map_or(id, |(model, _)| model);
    list.models.iter().find(|model| model.id == wanted).ok_or_else(|| {
        let known: Vec<&str> = list.models.iter().map(|model| model.id.as_str()).collect();
        CliError::Found(format!("the catalog has no model `{id}`; it has: {}", known.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_names_its_model() {
        let list = ModelsListResult {
            models: vec![samples::model()],
            free_bytes: None,
        };
        for id in ["all-minilm-l6-v2", "all-minilm-l6-v2@ort", "all-minilm-l6-v2@ort:f32"] {
            assert_eq!(
                find(&list, id).map(|model| model.id.as_str()).ok(),
                Some("all-minilm-l6-v2")
            );
        }
        assert!(find(&list, "other@ort").is_err());
    }
}

#[cfg(test)]
pub mod samples {
    //! A model as the daemon would list it.

    use synapse_client::wire::{LaneEntry, LaneStatus, ModelEntry, ModelKind, ModelState};

    /// A model that is not installed.
    pub fn model() -> ModelEntry {
        ModelEntry {
            id: "all-minilm-l6-v2".to_owned(),
            family: "bert".to_owned(),
            kind: ModelKind::Embed,
            licence: "Apache-2.0".to_owned(),
            dims: 384,
            max_tokens: 256,
            state: ModelState::NotInstalled,
            reason: None,
            formats: vec!["safetensors".to_owned()],
            size_bytes: 91_335_168,
            lanes: vec![LaneEntry {
                lane: "all-minilm-l6-v2@owned:f32".to_owned(),
                engine: "owned".to_owned(),
                status: LaneStatus::Available,
                reason: None,
                certification: None,
                level: None,
                fingerprint: None,
                equivalent_to: Vec::new(),
            }],
            fingerprint: None,
            default: true,
        }
    }
}
