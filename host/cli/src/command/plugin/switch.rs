//! `synapse plugin disable ID` and `enable ID`: switches a bundle off and on.
//!
//! No state. Which bundles are off is kept in the trust file, which belongs to the operator; a running daemon is told to
//! look at once.

use serde::Serialize;
use synapse_client::wire::PluginStatus;
use synapse_daemon::offline;

use super::{find, look};
use crate::args::{Global, PluginPlace};
use crate::error::CliError;
use crate::output::Output;
use crate::style::{Style, clean};

#[derive(Serialize)]
struct Done {
    id: String,
    disabled: bool,
    changed: bool,
    trust_file: String,
    /// The running daemon counts it already.
    counts_now: bool,
}

/// Writes the file, and lets the daemon look.
pub async fn run(global: &Global, bundle: PluginPlace, disabled: bool, output: &mut Output) -> Result<(), CliError> {
    let sight = look(global, &bundle).await?;
    // A misspelt id would be switched off without a word.
    find(&sight.plugins, &bundle.id)?;
    let file = &sight.places.trust_file;
    let changed = offline::set_disabled(file, &bundle.id, disabled).map_err(CliError::Found)?;
    let counts_now = match &sight.daemon {
        None => false,
        Some(client) => {
            let plugins = client.plugins_rescan().await?.result.plugins;
            let is_off = find(&plugins, &bundle.id)?.status == PluginStatus::Disabled;
            if is_off != disabled {
                return Err(CliError::Found(format!(
                    "{} was written, and the daemon reads another trust file: give the --trust-file that it was started with",
                    file.display()
                )));
            }
            true
        }
    };
    let done = Done {
        id: bundle.id,
        disabled,
        changed,
        trust_file: file.display().to_string(),
        counts_now,
    };
    output.value(&done, render)
}

fn render(done: &Done, _: Style) -> String {
    let (id, file) = (clean(&done.id), clean(&done.trust_file));
    let word = if done.disabled { "off" } else { "on" };
    if !done.changed {
        return format!("{id} was switched {word} already\n");
    }
    let when = match (done.counts_now, done.disabled) {
        (true, true) => "its lanes end what they have begun",
        (true, false) => "it serves again",
        (false, _) => "it counts from the daemon's next start on",
    };
    format!("{id} is switched {word}; {when}\nwritten to {file}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_say_when_it_counts() {
        let done = |disabled, changed, counts_now| Done {
            id: "owned".to_owned(),
            disabled,
            changed,
            trust_file: "/d/trust.toml".to_owned(),
            counts_now,
        };
        let text = |done: &Done| render(done, Style::plain());
        assert_eq!(
            text(&done(true, true, true)),
            "owned is switched off; its lanes end what they have begun\nwritten to /d/trust.toml\n"
        );
        assert!(text(&done(true, true, false)).contains("next start"));
        assert!(text(&done(false, true, true)).contains("switched on; it serves again"));
        assert_eq!(text(&done(false, false, true)), "owned was switched on already\n");
    }
}
