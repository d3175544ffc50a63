//! Log lines: one format, one filter, one file a day.
//!
//! State: the file of the day. Callers: `serve` installs the logger once; everything else logs through `tracing` with
//! one of the seven targets of [`LOGGERS`]. Not known here: what is logged. No other code builds a log path or
//! changes a level (LOG-01, LOG-08).

mod daily;
mod filter;
mod line;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

pub use daily::DailyFile;
pub use filter::{Filter, FilterProblem};

use crate::paths::Environment;

/// Every logger there is (LOG-07).
pub const LOGGERS: [&str; 7] = [
    "synapse",
    "synapse.perf",
    "synapse.worker",
    "synapse.admission",
    "synapse.cert",
    "synapse.maintenance",
    "synapse.config",
];

/// The logger of a tracing target: itself when it is one of ours, otherwise `synapse` (LOG-03).
fn logger(target: &str) -> &'static str {
    LOGGERS.into_iter().find(|name| *name == target).unwrap_or("synapse")
}

/// Whether the target is one of ours rather than another crate's.
fn is_ours(target: &str) -> bool {
    target.starts_with("synapse")
}

/// What the variables say: `SYNAPSE_LOG`, or `CK_LOG` when it is unset.
#[must_use]
pub fn filter_text(environment: &Environment) -> Option<String> {
    let value = environment.get("SYNAPSE_LOG").or_else(|| environment.get("CK_LOG"))?;
    Some(value.to_string_lossy().into_owned())
}

/// Where lines go.
#[derive(Debug)]
pub struct LogOptions {
    /// The folder of the files.
    pub folder: PathBuf,
    /// Which lines are written.
    pub filter: Filter,
    /// Lines go to the standard error output too.
    pub stderr: bool,
}

/// Installs the logger of this process. A second call in one process changes nothing, so that tests can start several
/// daemons.
///
/// # Errors
/// The folder or today's file cannot be made.
pub fn install(options: LogOptions) -> std::io::Result<()> {
    let LogOptions { folder, filter, stderr } = options;
    let file = DailyFile::open(folder, SystemTime::now())?;
    let lines = Lines {
        filter,
        stderr,
        sink: Arc::new(file),
    };
    // An error means that a logger is installed already.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(lines));
    Ok(())
}

/// Takes finished lines.
trait Sink: Send + Sync + 'static {
    /// Writes one line, its end included.
    fn write(&self, line: &str, now: SystemTime);
}

impl Sink for DailyFile {
    fn write(&self, line: &str, now: SystemTime) {
        self.append(line, now);
    }
}

/// The layer that turns events into lines.
struct Lines<S> {
    filter: Filter,
    stderr: bool,
    sink: Arc<S>,
}

/// The fields of a span, as they stand at the end of its events' lines.
struct SpanFields(String);

/// Collects an event's message and its fields.
#[derive(Default)]
struct Collected {
    message: String,
    fields: String,
}

impl Visit for Collected {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            line::push_field(&mut self.fields, field.name(), &format!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            line::push_field(&mut self.fields, field.name(), value);
        }
    }
}

impl<S: Sink, R: Subscriber + for<'span> LookupSpan<'span>> Layer<R> for Lines<S> {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, R>) -> bool {
        // Spans carry the request's id, which belongs on every line of the request, whatever the filter.
        (metadata.is_span() && is_ours(metadata.target()))
            || self
                .filter
                .allows(logger(metadata.target()), *metadata.level(), is_ours(metadata.target()))
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, R>) {
        let mut collected = Collected::default();
        attributes.record(&mut collected);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(SpanFields(collected.fields));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, R>) {
        let mut collected = Collected::default();
        event.record(&mut collected);
        if let Some(scope) = context.event_scope(event) {
            for span in scope.from_root() {
                if let Some(SpanFields(fields)) = span.extensions().get::<SpanFields>() {
                    collected.fields.push_str(fields);
                }
            }
        }
        let now = SystemTime::now();
        let metadata = event.metadata();
        let line = line::format(
            now,
            *metadata.level(),
            logger(metadata.target()),
            &collected.message,
            &collected.fields,
        );
        self.sink.write(&line, now);
        if self.stderr {
            // Nobody is left to tell when the standard error output is closed.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Memory(Mutex<Vec<String>>);

    impl Sink for Memory {
        fn write(&self, line: &str, _: SystemTime) {
            self.0.lock().unwrap().push(line.to_owned());
        }
    }

    fn captured(filter: &str, act: impl FnOnce()) -> Vec<String> {
        let sink = Arc::new(Memory::default());
        let lines = Lines {
            filter: Filter::parse(filter).unwrap(),
            stderr: false,
            sink: Arc::clone(&sink),
        };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), act);
        let lines = sink.0.lock().unwrap();
        lines
            .iter()
            .map(|line| line.split_once(' ').unwrap().1.trim_end().to_owned())
            .collect()
    }

    /// Proves LOG-03, LOG-07.
    #[test]
    fn every_line_names_one_of_the_seven_loggers() {
        let lines = captured("trace", || {
            tracing::info!(target: "synapse.perf", in_flight = 2, queue_depth = 1, "activity");
            tracing::warn!(target: "synapse_daemon::rpc", "from a module");
            tracing::error!(target: "rustls::client", "from another crate");
            tracing::info!(target: "rustls::client", "another crate's chatter");
            tracing::debug!(target: "synapse.unknown", "no such logger");
        });
        assert_eq!(
            lines,
            [
                "INFO synapse.perf: activity in_flight=2 queue_depth=1",
                "WARN synapse: from a module",
                "ERROR synapse: from another crate",
                "DEBUG synapse: no such logger",
            ]
        );
    }

    /// Proves LOG-04.
    #[test]
    fn one_component_is_raised_alone() {
        let lines = captured("error,synapse.perf=info", || {
            tracing::info!(target: "synapse.perf", "a");
            tracing::debug!(target: "synapse.perf", "b");
            tracing::warn!(target: "synapse", "c");
            tracing::error!(target: "synapse.config", "d");
        });
        assert_eq!(lines, ["INFO synapse.perf: a", "ERROR synapse.config: d"]);
    }

    #[test]
    fn lines_of_a_request_carry_its_id_whatever_the_filter() {
        let lines = captured("warn", || {
            let span = tracing::info_span!(target: "synapse", "request", request_id = %"7c-000012");
            span.in_scope(|| tracing::warn!(target: "synapse.admission", waited_ms = 3, "refused"));
            tracing::warn!(target: "synapse", "outside");
        });
        assert_eq!(
            lines,
            [
                "WARN synapse.admission: refused waited_ms=3 request_id=7c-000012",
                "WARN synapse: outside"
            ]
        );
    }

    /// Proves LOG-01.
    #[test]
    fn the_level_comes_from_one_variable() {
        let environment = |pairs: &[(&str, &str)]| -> Environment {
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).into()))
                .collect()
        };
        let text = |pairs| filter_text(&environment(pairs));
        assert_eq!(
            text(&[("SYNAPSE_LOG", "warn"), ("CK_LOG", "debug")]).as_deref(),
            Some("warn")
        );
        assert_eq!(
            text(&[("CK_LOG", "debug"), ("RUST_LOG", "trace")]).as_deref(),
            Some("debug")
        );
        assert_eq!(text(&[("RUST_LOG", "trace")]), None);
    }
}
