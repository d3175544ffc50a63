//! A connection to the daemon for one command: found, opened, and checked for a different version.
//!
//! It owns the client. Commands get it from [`open`]; where no daemon listens they fail with the error that says how to
//! start one.

use std::time::Duration;

use synapse_client::wire::{ModelState, ModelsListResult, ServerInfoResult};
use synapse_client::{Client, Options, RetryPolicy};

use crate::args::Global;
use crate::error::CliError;
use crate::output::Output;

/// This program's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How patient a command is with transient errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// A few quick attempts.
    Short,
    /// Long enough for a model to be loaded.
    Load,
    /// One attempt.
    None,
}

impl Patience {
    const fn policy(self) -> RetryPolicy {
        let (max_attempts, seconds) = match self {
            Self::Short => (4, 10),
            Self::Load => (1000, 300),
            Self::None => (1, 0),
        };
        RetryPolicy {
            max_attempts,
            max_total: Duration::from_secs(seconds),
            first_wait: Duration::from_millis(50),
            retry_changes: false,
        }
    }
}

/// Connects and warns where the daemon is of another version.
pub async fn open(global: &Global, output: &Output, patience: Patience) -> Result<Client, CliError> {
    let client = Client::connect(Options {
        socket: global.socket.clone(),
        retry: patience.policy(),
        ..Options::default()
    })
    .await?;
    let info = client.server_info().await?.result;
    if let Some(warning) = version_skew(VERSION, synapse_client::API_VERSION, &info) {
        output.warn(&warning);
    }
    Ok(client)
}

/// What to say where this program and the daemon differ.
pub fn version_skew(ours: &str, our_api: &str, daemon: &ServerInfoResult) -> Option<String> {
    let major = |version: &str| version.split('.').next().unwrap_or_default().to_owned();
    if major(our_api) != major(&daemon.api_version) {
        return Some(format!(
            "this synapse ({ours}) speaks interface {our_api}, the daemon ({}) speaks {}: commands may fail; restart the daemon with `synapse serve` of the same version",
            daemon.version, daemon.api_version
        ));
    }
    (ours != daemon.version).then(|| {
        format!(
            "this synapse is {ours}, the daemon is {}: restart it with `synapse serve` to use one version",
            daemon.version
        )
    })
}

/// The model to use where the command line names none: the catalog's default, or the only one that is installed.
pub fn default_model(list: &ModelsListResult) -> Result<String, CliError> {
    if let Some(model) = list.models.iter().find(|model| model.default) {
        return Ok(model.id.clone());
    }
    let mut installed = list
        .models
        .iter()
        .filter(|model| model.state != ModelState::NotInstalled);
    match (installed.next(), installed.next()) {
        (Some(model), None) => Ok(model.id.clone()),
        _ => Err(CliError::Usage(
            "which model? give --model (see `synapse models list`)".to_owned(),
        )),
    }
}

/// The model of the command line, or the default one.
pub async fn model_or_default(client: &Client, given: Option<String>) -> Result<String, CliError> {
    match given {
        Some(model) => Ok(model),
        None => default_model(&client.models_list().await?.result),
    }
}

#[cfg(test)]
mod tests {
    use synapse_client::wire::{Limits, ModelEntry, ModelKind};

    use super::*;

    fn daemon(version: &str, api: &str) -> ServerInfoResult {
        ServerInfoResult {
            name: "synapse".to_owned(),
            version: version.to_owned(),
            api_version: api.to_owned(),
            pid: 1,
            started_ms: 0,
            data_dir: String::new(),
            socket: String::new(),
            limits: Limits::default(),
            capabilities: Vec::new(),
        }
    }

    #[test]
    fn a_difference_in_version_is_said() {
        assert_eq!(version_skew("0.1.0", "1.0", &daemon("0.1.0", "1.0")), None);
        assert_eq!(version_skew("0.1.0", "1.0", &daemon("0.1.0", "1.3")), None);
        let warning = version_skew("0.1.0", "1.0", &daemon("0.2.0", "1.1")).unwrap();
        assert!(warning.contains("0.1.0") && warning.contains("0.2.0"), "{warning}");
        let warning = version_skew("0.1.0", "1.0", &daemon("0.1.0", "2.0")).unwrap();
        assert!(warning.contains("interface 1.0"), "{warning}");
    }

    #[test]
    fn the_default_model_is_the_marked_or_the_only_installed_one() {
        let model = |id: &str, state, default| ModelEntry {
            id: id.to_owned(),
            family: "bert".to_owned(),
            kind: ModelKind::Embed,
            licence: "Apache-2.0".to_owned(),
            dims: 4,
            max_tokens: 8,
            state,
            reason: None,
            formats: Vec::new(),
            size_bytes: 0,
            lanes: Vec::new(),
            fingerprint: None,
            default,
        };
        let pick = |models| {
            let free_bytes = None;
            default_model(&ModelsListResult { models, free_bytes }).ok()
        };
        let (absent, here) = (ModelState::NotInstalled, ModelState::Installed);
        assert_eq!(
            pick(vec![model("a", here, false), model("b", absent, true)]).as_deref(),
            Some("b")
        );
        assert_eq!(
            pick(vec![model("a", here, false), model("b", absent, false)]).as_deref(),
            Some("a")
        );
        assert_eq!(pick(vec![model("a", here, false), model("b", here, false)]), None);
        assert_eq!(pick(Vec::new()), None);
    }
}
