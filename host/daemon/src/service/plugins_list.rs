//! `plugins.list`: every bundle found, accepted or refused, with the reason; from memory only.
//!
//! State: none. The verdicts are the loader's and the registry's.

use std::sync::Arc;

use synapse_core::engine::{EngineKind, EngineSupport, Preempt};
use synapse_loader::{Bundle, BundleStatus, Descriptor};
use synapse_wire::client::{
    ModelKind, Placement, PluginEngine, PluginEntry, PluginPending, PluginStatus, PluginsListParams, PluginsListResult,
};

use super::{RequestContext, ServiceError};
use crate::plugins::renewal::Waiting;
use crate::plugins::runs_in_worker;
use crate::state::Daemon;

/// Lists the bundles, once the search of this start is over.
///
/// # Errors
/// None.
pub async fn run(
    daemon: &Arc<Daemon>,
    _ctx: &RequestContext,
    _params: PluginsListParams,
) -> Result<PluginsListResult, ServiceError> {
    daemon.plugins.scanned().await;
    Ok(PluginsListResult { plugins: list(daemon) })
}

/// Every bundle, with what waits for it.
pub(super) fn list(daemon: &Daemon) -> Vec<PluginEntry> {
    let waiting = daemon.plugins.waiting();
    let with_pending = |bundle: &Bundle| PluginEntry {
        pending: match bundle.status {
            BundleStatus::Shadowed { .. } => None,
            _ => waiting.get(&bundle.id).map(pending),
        },
        ..entry(bundle)
    };
    daemon.plugins.bundles().iter().map(with_pending).collect()
}

fn pending(waiting: &Waiting) -> PluginPending {
    PluginPending {
        version: waiting.version.clone(),
        digest: waiting.digest.map(|digest| digest.to_string()),
        reason: waiting.reason.clone(),
        message: waiting.message.clone(),
    }
}

pub(crate) fn entry(bundle: &Bundle) -> PluginEntry {
    let in_worker = runs_in_worker(bundle);
    let reason = match &bundle.status {
        BundleStatus::Ready => None,
        BundleStatus::NeedsWorker { .. } if in_worker => None,
        BundleStatus::Refused { reason, .. } => Some(reason.as_str().to_owned()),
        other => Some(other.name().to_owned()),
    };
    let engines = bundle.descriptor.as_ref().map_or_else(Vec::new, |descriptor| {
        descriptor
            .supports
            .iter()
            .map(|support| engine(descriptor, support))
            .collect()
    });
    PluginEntry {
        id: bundle.id.clone(),
        version: bundle.version.as_ref().map(ToString::to_string),
        dir: bundle.dir.display().to_string(),
        digest: bundle.digest.map(|digest| digest.to_string()),
        status: status(bundle),
        reason,
        message: bundle.status.message(),
        engines,
        placement: match bundle.status {
            BundleStatus::Ready => Some(Placement::InProcess),
            _ => in_worker.then_some(Placement::Worker),
        },
        promotable: bundle.promotable,
        pending: None,
    }
}

/// What became of a bundle, in the client's words: `health` counts them as this lists them.
pub(crate) fn status(bundle: &Bundle) -> PluginStatus {
    match bundle.status {
        BundleStatus::Ready => PluginStatus::Ready,
        BundleStatus::NeedsWorker { .. } if runs_in_worker(bundle) => PluginStatus::Ready,
        BundleStatus::NeedsWorker { .. } => PluginStatus::NeedsWorker,
        BundleStatus::Refused { .. } => PluginStatus::Refused,
        BundleStatus::Quarantined { .. } => PluginStatus::Quarantined,
        BundleStatus::Disabled => PluginStatus::Disabled,
        BundleStatus::Shadowed { .. } => PluginStatus::Shadowed,
    }
}

fn engine(descriptor: &Descriptor, support: &EngineSupport) -> PluginEngine {
    PluginEngine {
        engine: descriptor.identity.engine.clone(),
        version: descriptor.identity.version.clone(),
        kind: match support.kind {
            EngineKind::Embed => ModelKind::Embed,
            EngineKind::Rerank => ModelKind::Rerank,
            EngineKind::Generate => ModelKind::Generate,
        },
        format: support.format.clone(),
        dtype: support.dtype.clone(),
        preempt: match support.preempt {
            Preempt::Checkpoint => "checkpoint",
            Preempt::Share => "share",
            Preempt::Quantum => "quantum",
        }
        .to_owned(),
    }
}
