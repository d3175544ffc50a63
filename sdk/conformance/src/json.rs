//! The JSON of this crate: the report, the note from the run to a check's process, and its answer.
//!
//! State: none. The report's form is version 1; fields are added, never changed. The other two are between two processes
//! of one program.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::catalogue::{Outcome, Stop, Verdict, find};
use crate::report::Report;

/// What a check's process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The check's id.
    pub(crate) check: String,
    /// The bundle's id and package version.
    pub(crate) id: String,
    pub(crate) version: String,
    /// The staged copy of the bundle.
    pub(crate) bundle: PathBuf,
    /// The library, relative to it; absent for an executable bundle.
    pub(crate) library: Option<PathBuf>,
    /// The program that serves the bundle over the worker protocol.
    pub(crate) worker: Option<PathBuf>,
    /// The bundle's descriptor as the describing process printed it.
    pub(crate) descriptor: String,
    /// The bundle may end its process: its manifest does not say that it cannot.
    pub(crate) abort_capable: bool,
    /// The manifest's `[engine.config]`.
    pub(crate) settings: Vec<(String, String)>,
    /// The file that names models and tests, where there is one.
    pub(crate) subject: Option<PathBuf>,
    /// A private folder for this check.
    pub(crate) work: PathBuf,
    /// The seed of everything that is drawn.
    pub(crate) seed: u64,
}

impl Job {
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    pub(crate) fn from_json(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// A check's answer as a line.
pub(crate) fn answer(verdict: &Verdict) -> String {
    let (outcome, message) = match verdict {
        Ok(()) => (Outcome::Pass, ""),
        Err(stop) => (stop.outcome, stop.message.as_str()),
    };
    json!({"outcome": outcome.name(), "message": message}).to_string()
}

/// A check's answer back from its line; `None` when it is none.
pub(crate) fn read_answer(text: &str) -> Option<Verdict> {
    let value: Value = serde_json::from_str(text).ok()?;
    let name = value.get("outcome")?.as_str()?;
    let outcome = Outcome::ALL.into_iter().find(|outcome| outcome.name() == name)?;
    let message = value.get("message")?.as_str()?.to_owned();
    Some(match outcome {
        Outcome::Pass => Ok(()),
        outcome => Err(Stop { outcome, message }),
    })
}

/// Settings of an engine as it gets them: one object of strings.
pub(crate) fn settings(settings: &[(String, String)]) -> String {
    let pairs = settings
        .iter()
        .map(|(key, value)| (key.clone(), Value::from(value.clone())));
    Value::Object(pairs.collect::<Map<String, Value>>()).to_string()
}

/// A control frame with fields and a type that version 3 does not have.
pub(crate) fn frame(type_name: &str, req_id: u64, raw_bytes: usize) -> Vec<u8> {
    json!({"type": type_name, "req_id": req_id, "raw_bytes": raw_bytes, "later": {"deep": [1, null]}})
        .to_string()
        .into_bytes()
}

/// A control frame with fields added, at its top and inside each of its objects.
pub(crate) fn with_unknown_fields(payload: &[u8]) -> Vec<u8> {
    fn grow(value: &mut Value) {
        match value {
            // A map of settings is data: its keys are not fields.
            Value::Object(fields) => {
                for (_, inner) in fields.iter_mut().filter(|(name, _)| *name != "extra") {
                    grow(inner);
                }
                if !fields.contains_key("ids") && !fields.contains_key("text") {
                    fields.insert("a_later_field".to_owned(), json!({"x": 1}));
                }
            }
            Value::Array(items) => items.iter_mut().for_each(grow),
            _ => {}
        }
    }
    let mut value: Value = serde_json::from_slice(payload).unwrap_or_default();
    grow(&mut value);
    value.to_string().into_bytes()
}

/// Whether a payload is a JSON object with a string `type`, and all its whole numbers are below 2^53.
pub(crate) fn is_control_frame(payload: &[u8]) -> bool {
    fn small(value: &Value) -> bool {
        match value {
            Value::Number(number) => number.as_u64().is_none_or(|n| n < 1 << 53),
            Value::Array(items) => items.iter().all(small),
            Value::Object(fields) => fields.values().all(small),
            _ => true,
        }
    }
    serde_json::from_slice::<Value>(payload)
        .is_ok_and(|value| value.get("type").is_some_and(Value::is_string) && small(&value))
}

impl Report {
    /// The report as JSON: `{form, bundle, version, digest, level, seed, passed, counts, checks}`.
    #[must_use]
    pub fn to_json(&self) -> String {
        let counts = Outcome::ALL.map(|outcome| (outcome.name().to_owned(), json!(self.count(outcome))));
        let lines = self.lines.iter().map(|line| {
            let rules = find(&line.id).map_or(&[][..], |check| check.rules);
            json!({
                "id": line.id,
                "outcome": line.outcome.name(),
                "message": line.message,
                "ms": line.ms,
                "rules": rules,
            })
        });
        let report = json!({
            "form": 1,
            "bundle": self.bundle,
            "version": self.version,
            "digest": self.digest,
            "level": self.level.name(),
            "seed": self.seed,
            "passed": self.passed(),
            "counts": Map::from_iter(counts),
            "checks": lines.collect::<Vec<_>>(),
        });
        serde_json::to_string_pretty(&report).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Level;
    use crate::report::Line;

    #[test]
    fn an_answer_is_whole_or_none() {
        for outcome in Outcome::ALL {
            let message = "a \"word\"\nand another".to_owned();
            let verdict = match outcome {
                Outcome::Pass => Ok(()),
                outcome => Err(Stop { outcome, message }),
            };
            assert_eq!(read_answer(&answer(&verdict)), Some(verdict));
        }
        for broken in [
            "",
            "{",
            "{\"outcome\":\"fail\"}",
            "{\"outcome\":\"other\",\"message\":\"\"}",
        ] {
            assert_eq!(read_answer(broken), None, "{broken}");
        }
    }

    #[test]
    fn a_report_names_its_digest_its_seed_and_the_rules() {
        let line = Line {
            id: "load-handles".into(),
            outcome: Outcome::Fail,
            message: "handle 1 was given twice".into(),
            ms: 3,
        };
        let report = Report {
            bundle: "demo".into(),
            version: "0.1.0".into(),
            digest: "ab".repeat(32),
            level: Level::Full,
            seed: 7,
            lines: vec![line],
        };
        let value: Value = serde_json::from_str(&report.to_json()).expect("JSON");
        assert_eq!(
            (&value["form"], &value["level"], &value["seed"]),
            (&json!(1), &json!("full"), &json!(7))
        );
        assert_eq!((&value["passed"], &value["counts"]["fail"]), (&json!(false), &json!(1)));
        assert_eq!(value["digest"], json!("ab".repeat(32)));
        assert_eq!(value["checks"][0]["rules"], json!(["PC-22"]));
    }

    #[test]
    fn later_fields_are_everywhere_but_in_data() {
        let message =
            br#"{"type":"LOAD","files":[{"role":"w"}],"runtime_config":{"extra":{"k":"v"}},"prompt":{"ids":3}}"#;
        let grown: Value = serde_json::from_slice(&with_unknown_fields(message)).expect("JSON");
        let has = |value: &Value| value.get("a_later_field").is_some();
        assert!(has(&grown) && has(&grown["files"][0]) && has(&grown["runtime_config"]));
        assert!(!has(&grown["runtime_config"]["extra"]) && !has(&grown["prompt"]));
        assert!(is_control_frame(br#"{"type":"X","n":9007199254740991}"#));
        assert!(!is_control_frame(br#"{"type":"X","n":9007199254740992}"#) && !is_control_frame(b"[]"));
    }
}
