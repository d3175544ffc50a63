//! Hot pick-up: bundles that are dropped, replaced, removed or switched off count without a restart.
//!
//! State: none beyond the watching task. Callers: the daemon's start, `plugins.rescan`. Not known here: what a bundle
//! may say (`synapse-loader`), which change means what (`plugins::renewal`).
//!
//! 1. The search path is glanced at every `plugins.watch_ms`; a folder that changed is looked into once it was quiet for
//!    `plugins.settle_ms`, so that no half-copied bundle is taken.
//! 2. The bundles and their records are published: from here on a new lane is one of the new digest.
//! 3. The lanes of the bundle follow (`lane::replace`): the new generation is loaded, takes the old one's place, and the
//!    old one ends what it has begun.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lane::replace;
use crate::plugins::renewal::{Change, What};
use crate::plugins::settling::Settling;
use crate::rpc::error::ServiceError;
use crate::state::Daemon;

/// Watches the search path until the daemon stops. An interval of 0 watches nothing.
pub fn watch(daemon: &Arc<Daemon>) {
    let plugins = &daemon.config.plugins;
    if plugins.watch_ms == 0 {
        return;
    }
    let every = Duration::from_millis(plugins.watch_ms);
    let mut settling = Settling::new(Duration::from_millis(plugins.settle_ms));
    let weak = Arc::downgrade(daemon);
    let stop = daemon.tasks.stopping().clone();
    let registry = daemon.plugins.clone();
    drop(daemon.tasks.spawn("plugins-watch", async move {
        registry.scanned().await;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(every) => {}
            }
            let Some(daemon) = weak.upgrade() else { return };
            let registry = registry.clone();
            let glances = daemon.tasks.blocking("plugins-glance", move || registry.glance());
            // A failure is a stopping daemon.
            let Ok((looked, now)) = glances.await else { return };
            if let Some(unsettled) = settling.observe(&looked, &now, Instant::now()) {
                // A failure is a stopping daemon as well.
                let _ = renew(&daemon, unsettled).await;
            }
        }
    }));
}

/// Looks into every bundle that changed, except those of `unsettled`, publishes what counts from now on, and lets the
/// lanes follow in the background.
///
/// # Errors
/// The daemon stops.
pub async fn renew(daemon: &Arc<Daemon>, unsettled: HashSet<PathBuf>) -> Result<Vec<Change>, ServiceError> {
    let in_use = daemon
        .lanes
        .all()
        .iter()
        .filter_map(|lane| lane.bundle.digest)
        .collect();
    let work = Arc::clone(daemon);
    let changes = daemon
        .tasks
        .blocking("plugins-renew", move || {
            work.plugins
                .renew(&unsettled, &in_use, |bundles| work.set_records(bundles))
        })
        .await?;
    for change in &changes {
        if change.from.is_some() && change.what != What::Waits {
            replace::follow(daemon, &change.id);
        }
    }
    Ok(changes)
}
