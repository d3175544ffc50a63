//! The one level control: `error,synapse.perf=info` (LOG-04).
//!
//! State: none. Callers: `log/mod.rs`. Not known here: where the text comes from. The longest logger name that is the
//! event's logger or an ancestor of it decides; a bare level is that of `synapse`.

use tracing::level_filters::LevelFilter;
use tracing::{Level, level_filters::ParseLevelFilterError};

/// Which lines are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    rules: Vec<(String, LevelFilter)>,
}

/// A filter that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log filter has {part:?}: expected LEVEL or LOGGER=LEVEL, with LEVEL one of off, error, warn, info, debug, trace and LOGGER one of {}", super::LOGGERS.join(", "))]
pub struct FilterProblem {
    /// The part that is wrong.
    pub part: String,
}

impl Default for Filter {
    /// `info`.
    fn default() -> Self {
        Self {
            rules: vec![(String::from("synapse"), LevelFilter::INFO)],
        }
    }
}

impl Filter {
    /// Reads a filter; later parts win over earlier ones for the same logger.
    ///
    /// # Errors
    /// [`FilterProblem`] names the part.
    pub fn parse(text: &str) -> Result<Self, FilterProblem> {
        let mut filter = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let problem = |_: ParseLevelFilterError| FilterProblem { part: part.to_owned() };
            let (logger, level) = part.split_once('=').unwrap_or(("synapse", part));
            if !super::LOGGERS.contains(&logger) {
                return Err(FilterProblem { part: part.to_owned() });
            }
            let level = level.parse::<LevelFilter>().map_err(problem)?;
            filter.rules.retain(|(known, _)| known != logger);
            filter.rules.push((logger.to_owned(), level));
        }
        Ok(filter)
    }

    /// Whether a line of `logger` at `level` is written. Other crates' events (`ours` is false) never go below WARN.
    pub(super) fn allows(&self, logger: &str, level: Level, ours: bool) -> bool {
        let applies = |name: &str| {
            logger
                .strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let rule = self
            .rules
            .iter()
            .filter(|(name, _)| applies(name))
            .max_by_key(|(name, _)| name.len());
        rule.is_some_and(|(_, most)| level <= *most) && (ours || level <= Level::WARN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_decides() {
        let filter = Filter::parse("error, synapse.perf=info,synapse.cert=off,,synapse.perf=debug").unwrap();
        assert!(filter.allows("synapse", Level::ERROR, true) && !filter.allows("synapse", Level::WARN, true));
        assert!(
            filter.allows("synapse.perf", Level::DEBUG, true) && !filter.allows("synapse.perf", Level::TRACE, true)
        );
        assert!(!filter.allows("synapse.cert", Level::ERROR, true));
        assert!(filter.allows("synapse.config", Level::ERROR, true));
        assert!(!Filter::parse("trace").unwrap().allows("synapse", Level::INFO, false));
        assert_eq!(Filter::parse("").unwrap(), Filter::default());
    }

    #[test]
    fn a_wrong_part_is_named() {
        for (text, part) in [
            ("loud", "loud"),
            ("info,synapse.perf=loud", "synapse.perf=loud"),
            ("other=info", "other=info"),
        ] {
            let problem = Filter::parse(text).unwrap_err();
            assert_eq!(problem.part, part);
            assert!(problem.to_string().contains("synapse.maintenance"));
        }
    }
}
