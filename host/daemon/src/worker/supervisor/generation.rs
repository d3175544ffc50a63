//! The generations of one lane's worker: one process after another, never two.
//!
//! A generation starts with its launch and the lane's models, and ends either in order or by [`Supervisor::bury`], which
//! kills it, confirms its exit, counts its death once and arranges the next one. Nothing else ends or starts a process.
//!
//! State: none of its own; it changes the lane, whose lock its callers hold. Callers: [`super`]. Not known here: what
//! the exchanges compute.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use synapse_core::engine::{CallContext, EngineError, ModelRef};
use synapse_core::supervision::crash::{Generation, Verdict};
use synapse_wire::worker::HostMessage;

use super::models::ModelKey;
use super::{Lane, Supervisor, Uncancelled, crashed, lock};
use crate::worker::fault::{Fault, Stage};
use crate::worker::launch::{self, LaunchError};

/// How long a worker whose connection ended may take to be gone by itself, so that its exit code is its own.
const OWN_END: Duration = Duration::from_millis(200);

/// Why a generation ends.
pub(super) struct Lost {
    pub(super) stage: Stage,
    pub(super) reason: String,
}

impl Lost {
    pub(super) fn by(fault: &Fault) -> Self {
        Self {
            stage: fault.stage(),
            reason: fault.to_string(),
        }
    }
}

impl Supervisor {
    /// Ends a generation after a fault and says what the caller of its exchange is told.
    pub(super) fn bury(&self, lane: &mut Lane, lost: Lost, key: Option<&ModelKey>) -> EngineError {
        let Lost { stage, reason } = lost;
        let Some(worker) = lane.worker.take() else {
            return crashed(stage, reason, String::new());
        };
        lane.models.forget_remotes();
        let ended = {
            let mut child = lock(&worker.child);
            // A worker that ends by itself says how; one that does not is killed.
            let by_itself = matches!(stage, Stage::Exit)
                .then(|| child.wait_for_exit(OWN_END).ok().flatten())
                .flatten();
            child.kill();
            by_itself.or_else(|| child.wait_for_exit(self.limits.exit).ok().flatten())
        };
        if ended.is_none() {
            lane.unconfirmed = Some(Arc::clone(&worker.child));
        }
        worker.words.settle(launch::SETTLE);
        let how = ended.map_or_else(|| "its exit is not confirmed".to_owned(), |status| status.to_string());
        let key = key.filter(|key| !key.is_empty());
        let verdict = lane.deaths.died(lane.generation, key, self.now());
        let message = format!("worker of {} lost: {reason} ({how})", self.bundle);
        tracing::warn!(
            target: "synapse.worker",
            bundle = self.bundle, generation = lane.generation.0, stage = stage.name(), "{message}"
        );
        match verdict {
            Verdict::Stale => {}
            Verdict::Restart { not_before } => lane.not_before = not_before,
            Verdict::Quarantine { not_before } => {
                lane.not_before = not_before;
                if let Some(key) = key {
                    tracing::error!(
                        target: "synapse.worker",
                        bundle = self.bundle, "the model is quarantined in this lane until a probe has passed it"
                    );
                    self.quarantine.impose(key, &message);
                }
            }
        }
        self.shown.died(lane.deaths.degraded(self.now()), &message);
        self.restart_later(lane);
        crashed(stage, message, worker.words.text())
    }

    /// Whether a model wants a worker and may have one.
    fn wanted(&self, lane: &Lane) -> bool {
        let mut models = lane.models.iter();
        models.any(|(_, model)| self.quarantine.reason(&model.key).is_none())
    }

    /// Starts the next generation in the background, unless a call does it first.
    fn restart_later(&self, lane: &Lane) {
        let Some(me) = self
            .me
            .upgrade()
            .filter(|_| self.wanted(lane) && !*lock(&self.stopping))
        else {
            return;
        };
        let wait = Duration::from_nanos(lane.not_before.since(self.now()));
        let restart = self.tasks.thread("worker-restart", move || {
            if me.wait_unless_stopping(wait) {
                let ctx = CallContext {
                    request_id: 0,
                    remaining: None,
                    threads: 1,
                    control: &Uncancelled,
                };
                let mut lane = lock(&me.lane);
                if lane.worker.is_none()
                    && me.wanted(&lane)
                    && let Err(error) = me.ensure_worker(&mut lane, &ctx)
                {
                    tracing::warn!(target: "synapse.worker", bundle = me.bundle, "restart failed: {error}");
                }
            }
        });
        if let Err(error) = restart {
            tracing::warn!(target: "synapse.worker", bundle = self.bundle, "no thread for the restart: {error}");
        }
    }

    /// Waits; false when the daemon stops meanwhile.
    fn wait_unless_stopping(&self, wait: Duration) -> bool {
        let stopping = lock(&self.stopping);
        let (stopping, _) = self
            .stopped
            .wait_timeout_while(stopping, wait, |stopping| !*stopping)
            .unwrap_or_else(PoisonError::into_inner);
        !*stopping
    }

    /// Makes sure that a worker runs and has the lane's models.
    pub(super) fn ensure_worker(&self, lane: &mut Lane, ctx: &CallContext<'_>) -> Result<(), EngineError> {
        if *lock(&self.stopping) {
            return Err(crashed(
                Stage::Start,
                "the daemon is stopping".to_owned(),
                String::new(),
            ));
        }
        if let Some(worker) = &mut lane.worker {
            // Nothing was sent yet: the death is counted for nobody, and this call goes to the next generation.
            match worker.connection.expect_quiet() {
                Ok(()) => return Ok(()),
                Err(Fault::Closed) => {
                    let (stage, reason) = (Stage::Exit, "it ended between requests".to_owned());
                    self.bury(lane, Lost { stage, reason }, None);
                }
                Err(fault) => drop(self.bury(lane, Lost::by(&fault), None)),
            }
        }
        if let Some(child) = &lane.unconfirmed {
            let ended = lock(child).wait_for_exit(self.limits.exit).ok().flatten();
            if ended.is_none() {
                let message = format!("the exit of the last worker of {} is not confirmed", self.bundle);
                return Err(crashed(Stage::Exit, message, String::new()));
            }
            lane.unconfirmed = None;
        }
        self.wait_for_backoff(lane, ctx)?;
        lane.generation = Generation(lane.generation.0 + 1);
        let worker_id = format!("{}-{}", self.name, lane.generation.0);
        match launch::launch(&self.plan, &worker_id, &self.tasks) {
            Ok(worker) => {
                tracing::info!(
                    target: "synapse.worker",
                    bundle = self.bundle, generation = lane.generation.0, pid = worker.pid, "worker started"
                );
                self.shown.started(lane.generation.0, &worker);
                lane.worker = Some(worker);
            }
            Err(error) => return Err(self.launch_failed(lane, &error)),
        }
        let models: Vec<(ModelRef, ModelKey)> = lane
            .models
            .iter()
            .map(|(model, known)| (model, known.key.clone()))
            .collect();
        for (model, key) in models {
            if self.quarantine.reason(&key).is_some() {
                continue;
            }
            // A model that does not load again is told to its own callers; a fault ends this generation.
            if self.ensure_loaded(lane, model).is_err() && lane.worker.is_none() {
                return Err(crashed(
                    Stage::Start,
                    "the worker was lost while it loaded again".to_owned(),
                    String::new(),
                ));
            }
        }
        Ok(())
    }

    fn launch_failed(&self, lane: &mut Lane, error: &LaunchError) -> EngineError {
        let words = match error {
            LaunchError::Ended { words, .. } => words.clone(),
            _ => String::new(),
        };
        let message = format!("worker of {} did not start: {error}", self.bundle);
        tracing::error!(target: "synapse.worker", bundle = self.bundle, "{message}");
        if let Verdict::Restart { not_before } | Verdict::Quarantine { not_before } =
            lane.deaths.died(lane.generation, None, self.now())
        {
            lane.not_before = not_before;
        }
        self.shown.died(lane.deaths.degraded(self.now()), &message);
        crashed(Stage::Start, message, words)
    }

    fn wait_for_backoff(&self, lane: &Lane, ctx: &CallContext<'_>) -> Result<(), EngineError> {
        let wait = Duration::from_nanos(lane.not_before.since(self.now()));
        if ctx.remaining.is_some_and(|remaining| remaining < wait) {
            let message = format!("the worker of {} starts again in {} ms", self.bundle, wait.as_millis());
            return Err(crashed(Stage::Start, message, String::new()));
        }
        if self.wait_unless_stopping(wait) {
            Ok(())
        } else {
            Err(crashed(
                Stage::Start,
                "the daemon is stopping".to_owned(),
                String::new(),
            ))
        }
    }

    /// Ends an idle worker in order, or by force after the bound.
    pub(super) fn end_worker(&self, lane: &mut Lane) {
        let Some(mut worker) = lane.worker.take() else {
            return;
        };
        lane.models.forget_remotes();
        let asked = worker
            .connection
            .send(&HostMessage::Shutdown {}.to_payload(), None, self.limits.exit)
            .is_ok();
        let mut child = lock(&worker.child);
        let ended = asked
            .then(|| child.wait_for_exit(self.limits.exit).ok().flatten())
            .flatten();
        if ended.is_some() {
            tracing::info!(
                target: "synapse.worker",
                bundle = self.bundle, generation = lane.generation.0, "worker ended in order"
            );
        } else {
            child.kill();
            if child.wait_for_exit(self.limits.exit).ok().flatten().is_none() {
                lane.unconfirmed = Some(Arc::clone(&worker.child));
            }
        }
        self.shown.ended();
    }
}
