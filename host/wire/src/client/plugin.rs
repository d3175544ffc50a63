//! `plugins.list`: every bundle that was found, accepted or refused, with the reason. `plugins.rescan`: what changed.
//!
//! No state. The verdicts are the loader's; this file gives them their names on the wire.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::method::operation;
use super::model::ModelKind;
use super::served::Placement;

/// Params of `plugins.list`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PluginsListParams {}

/// What became of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PluginStatus {
    /// It may serve; `placement` says where.
    Ready,
    /// It is sound, but may only run in a worker process, and this daemon runs it in none.
    NeedsWorker,
    /// It is not accepted; `reason` says why.
    Refused,
    /// It crashed or hung when it was described and is not touched again until its files change.
    Quarantined,
    /// The operator switched it off (`synapse plugin disable`).
    Disabled,
    /// Another bundle with the same id comes first in the search order.
    Shadowed,
    /// A value that this version does not know.
    #[serde(other)]
    Unknown,
}

/// One engine that a bundle offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PluginEngine {
    /// The engine's name.
    pub engine: String,
    /// Its numeric version.
    pub version: String,
    /// What it is for.
    pub kind: ModelKind,
    /// The artifact format, for example `safetensors`.
    pub format: String,
    /// The arithmetic type, for example `f32`.
    pub dtype: String,
    /// How a bulk call gives way: `checkpoint`, `share` or `quantum`.
    pub preempt: String,
}

/// New files of a bundle that are not taken while the old ones serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PluginPending {
    /// Their package version, where the manifest was readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// SHA-256 over the files, lower-case hex, where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// A stable word: `needs_restart` where the daemon's next start takes them, otherwise what is wrong with them, as
    /// `reason` of a bundle.
    pub reason: String,
    /// The reason in words, and what serves meanwhile.
    pub message: String,
}

/// One bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PluginEntry {
    /// Its id: the folder's name.
    pub id: String,
    /// The bundle's package version, where its manifest was readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Its folder.
    pub dir: String,
    /// SHA-256 over its files, lower-case hex, where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// What became of it.
    pub status: PluginStatus,
    /// A stable word for the reason, for example `abi_major`, `digest_mismatch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The reason in words, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What it offers, where it was described.
    pub engines: Vec<PluginEngine>,
    /// Where it runs; absent for a bundle that does not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Whether the operator can let it run inside the daemon (`synapse plugin trust`).
    #[serde(default)]
    pub promotable: bool,
    /// New files that are not taken, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<PluginPending>,
}

/// Result of `plugins.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PluginsListResult {
    /// Every bundle, in the search order.
    pub plugins: Vec<PluginEntry>,
}

/// Params of `plugins.rescan`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PluginsRescanParams {}

/// What became of a bundle since the search before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PluginChangeKind {
    /// It is new.
    Added,
    /// Other files, or another verdict, count from now on.
    Replaced,
    /// It is gone.
    Removed,
    /// The operator switched it off.
    Disabled,
    /// Its new files are not taken; the old ones serve.
    Waits,
    /// A value that this version does not know.
    #[serde(other)]
    Unknown,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PluginChange {
    /// The bundle.
    pub id: String,
    /// What became of it.
    pub change: PluginChangeKind,
    /// The digest that counted before, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The digest that counts now, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Why it does not serve, or why its new files wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Result of `plugins.rescan`. Requests meet what counts now; the lanes of a replaced bundle follow in the background.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PluginsRescanResult {
    /// What changed since the last search; empty where nothing did.
    pub changes: Vec<PluginChange>,
    /// Every bundle, in the search order.
    pub plugins: Vec<PluginEntry>,
}

operation!(
    /// `plugins.list`.
    PluginsList(PluginsListParams) -> PluginsListResult
);
operation!(
    /// `plugins.rescan`.
    PluginsRescan(PluginsRescanParams) -> PluginsRescanResult
);
