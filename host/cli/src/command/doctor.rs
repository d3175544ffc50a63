//! `synapse doctor`: what is installed, what was refused and why, and what to do.
//!
//! No state. Asks the daemon where one runs; otherwise looks for itself at the same places. Every finding is a line
//! with a verdict; what needs doing stands under it.

use serde::Serialize;
use synapse_client::wire::{HealthStatus, LaneStatus, ModelEntry, ModelState, PluginEntry, PluginStatus};
use synapse_client::{Client, ClientError, Options, RetryPolicy};
use synapse_daemon::offline::{self, OfflineModel, OfflineOptions};

use crate::args::{Global, Places};
use crate::command::config;
use crate::command::plugin::status_word;
use crate::error::CliError;
use crate::output::Output;
use crate::places::{self, Resolution};
use crate::session::{VERSION, version_skew};
use crate::style::{Style, Tone};
use crate::table::{Cell, Table};

/// How a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Ok,
    Note,
    Bad,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    verdict: Verdict,
    about: String,
    says: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Finding {
    fn new(verdict: Verdict, about: &str, says: impl Into<String>) -> Self {
        Self {
            verdict,
            about: about.to_owned(),
            says: says.into(),
            advice: None,
        }
    }

    fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

/// Looks at everything, prints, and fails where something is bad.
pub async fn run(global: &Global, places: Places, output: &mut Output) -> Result<(), CliError> {
    let mut resolution = places::resolve(global, &places)?;
    let findings = match connect(&resolution).await {
        Ok(client) => {
            let daemon = with_daemon(&client).await?;
            resolution.follow(&places, &daemon.data_dir);
            [ground(&resolution), daemon.findings].concat()
        }
        Err(ClientError::NoDaemon { socket, .. }) => {
            let says = format!("none listens on {}", socket.display());
            let mut start = "synapse serve".to_owned();
            if let Some(dir) = &places.data_dir {
                start.push_str(&format!(" --data-dir {}", dir.display()));
            }
            let absent = Finding::new(Verdict::Note, "daemon", says).advise(start);
            [ground(&resolution), vec![absent], without_daemon(&resolution)].concat()
        }
        Err(error) => {
            let unusable = Finding::new(Verdict::Bad, "daemon", error.to_string());
            [ground(&resolution), vec![unusable]].concat()
        }
    };
    output.value(&findings, |findings, style| render(findings, style))?;
    match findings
        .iter()
        .filter(|finding| finding.verdict == Verdict::Bad)
        .count()
    {
        0 => Ok(()),
        1 => Err(CliError::Found("1 finding needs attention".to_owned())),
        bad => Err(CliError::Found(format!("{bad} findings need attention"))),
    }
}

async fn connect(resolution: &Resolution) -> Result<Client, ClientError> {
    let options = Options {
        socket: Some(resolution.socket.clone()),
        retry: RetryPolicy::default(),
        ..Options::default()
    };
    Client::connect(options).await
}

/// What can be seen of this machine in any case.
fn ground(resolution: &Resolution) -> Vec<Finding> {
    let mut findings = Vec::new();
    let root = resolution.data_dir.root();
    findings.push(if root.is_dir() {
        Finding::new(Verdict::Ok, "data", root.display().to_string())
    } else {
        Finding::new(
            Verdict::Note,
            "data",
            format!("{} does not exist; the daemon makes it", root.display()),
        )
    });
    findings.push(match &resolution.config {
        Ok(resolved) if resolved.files.is_empty() => Finding::new(Verdict::Ok, "config", "no file, all defaults"),
        Ok(resolved) => {
            let files: Vec<String> = resolved
                .files
                .iter()
                .map(|file| file.path.display().to_string())
                .collect();
            Finding::new(Verdict::Ok, "config", files.join(", "))
        }
        Err(problems) => Finding::new(Verdict::Bad, "config", config::words(problems))
            .advise("correct the file; docs/configuration.md lists every setting"),
    });
    findings.push(if resolution.worker.is_file() {
        Finding::new(Verdict::Ok, "worker", resolution.worker.display().to_string())
    } else {
        let says = format!(
            "{} is missing, and plugins cannot be described without it",
            resolution.worker.display()
        );
        Finding::new(Verdict::Bad, "worker", says).advise("install synapse-worker beside synapse, or give --worker")
    });
    findings.push(match offline::trusted(&resolution.trust_file) {
        Ok(rows) => {
            let says = format!("{} promoted bundles in {}", rows.len(), resolution.trust_file.display());
            Finding::new(Verdict::Ok, "trust", says)
        }
        Err(words) => Finding::new(Verdict::Bad, "trust", words),
    });
    findings
}

/// What a running daemon says.
struct Running {
    data_dir: String,
    findings: Vec<Finding>,
}

async fn with_daemon(client: &Client) -> Result<Running, CliError> {
    let info = client.server_info().await?.result;
    let health = client.health().await?.result;
    let mut findings = Vec::new();
    let says = format!("{} (process {}) on {}", info.version, info.pid, info.socket);
    findings.push(match version_skew(VERSION, synapse_client::API_VERSION, &info) {
        None => Finding::new(Verdict::Ok, "daemon", says),
        Some(skew) => Finding::new(Verdict::Note, "daemon", skew),
    });
    let verdict = if health.status == HealthStatus::Ok {
        Verdict::Ok
    } else {
        Verdict::Note
    };
    findings.push(Finding::new(verdict, "health", health.text));
    if !health.store_ok {
        let store = Finding::new(Verdict::Bad, "store", "the database takes no writes");
        findings.push(store.advise(format!(
            "free some space under {} and restart the daemon",
            info.data_dir
        )));
    }
    findings.extend(plugins(
        &client.plugins_list().await?.result.plugins,
        "the daemon's search path",
    ));
    findings.extend(client.models_list().await?.result.models.iter().map(model));
    Ok(Running {
        data_dir: info.data_dir,
        findings,
    })
}

fn without_daemon(resolution: &Resolution) -> Vec<Finding> {
    let sight = offline::look(&OfflineOptions {
        data: resolution.data_dir.clone(),
        plugin_dirs: resolution.plugin_dirs.clone(),
        trust_file: resolution.trust_file.clone(),
        worker_binary: resolution.worker.clone(),
    });
    let sight = match sight {
        Ok(sight) => sight,
        Err(words) => return vec![Finding::new(Verdict::Bad, "data", words)],
    };
    let dirs: Vec<String> = resolution
        .plugin_dirs
        .iter()
        .map(|dir| dir.display().to_string())
        .collect();
    let mut findings = match sight.plugins {
        Ok(found) => plugins(&found, &dirs.join(", ")),
        Err(words) => vec![Finding::new(Verdict::Bad, "plugins", words)],
    };
    match sight.models {
        Ok(models) => findings.extend(models.iter().map(offline_model)),
        Err(words) => findings.push(Finding::new(Verdict::Bad, "models", words)),
    }
    findings
}

fn plugins(found: &[PluginEntry], searched: &str) -> Vec<Finding> {
    if found.is_empty() {
        let nothing = Finding::new(Verdict::Bad, "plugins", format!("no plugin was found in: {searched}"));
        return vec![nothing.advise("make plugins, then synapse serve --plugin-dir DIR")];
    }
    let mut findings: Vec<Finding> = found.iter().map(plugin).collect();
    if !found.iter().any(|plugin| plugin.status == PluginStatus::Ready) {
        findings.push(
            Finding::new(Verdict::Bad, "plugins", "no plugin is ready, so no model can be served")
                .advise("see the reasons above"),
        );
    }
    findings
}

fn plugin(entry: &PluginEntry) -> Finding {
    let (_, word) = status_word(entry);
    let about = format!("plugin {}", entry.id);
    let reason = entry.message.as_deref().or(entry.reason.as_deref()).unwrap_or_default();
    let says = match (&entry.version, reason) {
        (Some(version), "") => format!("{word}, {version}, {}", entry.dir),
        (None, "") => format!("{word}, {}", entry.dir),
        (_, reason) => format!("{word}: {reason} ({})", entry.dir),
    };
    match entry.status {
        PluginStatus::Ready => Finding::new(Verdict::Ok, &about, says),
        // The message often says it already.
        PluginStatus::NeedsWorker if says.contains("synapse plugin trust") => Finding::new(Verdict::Note, &about, says),
        PluginStatus::NeedsWorker if entry.promotable => Finding::new(Verdict::Note, &about, says)
            .advise(format!("if you trust it: synapse plugin trust {}", entry.id)),
        PluginStatus::NeedsWorker | PluginStatus::Disabled | PluginStatus::Shadowed | PluginStatus::Unknown => {
            Finding::new(Verdict::Note, &about, says)
        }
        PluginStatus::Refused => {
            Finding::new(Verdict::Bad, &about, says).advise("install a sound build of it, or remove its folder")
        }
        PluginStatus::Quarantined => Finding::new(Verdict::Bad, &about, says)
            .advise("install another build of it: this one is not touched again"),
    }
}

fn model(entry: &ModelEntry) -> Finding {
    let about = format!("model {}", entry.id);
    let servable = |lane: &&synapse_client::wire::LaneEntry| {
        matches!(
            lane.status,
            LaneStatus::Available | LaneStatus::Loaded | LaneStatus::Loading
        )
    };
    let finding = match entry.state {
        ModelState::NotInstalled => {
            return Finding::new(Verdict::Note, &about, "not installed")
                .advise(format!("synapse models pull {}", entry.id));
        }
        ModelState::Failed => {
            let reason = entry.reason.as_deref().unwrap_or("the last load failed");
            return Finding::new(Verdict::Bad, &about, reason).advise(format!("synapse models load {}", entry.id));
        }
        ModelState::Installed => Finding::new(Verdict::Ok, &about, "installed"),
        ModelState::Loading => Finding::new(Verdict::Ok, &about, "loading"),
        ModelState::Loaded => Finding::new(Verdict::Ok, &about, "loaded"),
        ModelState::Unknown => Finding::new(Verdict::Note, &about, "in a state that this version does not know"),
    };
    if entry.lanes.iter().any(|lane| servable(&lane)) {
        return finding;
    }
    let reasons: Vec<&str> = entry.lanes.iter().filter_map(|lane| lane.reason.as_deref()).collect();
    let why = if reasons.is_empty() {
        "no plugin offers its engine".to_owned()
    } else {
        reasons.join("; ")
    };
    Finding::new(Verdict::Bad, &about, format!("installed, but nothing serves it: {why}"))
}

fn offline_model(model: &OfflineModel) -> Finding {
    let about = format!("model {}", model.id);
    if model.installed {
        Finding::new(Verdict::Ok, &about, "installed")
    } else {
        Finding::new(Verdict::Note, &about, "not installed")
            .advise(format!("synapse serve, then synapse models pull {}", model.id))
    }
}

fn render(findings: &[Finding], style: Style) -> String {
    let mut table = Table::facts();
    for finding in findings {
        let (tone, word) = match finding.verdict {
            Verdict::Ok => (Tone::Good, "ok"),
            Verdict::Note => (Tone::Notice, "note"),
            Verdict::Bad => (Tone::Bad, "bad"),
        };
        table.row(vec![
            Cell::new(tone, word),
            (&finding.about).into(),
            (&finding.says).into(),
        ]);
        if let Some(advice) = &finding.advice {
            table.row(vec![
                "".into(),
                "".into(),
                Cell::new(Tone::Heading, &format!("-> {advice}")),
            ]);
        }
    }
    table.render(style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::models::samples;

    fn entry(status: PluginStatus, message: Option<&str>) -> PluginEntry {
        PluginEntry {
            id: "owned".to_owned(),
            version: Some("0.1.0".to_owned()),
            dir: "/p/owned".to_owned(),
            digest: None,
            status,
            reason: None,
            message: message.map(str::to_owned),
            engines: Vec::new(),
            placement: None,
            promotable: true,
            pending: None,
        }
    }

    #[test]
    fn every_verdict_says_what_to_do() {
        let findings = [
            plugin(&entry(PluginStatus::Ready, None)),
            plugin(&entry(PluginStatus::NeedsWorker, Some("it was not promoted"))),
            plugin(&entry(
                PluginStatus::Refused,
                Some("abi_major: plugin 2, host supports 1"),
            )),
            model(&samples::model()),
        ];
        assert_eq!(
            render(&findings, Style::plain()),
            "\
ok    plugin owned            ready, 0.1.0, /p/owned
note  plugin owned            needs worker: it was not promoted (/p/owned)
                              -> if you trust it: synapse plugin trust owned
bad   plugin owned            refused: abi_major: plugin 2, host supports 1 (/p/owned)
                              -> install a sound build of it, or remove its folder
note  model all-minilm-l6-v2  not installed
                              -> synapse models pull all-minilm-l6-v2
"
        );
    }

    #[test]
    fn an_installed_model_that_nothing_serves_is_bad() {
        let mut entry = samples::model();
        entry.state = ModelState::Installed;
        assert_eq!(model(&entry).verdict, Verdict::Ok);
        entry.lanes[0].status = LaneStatus::NoPlugin;
        entry.lanes[0].reason = Some("no bundle offers owned".to_owned());
        let finding = model(&entry);
        assert_eq!(finding.verdict, Verdict::Bad);
        assert!(finding.says.contains("no bundle offers owned"));
    }

    #[test]
    fn no_ready_plugin_is_bad_even_where_each_is_only_a_note() {
        let findings = plugins(&[entry(PluginStatus::NeedsWorker, None)], "");
        assert_eq!(findings.last().unwrap().verdict, Verdict::Bad);
        let nothing = plugins(&[], "/a, /b");
        assert!(nothing[0].says.contains("/a, /b"));
    }
}
