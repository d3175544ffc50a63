//! Lays the layers over each other: for each setting the first layer that has it wins (CONF-01).
//!
//! State: none. Callers: the daemon's start and `synapse config show`. Not known here: how values are read.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::ConfigProblem;
use super::layers::{self, Entry, Layer, LayerFile};
use super::schema::{Config, FIELDS, GROUPS};
use super::setting::{Field, Scope};
use crate::paths::{Environment, Platform};

/// The settings and where each came from.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The settings.
    pub config: Config,
    /// The files that were read, strongest first.
    pub files: Vec<LayerFile>,
    origins: Vec<(Layer, Option<PathBuf>)>,
}

/// One line of `synapse config show`.
#[derive(Clone, Debug, PartialEq)]
pub struct ShownSetting {
    /// The full name, for example `connection.max_in_flight`.
    pub key: String,
    /// The value in force.
    pub value: Value,
    /// The layer it came from.
    pub layer: Layer,
    /// The file it came from; none for a default.
    pub file: Option<PathBuf>,
}

impl Resolved {
    /// Every setting with its value and its layer, in the order of the documentation.
    #[must_use]
    pub fn show(&self) -> Vec<ShownSetting> {
        FIELDS
            .iter()
            .zip(&self.origins)
            .map(|(field, (layer, file))| ShownSetting {
                key: field.key(),
                value: (field.get)(&self.config),
                layer: *layer,
                file: file.clone(),
            })
            .collect()
    }
}

/// Reads every layer's file and resolves the settings.
///
/// # Errors
/// Every problem found, each naming its file, line and setting (CONF-04).
pub fn load(environment: &Environment, platform: Platform, project: &Path) -> Result<Resolved, Vec<ConfigProblem>> {
    let mut problems = Vec::new();
    let mut layers = Vec::new();
    for file in layers::layer_files(environment, platform, project) {
        match layers::read(&file) {
            Ok(Some(entries)) => layers.push((file, entries)),
            Ok(None) => {}
            Err(problem) => problems.push(problem),
        }
    }
    resolve(layers, problems)
}

/// Resolves settings from layers that were read, strongest first.
fn resolve(
    layers: Vec<(LayerFile, Vec<Entry>)>,
    mut problems: Vec<ConfigProblem>,
) -> Result<Resolved, Vec<ConfigProblem>> {
    let mut config = Config::default();
    let mut origins = vec![(Layer::Default, None); FIELDS.len()];
    for (file, entries) in &layers {
        for entry in entries {
            if let Err(message) = apply(&mut config, &mut origins, file, entry) {
                let key = if entry.group.is_empty() {
                    entry.name.clone()
                } else {
                    format!("{}.{}", entry.group, entry.name)
                };
                problems.push(ConfigProblem {
                    file: Some(file.path.clone()),
                    line: Some(entry.line),
                    key: Some(key),
                    message,
                });
            }
        }
    }
    problems.extend(contradictions(&config));
    if problems.is_empty() {
        Ok(Resolved {
            config,
            files: layers.into_iter().map(|(file, _)| file).collect(),
            origins,
        })
    } else {
        Err(problems)
    }
}

/// Takes one entry over into the configuration, unless a stronger layer has set it; checks it in any case.
fn apply(
    config: &mut Config,
    origins: &mut [(Layer, Option<PathBuf>)],
    file: &LayerFile,
    entry: &Entry,
) -> Result<(), String> {
    let Some((index, field)) = find(entry) else {
        return Err(unknown(entry));
    };
    if field.scope == Scope::Machine && file.layer == Layer::Project {
        return Err(String::from(
            "is a gate or concerns the whole machine, so a project's file may not set it; put it into your user file",
        ));
    }
    let mut checked = config.clone();
    (field.set)(&mut checked, &entry.value)?;
    if let Some(origin) = origins.get_mut(index)
        && origin.0 == Layer::Default
    {
        *config = checked;
        *origin = (file.layer, Some(file.path.clone()));
    }
    Ok(())
}

/// The setting that an entry names.
fn find(entry: &Entry) -> Option<(usize, &'static Field)> {
    FIELDS
        .iter()
        .enumerate()
        .find(|(_, field)| field.group == entry.group && field.name == entry.name)
}

/// Words for a name that is no setting: the names that would have been.
fn unknown(entry: &Entry) -> String {
    let is_group = |name: &str| GROUPS.iter().any(|(group, _)| *group == name);
    if entry.group.is_empty() && is_group(&entry.name) {
        return format!(
            "is a group: expected an object with settings, found {}",
            entry.value.kind()
        );
    }
    let group = if is_group(&entry.group) {
        entry.group.as_str()
    } else {
        ""
    };
    let mut known: Vec<&str> = FIELDS
        .iter()
        .filter(|field| field.group == group)
        .map(|field| field.name)
        .collect();
    if group.is_empty() {
        known.extend(GROUPS.iter().map(|(name, _)| *name));
    }
    format!("unknown setting; known here: {}", known.join(", "))
}

/// Settings that are each allowed but cannot stand together.
fn contradictions(config: &Config) -> Vec<ConfigProblem> {
    let rules = [
        (
            config.request.max_queue_ms > config.request.deadline_ms,
            "request.max_queue_ms",
            "is larger than request.deadline_ms; lower it or raise the other",
        ),
        (
            config.inline.max_item_bytes > config.inline.max_text_bytes,
            "inline.max_item_bytes",
            "is larger than inline.max_text_bytes; lower it or raise the other",
        ),
    ];
    rules
        .into_iter()
        .filter(|(broken, _, _)| *broken)
        .map(|(_, key, message)| ConfigProblem {
            file: None,
            line: None,
            key: Some(key.to_owned()),
            message: message.to_owned(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::setting::Knob;

    /// Resolves layers given as texts.
    fn resolve_texts(texts: &[(Layer, &str)]) -> Result<Resolved, Vec<ConfigProblem>> {
        let layers = texts
            .iter()
            .map(|(layer, text)| {
                let path = PathBuf::from(format!("/{}.jsonc", layer.as_str()));
                (
                    LayerFile {
                        layer: *layer,
                        path,
                        required: false,
                    },
                    layers::parse(text).unwrap(),
                )
            })
            .collect();
        resolve(layers, Vec::new())
    }

    fn only_problem(texts: &[(Layer, &str)]) -> String {
        let problems = resolve_texts(texts).unwrap_err();
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems[0].to_string()
    }

    /// Proves CONF-01, CONF-07.
    #[test]
    fn the_first_layer_that_has_a_setting_wins() {
        let resolved = resolve_texts(&[
            (Layer::Environment, r#"{"microllm_max_tokens": 1}"#),
            (Layer::Project, r#"{"microllm_max_tokens": 2, "preload_models": ["m"]}"#),
            (
                Layer::User,
                r#"{"microllm_max_tokens": 3, "preload_models": [], "inline": {"max_items": 7}}"#,
            ),
        ])
        .unwrap();
        assert_eq!(resolved.config.microllm_max_tokens, 1);
        assert_eq!(resolved.config.preload_models, ["m"]);
        assert_eq!(resolved.config.inline.max_items, 7);
        assert_eq!(resolved.config.inline.max_tokens, 8_192);
        let origin = |key: &str| resolved.show().into_iter().find(|row| row.key == key).unwrap();
        assert_eq!(origin("microllm_max_tokens").layer, Layer::Environment);
        assert_eq!(origin("preload_models").layer, Layer::Project);
        assert_eq!(origin("inline.max_items").file, Some(PathBuf::from("/user.jsonc")));
        assert_eq!(origin("inline.max_tokens").layer, Layer::Default);
    }

    /// Proves CONF-04, CONF-13, CONF-15.
    #[test]
    fn an_unknown_setting_is_refused_by_name() {
        for (text, name) in [
            (r#"{"knobb": 1}"#, "knobb"),
            (r#"{"log": {"level": "debug"}}"#, "log.level"),
            (r#"{"remote_endpoint": "http://example.org"}"#, "remote_endpoint"),
            (r#"{"logs": {"perf_interval_secs": 1}}"#, "logs.perf_interval_secs"),
        ] {
            let message = only_problem(&[(Layer::User, text)]);
            assert!(message.contains(name) && message.contains("line 1"), "{message}");
        }
    }

    /// Proves CONF-05, CONF-09, CONF-10, CONF-08, CONF-16.
    #[test]
    fn defaults_are_the_documented_ones() {
        let config = resolve_texts(&[]).unwrap().config;
        assert_eq!(config.knob, Knob::Balanced);
        assert_eq!(config.microllm_max_tokens, 512);
        assert!(!config.grammar_enabled && !config.alias_admin_enabled && !config.certify_observation);
        assert_eq!(
            (config.log.perf_interval_secs, config.log.worker_forward_lines_per_sec),
            (0, 50)
        );
        assert_eq!(
            (
                config.inline.max_items,
                config.inline.max_tokens,
                config.inline.max_text_bytes
            ),
            (64, 8_192, 8 << 20)
        );
        assert_eq!(
            (config.request.deadline_ms, config.request.max_queue_ms),
            (30_000, 5_000)
        );
        assert_eq!(
            (
                config.connection.max_in_flight,
                config.connection.max_in_flight_per_process
            ),
            (32, 256)
        );
        assert_eq!(
            (config.connection.max_line_bytes, config.connection.line_timeout_ms),
            (16 << 20, 30_000)
        );
    }

    /// Proves CONF-11.
    #[test]
    fn the_cache_watermark_is_a_setting_of_the_machine() {
        assert_eq!(
            resolve_texts(&[(Layer::User, r#"{"cache_max_bytes": 5}"#)])
                .unwrap()
                .config
                .cache_max_bytes,
            5
        );
        assert!(only_problem(&[(Layer::Project, r#"{"cache_max_bytes": 5}"#)]).contains("cache_max_bytes"));
    }

    #[test]
    fn every_machine_setting_is_refused_in_a_project_file_by_name() {
        for field in FIELDS.iter().filter(|field| field.scope == Scope::Machine) {
            let value = (field.get)(&Config::default());
            let text = if field.group.is_empty() {
                format!("{{\"{}\": {value}}}", field.name)
            } else {
                format!("{{\"{}\": {{\"{}\": {value}}}}}", field.group, field.name)
            };
            let message = only_problem(&[(Layer::Project, &text)]);
            assert!(
                message.contains(&field.key()) && message.contains("user file"),
                "{message}"
            );
            for layer in [Layer::Environment, Layer::User] {
                assert!(resolve_texts(&[(layer, &text)]).is_ok(), "{}", field.key());
            }
        }
    }

    #[test]
    fn values_of_the_wrong_type_or_range_are_refused() {
        for text in [
            r#"{"knob": "fast"}"#,
            r#"{"knob": 1}"#,
            r#"{"preload_models": "m"}"#,
            r#"{"preload_models": [1]}"#,
            r#"{"preload_models": [""]}"#,
            r#"{"grammar_enabled": "yes"}"#,
            r#"{"grammar_enabled": null}"#,
            r#"{"microllm_max_tokens": 0}"#,
            r#"{"microllm_max_tokens": 1.5}"#,
            r#"{"microllm_max_tokens": -1}"#,
            r#"{"microllm_max_tokens": 99999999999999999999}"#,
            r#"{"connection": {"max_in_flight": 0}}"#,
            r#"{"connection": {"max_line_bytes": 16777217}}"#,
            r#"{"connection": 3}"#,
            r#"{"connection": {}}"#,
            r#"{"plugins": {"dirs": ["relative"]}}"#,
            r#"{"inline": {"max_item_bytes": 10, "max_text_bytes": 9}}"#,
            r#"{"request": {"deadline_ms": 10, "max_queue_ms": 11}}"#,
        ] {
            assert!(!only_problem(&[(Layer::User, text)]).is_empty(), "{text}");
        }
    }

    #[test]
    fn a_bad_value_in_a_weaker_layer_is_still_refused() {
        let texts = [
            (Layer::Environment, r#"{"knob": "quiet"}"#),
            (Layer::User, r#"{"knob": "fast"}"#),
        ];
        assert!(only_problem(&texts).contains("/user.jsonc"));
    }

    /// Proves PLAT-03.
    #[test]
    fn the_knob_maps_to_threads() {
        let mapped = |cores| [Knob::Performance, Knob::Balanced, Knob::Quiet].map(|knob| knob.threads(cores));
        assert_eq!(mapped(0), [1, 1, 1]);
        assert_eq!(mapped(1), [1, 1, 1]);
        assert_eq!(mapped(2), [2, 1, 1]);
        assert_eq!(mapped(5), [5, 3, 1]);
        assert_eq!(mapped(8), [8, 4, 2]);
        assert_eq!(mapped(64), [64, 32, 2]);
    }
}
