//! A connection to the daemon for one command: found, opened, and checked for a different version.
//!
//! It owns the client. Commands get it from [`open`]; where no daemon listens they fail with the error that says how to
//! start one.

use std::time::Duration;

use synapse_client::wire::{ModelKind, ModelState, ModelsListResult, ServerInfoResult};
use synapse_client::{Client, ClientError, ErrorCode, Options, RetryPolicy};
use tokio::time::Instant;

use crate::args::Global;
use crate::error::CliError;
use crate::output::Output;
use crate::progress;

/// How long a command waits for a model to be loaded, over all attempts.
const LOADING: Duration = Duration::from_secs(300);

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

/// The model to use where the command line names none: the catalog's default, the only one that is installed, or the
/// only one that there is, of those that do this kind of work.
pub fn default_model(list: &ModelsListResult, kind: ModelKind) -> Result<String, CliError> {
    let models: Vec<_> = list.models.iter().filter(|model| model.kind == kind).collect();
    if let Some(model) = models.iter().find(|model| model.default) {
        return Ok(model.id.clone());
    }
    let installed: Vec<_> = models
        .iter()
        .copied()
        .filter(|model| model.state != ModelState::NotInstalled)
        .collect();
    match (installed.as_slice(), models.as_slice()) {
        ([only], _) | ([], [only]) => Ok(only.id.clone()),
        (_, []) => Err(CliError::Found(format!(
            "the catalog has no model that can {} (see `synapse models list`)",
            kind.as_str()
        ))),
        _ => {
            let choices: Vec<&str> = models.iter().map(|model| model.id.as_str()).collect();
            Err(CliError::Usage(format!(
                "which model? give --model: {}",
                choices.join(", ")
            )))
        }
    }
}

/// The model of the command line, or the default one for this kind of work.
pub async fn model_or_default(client: &Client, given: Option<String>, kind: ModelKind) -> Result<String, CliError> {
    match given {
        Some(model) => Ok(model),
        None => default_model(&client.models_list().await?.result, kind),
    }
}

/// Calls an operation; where its model has first to be loaded, and the caller waits, shows the load and calls again.
///
/// # Errors
/// The operation's error, or the load's.
pub async fn when_loaded<T>(
    client: &Client,
    wait: bool,
    what: &str,
    call: impl AsyncFn() -> Result<T, ClientError>,
) -> Result<T, CliError> {
    let begun = Instant::now();
    loop {
        let error = match progress::spin(what, call()).await {
            Ok(result) => return Ok(result),
            Err(error) => error,
        };
        let ClientError::Daemon(object) = &error else {
            return Err(error.into());
        };
        let data = &object.data;
        if !wait || data.code != ErrorCode::ModelLoading || begun.elapsed() > LOADING {
            return Err(error.into());
        }
        match data.detail.as_ref().and_then(|detail| detail.job_id.as_deref()) {
            Some(job) => drop(progress::follow(client, job).await?),
            // Not the load yet: the bundles are still being described.
            None => tokio::time::sleep(Duration::from_millis(data.retry_after_ms.unwrap_or(500))).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use synapse_client::wire::{Limits, ModelEntry};

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
    fn the_default_model_is_the_marked_or_the_only_one_of_its_kind() {
        use ModelKind::{Embed, Generate, Rerank};
        let model = |id: &str, kind, state, default| ModelEntry {
            id: id.to_owned(),
            family: "bert".to_owned(),
            kind,
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
        let pick = |models: &[ModelEntry], kind| {
            let (models, free_bytes) = (models.to_vec(), None);
            default_model(&ModelsListResult { models, free_bytes }, kind).map_err(|error| error.to_string())
        };
        let (absent, here) = (ModelState::NotInstalled, ModelState::Installed);
        let marked = [model("a", Embed, here, false), model("b", Embed, absent, true)];
        assert_eq!(pick(&marked, Embed).as_deref(), Ok("b"));
        let one_here = [
            model("a", Embed, here, false),
            model("b", Embed, absent, false),
            model("c", Generate, here, false),
            model("d", Generate, absent, true),
            model("e", Rerank, absent, false),
        ];
        assert_eq!(pick(&one_here, Embed).as_deref(), Ok("a"));
        assert_eq!(pick(&one_here, Generate).as_deref(), Ok("d"));
        assert_eq!(
            pick(&one_here, Rerank).as_deref(),
            Ok("e"),
            "the only one, though it is not installed"
        );
        let two = [model("a", Rerank, here, false), model("b", Rerank, here, false)];
        let which = pick(&two, Rerank).unwrap_err();
        assert!(which.contains("--model: a, b"), "{which}");
        assert!(pick(&two, Embed).unwrap_err().contains("no model"));
        assert!(pick(&[], Embed).unwrap_err().contains("no model"));
    }
}
