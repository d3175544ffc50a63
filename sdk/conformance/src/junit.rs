//! The report as JUnit XML, for continuous integration.
//!
//! State: none. A skip is `skipped`, a fail is `failure`, a crash or a hang is `error`; a warning passes, with its text in
//! `system-out`.

use crate::catalogue::{Outcome, find};
use crate::report::Report;

impl Report {
    /// The report as JUnit XML.
    #[must_use]
    pub fn to_junit(&self) -> String {
        let failures = self.count(Outcome::Fail);
        let errors = self.count(Outcome::Crash) + self.count(Outcome::Hang);
        let mut out = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\" \
             errors=\"{errors}\" skipped=\"{}\">\n  <properties>\n",
            escaped(&self.bundle),
            self.lines.len(),
            self.count(Outcome::Skip),
        );
        let properties = [
            ("version", self.version.clone()),
            ("digest", self.digest.clone()),
            ("level", self.level.to_string()),
            ("seed", self.seed.to_string()),
        ];
        for (name, value) in properties {
            out += &format!("    <property name=\"{name}\" value=\"{}\"/>\n", escaped(&value));
        }
        out += "  </properties>\n";
        for line in &self.lines {
            let group = find(&line.id).map_or("own", |check| check.group().name());
            out += &format!(
                "  <testcase classname=\"{group}\" name=\"{}\" time=\"{}.{:03}\"",
                escaped(&line.id),
                line.ms / 1000,
                line.ms % 1000
            );
            let text = escaped(&line.message);
            out += &match line.outcome {
                Outcome::Pass => "/>\n".to_owned(),
                Outcome::Warn => format!("><system-out>{text}</system-out></testcase>\n"),
                Outcome::Skip => format!("><skipped message=\"{text}\"/></testcase>\n"),
                Outcome::Fail => format!("><failure message=\"{text}\"/></testcase>\n"),
                Outcome::Crash | Outcome::Hang => {
                    format!("><error type=\"{}\" message=\"{text}\"/></testcase>\n", line.outcome)
                }
            };
        }
        out + "</testsuite>\n"
    }
}

/// XML text; characters that XML has no form for become `?`.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\n' | '\t' => out += &format!("&#{};", u32::from(c)),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use crate::catalogue::{Level, Outcome};
    use crate::report::{Line, Report};

    #[test]
    fn hostile_words_stay_inside_their_attribute() {
        let line = |outcome, message: &str| Line {
            id: "load-handles".into(),
            outcome,
            message: message.into(),
            ms: 1002,
        };
        let report = Report {
            bundle: "a\"b".into(),
            version: "1.0.0".into(),
            digest: String::new(),
            level: Level::Core,
            seed: 7,
            lines: vec![line(Outcome::Fail, "<&\"\u{1b}\n>"), line(Outcome::Hang, "45 s")],
        };
        let text = report.to_junit();
        assert!(
            text.contains("name=\"a&quot;b\" tests=\"2\" failures=\"1\" errors=\"1\" skipped=\"0\""),
            "{text}"
        );
        assert!(
            text.contains("<failure message=\"&lt;&amp;&quot;?&#10;&gt;\"/>"),
            "{text}"
        );
        assert!(
            text.contains("classname=\"library\" name=\"load-handles\" time=\"1.002\""),
            "{text}"
        );
        assert!(text.contains("<error type=\"hang\" message=\"45 s\"/>"), "{text}");
    }
}
