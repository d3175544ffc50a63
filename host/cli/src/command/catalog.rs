//! `synapse catalog check FILE`: checks model records and envelope files, naming every problem.
//!
//! No state. What a file may say is the catalog's; a file with `[[row]]` is one of envelopes, any other a record.

use std::path::Path;

use serde::Serialize;

use crate::args::Catalog;
use crate::error::CliError;
use crate::output::Output;
use crate::style::{Style, Tone, clean};

/// A catalog file is small; anything larger is not one.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

#[derive(Serialize)]
struct Report {
    file: String,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    describes: Option<String>,
    problems: Vec<Found>,
}

#[derive(Serialize)]
struct Found {
    field: String,
    message: String,
}

/// Checks every file and fails where one has a problem.
pub fn run(catalog: Catalog, output: &mut Output) -> Result<(), CliError> {
    let Catalog::Check { files } = catalog;
    let mut bad = 0;
    for file in &files {
        let report = check(file, &read(file)?);
        bad += usize::from(!report.ok);
        output.value(&report, render)?;
    }
    if bad == 0 {
        return Ok(());
    }
    Err(CliError::Found(format!("{bad} of {} files have problems", files.len())))
}

fn read(file: &Path) -> Result<String, CliError> {
    let failed = |error| CliError::io(format!("reading {}", file.display()), error);
    let length = std::fs::metadata(file).map_err(failed)?.len();
    if length > MAX_BYTES {
        return Err(CliError::Usage(format!(
            "{} has {length} bytes; a catalog file has at most {MAX_BYTES}",
            file.display()
        )));
    }
    std::fs::read_to_string(file).map_err(failed)
}

fn check(file: &Path, text: &str) -> Report {
    let envelopes = text.lines().any(|line| line.trim_start().starts_with("[[row]]"));
    let outcome = if envelopes {
        synapse_catalog::check_envelopes(text).map(|rows| format!("{} envelope rows", rows.len()))
    } else {
        synapse_catalog::check(text).map(|record| format!("model {}", record.id))
    };
    let problems = match &outcome {
        Ok(_) => Vec::new(),
        Err(problems) => problems
            .iter()
            .map(|problem| Found {
                field: problem.field.clone(),
                message: problem.message.clone(),
            })
            .collect(),
    };
    Report {
        file: file.display().to_string(),
        ok: outcome.is_ok(),
        describes: outcome.ok(),
        problems,
    }
}

fn render(report: &Report, style: Style) -> String {
    let file = clean(&report.file);
    if let Some(describes) = &report.describes {
        return format!("{} {file}: {}\n", style.paint(Tone::Good, "ok"), clean(describes));
    }
    let mut text = format!("{} {file}\n", style.paint(Tone::Bad, "bad"));
    for problem in &report.problems {
        let at = if problem.field.is_empty() {
            String::new()
        } else {
            format!("{}: ", clean(&problem.field))
        };
        text.push_str(&format!("  {at}{}\n", clean(&problem.message)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_named() {
        let report = check(Path::new("m.toml"), "colour = 1\n");
        let text = render(&report, Style::plain());
        assert!(!report.ok);
        assert!(text.starts_with("bad m.toml\n"), "{text}");
        assert!(text.contains("colour"), "{text}");
    }

    #[test]
    fn the_built_in_record_is_good() {
        let text = std::fs::read_to_string(
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../catalog/models/all-minilm-l6-v2.toml"),
        )
        .unwrap();
        let report = check(Path::new("m.toml"), &text);
        assert_eq!(render(&report, Style::plain()), "ok m.toml: model all-minilm-l6-v2\n");
    }
}
