//! `cargo synapse explain`: why a check matters, and how to fix what it found.
//!
//! No state; the words are the kit's.

use std::process::ExitCode;

use serde::Serialize;

use crate::error::Error;
use crate::output::Output;

#[derive(Serialize)]
struct Row {
    id: &'static str,
    level: String,
    says: &'static str,
}

/// Explains one check, or lists all.
///
/// # Errors
/// [`Error::Usage`] for an id that is none.
pub fn run(id: Option<&str>, output: &Output) -> Result<ExitCode, Error> {
    let Some(id) = id else {
        let rows: Vec<Row> = synapse_conformance::catalogue()
            .map(|check| Row {
                id: check.id,
                level: check.level.to_string(),
                says: check.says,
            })
            .collect();
        let width = rows.iter().map(|row| row.id.len()).max().unwrap_or(0);
        let lines: Vec<String> = rows
            .iter()
            .map(|row| format!("{:width$}  {:5}  {}", row.id, row.level, row.says))
            .collect();
        output.result(&lines.join("\n"), &rows);
        return Ok(ExitCode::SUCCESS);
    };
    let text = synapse_conformance::explain(id)
        .ok_or_else(|| Error::Usage(format!("no check is named {id:?}; `cargo synapse explain` lists all")))?;
    output.result(&text, &std::collections::BTreeMap::from([("explanation", &text)]));
    Ok(ExitCode::SUCCESS)
}
