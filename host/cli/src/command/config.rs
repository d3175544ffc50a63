//! `synapse config show`: every setting with its value and where it came from.
//!
//! No state. What the settings are is the daemon's affair; this reads the same files as a start would.

use serde::Serialize;
use synapse_daemon::config::{ConfigProblem, ShownSetting};

use crate::args::{Config, Global};
use crate::error::CliError;
use crate::output::Output;
use crate::places;
use crate::style::{Style, Tone};
use crate::table::{Cell, Table};

#[derive(Serialize)]
struct Setting {
    key: String,
    value: serde_json::Value,
    layer: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

/// Reads and prints.
pub fn run(global: &Global, config: Config, output: &mut Output) -> Result<(), CliError> {
    let Config::Show(places) = config;
    let resolution = places::resolve(global, &places)?;
    let resolved = resolution
        .config
        .map_err(|problems| CliError::Usage(words(&problems)))?;
    let settings: Vec<Setting> = resolved.show().into_iter().map(setting).collect();
    output.value(&settings, |settings, style| render(settings, style))
}

/// Every problem, one a line.
pub fn words(problems: &[ConfigProblem]) -> String {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    format!("the configuration is wrong: {}", lines.join("; "))
}

fn setting(shown: ShownSetting) -> Setting {
    Setting {
        key: shown.key,
        value: shown.value,
        layer: shown.layer.as_str(),
        file: shown.file.map(|file| file.display().to_string()),
    }
}

fn render(settings: &[Setting], style: Style) -> String {
    let mut table = Table::new(&["SETTING", "VALUE", "FROM"]);
    for setting in settings {
        let from = match &setting.file {
            Some(file) => Cell::from(format!("{} {file}", setting.layer)),
            None => Cell::new(Tone::Quiet, setting.layer),
        };
        table.row(vec![(&setting.key).into(), setting.value.to_string().into(), from]);
    }
    table.render(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_says_where_it_came_from() {
        let setting = |key: &str, value, layer, file: Option<&str>| Setting {
            key: key.to_owned(),
            value,
            layer,
            file: file.map(str::to_owned),
        };
        let settings = [
            setting("knob", "balanced".into(), "default", None),
            setting("inline.items", 32.into(), "user", Some("/h/.config/synapse.jsonc")),
        ];
        assert_eq!(
            render(&settings, Style::plain()),
            "\
SETTING       VALUE       FROM
knob          \"balanced\"  default
inline.items  32          user /h/.config/synapse.jsonc
"
        );
    }
}
