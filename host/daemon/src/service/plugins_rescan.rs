//! `plugins.rescan`: looks for changed bundles now, for operators who do not want to wait for the watcher.
//!
//! State: none. What was changed a moment ago counts too: whoever asks says that it is complete. What a change means is
//! `plugins::renewal`'s business, and how lanes follow `pickup`'s.

use std::collections::HashSet;
use std::sync::Arc;

use synapse_wire::client::{PluginChange, PluginChangeKind, PluginsRescanParams, PluginsRescanResult};

use super::{RequestContext, ServiceError, plugins_list};
use crate::pickup;
use crate::plugins::renewal::{Change, What};
use crate::state::Daemon;

/// Looks, and says what changed.
///
/// # Errors
/// The daemon stops.
pub async fn run(
    daemon: &Arc<Daemon>,
    _ctx: &RequestContext,
    _params: PluginsRescanParams,
) -> Result<PluginsRescanResult, ServiceError> {
    daemon.plugins.scanned().await;
    let changes = pickup::renew(daemon, HashSet::new()).await?;
    Ok(PluginsRescanResult {
        changes: changes.into_iter().map(change).collect(),
        plugins: plugins_list::list(daemon),
    })
}

fn change(change: Change) -> PluginChange {
    PluginChange {
        id: change.id,
        change: match change.what {
            What::Added => PluginChangeKind::Added,
            What::Replaced => PluginChangeKind::Replaced,
            What::Removed => PluginChangeKind::Removed,
            What::Disabled => PluginChangeKind::Disabled,
            What::Waits => PluginChangeKind::Waits,
        },
        from: change.from.map(|digest| digest.to_string()),
        to: change.to.map(|digest| digest.to_string()),
        message: change.message,
    }
}
