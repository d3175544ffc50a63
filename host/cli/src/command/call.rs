//! `synapse call METHOD JSON`: any operation, its result as the daemon wrote it.
//!
//! No state. The params go out as they came in; only that they are a JSON object is checked here.

use serde_json::value::RawValue;

use crate::args::{Call, Global};
use crate::error::CliError;
use crate::input::argument_or_stdin;
use crate::output::Output;
use crate::session::{self, Patience};

/// Calls and prints: one line with `--json`, indented otherwise.
pub async fn run(global: &Global, call: Call, output: &mut Output) -> Result<(), CliError> {
    let params = params(&argument_or_stdin(&call.params)?)?;
    let client = session::open(global, output, Patience::None).await?;
    let result = client.call_raw(&call.method, &params).await?;
    if output.is_json() {
        return output.text(&format!("{}\n", result.get()));
    }
    output.text(&indented(&result)?)
}

fn params(text: &str) -> Result<Box<RawValue>, CliError> {
    let raw: Box<RawValue> = serde_json::from_str(text.trim())
        .map_err(|error| CliError::Usage(format!("the params are not JSON: {error}")))?;
    if raw.get().starts_with('{') {
        Ok(raw)
    } else {
        Err(CliError::Usage(
            "the params must be a JSON object, for example '{\"model\": \"all-minilm-l6-v2\"}'".to_owned(),
        ))
    }
}

fn indented(result: &RawValue) -> Result<String, CliError> {
    let value: serde_json::Value =
        serde_json::from_str(result.get()).map_err(|error| CliError::Internal(error.to_string()))?;
    let mut text = serde_json::to_string_pretty(&value).map_err(|error| CliError::Internal(error.to_string()))?;
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn params_are_one_json_object() {
        assert_eq!(params(" {\"a\": 1}\n").unwrap().get(), "{\"a\": 1}");
        for text in ["", "[1]", "1", "{", "{} {}"] {
            assert!(matches!(params(text), Err(CliError::Usage(_))), "{text}");
        }
    }

    #[test]
    fn results_are_indented() {
        let raw: Box<RawValue> = serde_json::from_str("{\"a\":[1]}").unwrap();
        assert_eq!(indented(&raw).unwrap(), "{\n  \"a\": [\n    1\n  ]\n}\n");
    }
}
