//! What a run prints: results to stdout, everything else to stderr.
//!
//! It owns the choice of form (text or JSON) and of colour. A reader that closes the pipe early (`| head`) ends the
//! run without a complaint.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use synapse_client::ClientError;

use crate::args::Global;
use crate::error::CliError;
use crate::style::{Style, Tone, clean};

/// The streams of one run.
#[derive(Debug)]
pub struct Output {
    json: bool,
    terminal: bool,
    out: Style,
    err: Style,
}

impl Output {
    /// Looks at the options, at `NO_COLOR` and at the streams.
    pub fn new(global: &Global) -> Self {
        let no_color = std::env::var("NO_COLOR").ok();
        let decide = |terminal| Style::decide(global.color, no_color.as_deref(), terminal);
        let terminal = io::stdout().is_terminal();
        Self {
            json: global.json,
            terminal,
            out: decide(terminal),
            err: decide(io::stderr().is_terminal()),
        }
    }

    /// Whether JSON was asked for.
    pub const fn is_json(&self) -> bool {
        self.json
    }

    /// Whether stdout is a terminal.
    pub const fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// The style of stdout.
    pub const fn style(&self) -> Style {
        self.out
    }

    /// Prints text as it is.
    pub fn text(&mut self, text: &str) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .map_err(|error| CliError::io("writing to stdout", error))
    }

    /// Prints a value as one line of JSON.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), CliError> {
        let mut line = serde_json::to_string(value).map_err(|error| CliError::Internal(error.to_string()))?;
        line.push('\n');
        self.text(&line)
    }

    /// Prints a value as JSON where that was asked for, otherwise the text that `render` makes of it.
    pub fn value<T: Serialize>(&mut self, value: &T, render: impl FnOnce(&T, Style) -> String) -> Result<(), CliError> {
        if self.json {
            self.json(value)
        } else {
            let text = render(value, self.out);
            self.text(&text)
        }
    }

    /// Says something on stderr that is no result: a warning.
    pub fn warn(&self, message: &str) {
        self.note(Tone::Notice, "warning", message);
    }

    /// Says something on stderr that is no result: what happens now.
    pub fn say(&self, message: &str) {
        // A closed stderr is no reason to stop.
        let _ = writeln!(io::stderr().lock(), "{}", clean(message));
    }

    fn note(&self, tone: Tone, word: &str, message: &str) {
        let word = self.err.paint(tone, word);
        let _ = writeln!(io::stderr().lock(), "{word}: {}", clean(message));
    }

    /// Says why the run failed, with advice, and returns the exit code.
    pub fn report(&self, error: &CliError) -> u8 {
        if matches!(error, CliError::ReaderGone) {
            return error.exit_code();
        }
        if self.json {
            let line = error_line(error);
            let _ = writeln!(io::stderr().lock(), "{line}");
        } else {
            self.note(Tone::Bad, "error", &error.to_string());
            for line in error.advice().iter().flat_map(|advice| advice.lines()) {
                let _ = writeln!(io::stderr().lock(), "  {line}");
            }
        }
        error.exit_code()
    }
}

/// An error as JSON: the daemon's own error object where there is one.
fn error_line(error: &CliError) -> String {
    let object = match error {
        CliError::Client(ClientError::Daemon(object)) => serde_json::json!({ "error": object }),
        CliError::Job(failure) => serde_json::json!({ "error": { "message": failure.message, "data": failure } }),
        other => serde_json::json!({ "error": { "message": other.to_string(), "exit_code": other.exit_code() } }),
    };
    object.to_string()
}

#[cfg(test)]
mod tests {
    use synapse_client::wire::{Class, ErrorCode, Failure};

    use super::*;

    #[test]
    fn errors_have_a_json_form() {
        let failure = Failure {
            code: ErrorCode::DownloadFailed,
            message: "cut".to_owned(),
            class: Class::Transient,
            retry_after_ms: Some(5),
            safe_to_retry_same_request: true,
            detail: None,
        };
        let line: serde_json::Value = serde_json::from_str(&error_line(&CliError::Job(Box::new(failure)))).unwrap();
        assert_eq!(line["error"]["data"]["code"], "download_failed");
        let line: serde_json::Value = serde_json::from_str(&error_line(&CliError::Usage("no".to_owned()))).unwrap();
        assert_eq!(line["error"], serde_json::json!({"message": "no", "exit_code": 2}));
    }
}
