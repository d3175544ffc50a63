//! What a command prints: text for people or one JSON object, and an error with its exit code.
//!
//! State: which of the two is wanted. A closed pipe ends the output, not the command.

use std::io::Write as _;
use std::process::ExitCode;

use serde::Serialize;

use crate::error::Error;
use crate::json;

/// Where output goes.
#[derive(Debug)]
pub struct Output {
    json: bool,
}

impl Output {
    /// Output as text, or as JSON.
    pub const fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether JSON is wanted.
    pub const fn is_json(&self) -> bool {
        self.json
    }

    /// A line for people while the command works. JSON output has none.
    pub fn line(&self, text: &str) {
        if !self.json {
            self.write(text);
        }
    }

    /// What the command has to say in the end: `text`, or `value` as JSON.
    pub fn result<T: Serialize>(&self, text: &str, value: &T) {
        if self.json {
            self.write(&json::of(value));
        } else {
            self.write(text);
        }
    }

    /// Prints text or JSON that is ready.
    pub fn write(&self, text: &str) {
        // Whoever closed the pipe wants no more.
        let _ = writeln!(std::io::stdout(), "{text}");
    }

    /// Reports an error and gives its exit code. With JSON it is an object on standard output, too.
    pub fn failed(&self, error: &Error) -> ExitCode {
        let _ = writeln!(std::io::stderr(), "error: {error}");
        if self.json {
            self.write(&json::of(&std::collections::BTreeMap::from([(
                "error",
                error.to_string(),
            )])));
        }
        ExitCode::from(error.exit_code())
    }
}
