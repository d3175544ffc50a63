//! The registry of jobs under paused time: states, order, bounds, cancellation, failures.

use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;

use super::*;
use crate::hang_bound::soon;
use crate::service::ErrorCode;

/// A registry over a store of its own.
struct Bench {
    jobs: Jobs,
    _dir: tempfile::TempDir,
}

impl std::ops::Deref for Bench {
    type Target = Jobs;

    fn deref(&self) -> &Jobs {
        &self.jobs
    }
}

fn jobs(limits: JobsConfig) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let tasks = Tasks::new(tokio::runtime::Handle::current());
    let store = Store::open(&dir.path().join("store.db"), &tasks, SystemTime::now()).unwrap();
    Bench {
        jobs: Jobs::new(tasks, store, &limits),
        _dir: dir,
    }
}

/// The states of all rows, the newest first.
fn rows(jobs: &Jobs) -> Vec<(String, JobState)> {
    let rows = jobs.store().jobs().unwrap();
    rows.into_iter().map(|row| (row.id, row.state)).collect()
}

fn done() -> Result<JobResult, ServiceError> {
    Ok(JobResult::Load(wire::LoadOutcome {
        model: String::from("m"),
        lane: String::from("m@e:f32"),
        fingerprint: String::from("00"),
        memory_bytes: 1,
        load_ms: 1,
    }))
}

/// A job that runs until the returned sender speaks or is dropped; the receiver says that it has begun.
async fn held(jobs: &Jobs, model: &str) -> (JobId, oneshot::Sender<()>, oneshot::Receiver<()>) {
    let (release, held) = oneshot::channel::<()>();
    let (begin, begun) = oneshot::channel::<()>();
    let id = jobs
        .start(JobKind::ModelLoad, model, move |handle| async move {
            let _ = begin.send(());
            tokio::select! {
                _ = held => done(),
                () = handle.cancel().cancelled() => Err(ServiceError::cancelled()),
            }
        })
        .await
        .unwrap();
    (id, release, begun)
}

fn state(jobs: &Jobs, id: &JobId) -> wire::JobState {
    jobs.status(id.as_str()).unwrap().state
}

/// The end of a job is recorded before it is shown, by a thread that no paused clock waits for.
async fn ended(jobs: &Jobs, id: &JobId) {
    let begin = std::time::Instant::now();
    while matches!(state(jobs, id), wire::JobState::Queued | wire::JobState::Running) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{id} does not end");
        tokio::task::yield_now().await;
    }
}

/// Proves JOB-03, API-02.
#[tokio::test(start_paused = true)]
async fn a_job_is_accepted_at_once_and_goes_through_its_states() {
    let jobs = jobs(JobsConfig {
        max_running: 1,
        ..JobsConfig::default()
    });
    let (first, release, begun) = held(&jobs, "a").await;
    let (second, release_second, begun_second) = held(&jobs, "b").await;
    soon(begun).await.unwrap();
    assert_eq!(
        (state(&jobs, &first), state(&jobs, &second)),
        (wire::JobState::Running, wire::JobState::Queued)
    );
    assert_eq!(jobs.counts(), wire::JobCounts { queued: 1, running: 1 });
    assert_eq!(jobs.live_models(JobKind::ModelLoad), ["a", "b"]);
    release.send(()).unwrap();
    soon(begun_second).await.unwrap();
    ended(&jobs, &first).await;
    assert_eq!(
        (state(&jobs, &first), state(&jobs, &second)),
        (wire::JobState::Done, wire::JobState::Running)
    );
    release_second.send(()).unwrap();
    soon(jobs.idle()).await;
    let newest_first: Vec<String> = jobs.list().into_iter().map(|view| view.job_id).collect();
    assert_eq!(newest_first, [second.to_string(), first.to_string()]);
    assert!(jobs.status(first.as_str()).unwrap().result.is_some());
}

#[tokio::test(start_paused = true)]
async fn the_same_work_is_one_job_while_it_lives() {
    let jobs = jobs(JobsConfig::default());
    let (first, release, begun) = held(&jobs, "a").await;
    soon(begun).await.unwrap();
    assert_eq!(
        jobs.start(JobKind::ModelLoad, "a", |_| async { done() }).await.unwrap(),
        first
    );
    assert_eq!(jobs.live(JobKind::ModelLoad, "a"), Some(first.clone()));
    assert_ne!(
        jobs.start(JobKind::ModelPull, "a", |_| async { done() }).await.unwrap(),
        first
    );
    release.send(()).unwrap();
    soon(jobs.idle()).await;
    assert_eq!(jobs.live(JobKind::ModelLoad, "a"), None);
    assert_ne!(
        jobs.start(JobKind::ModelLoad, "a", |_| async { done() }).await.unwrap(),
        first
    );
}

#[tokio::test(start_paused = true)]
async fn cancelling_ends_a_waiting_job_at_once_and_a_running_one_when_it_notices() {
    let jobs = jobs(JobsConfig {
        max_running: 1,
        ..JobsConfig::default()
    });
    let (running, _release, begun) = held(&jobs, "a").await;
    let (waiting, _release_waiting, _) = held(&jobs, "b").await;
    soon(begun).await.unwrap();
    assert_eq!(jobs.cancel(waiting.as_str()).unwrap().state, wire::JobState::Cancelled);
    jobs.cancel(running.as_str()).unwrap();
    soon(jobs.idle()).await;
    let view = jobs.cancel(running.as_str()).unwrap();
    assert_eq!(
        (view.state, view.error.unwrap().code),
        (wire::JobState::Cancelled, ErrorCode::Cancelled)
    );
    assert_eq!(*jobs.cancel("job-0-0").unwrap_err().code(), ErrorCode::UnknownJob);
}

#[tokio::test(start_paused = true)]
async fn failures_keep_their_class_and_a_panic_is_one() {
    let jobs = jobs(JobsConfig::default());
    let start = async |model: &str, error: ServiceError| {
        let started = jobs.start(JobKind::ModelPull, model, move |_| async { Err(error) });
        started.await.unwrap()
    };
    let transient = start("a", ServiceError::download_failed("cut")).await;
    let permanent = start("b", ServiceError::artifact_invalid("flipped")).await;
    let panicked = jobs
        .start(JobKind::ModelPull, "c", |_| async { panic!("at the job") })
        .await
        .unwrap();
    soon(jobs.idle()).await;
    assert_eq!(state(&jobs, &transient), wire::JobState::FailedTransient);
    assert_eq!(state(&jobs, &permanent), wire::JobState::FailedPermanent);
    let view = jobs.status(panicked.as_str()).unwrap();
    assert_eq!(
        (view.state, view.error.unwrap().code),
        (wire::JobState::FailedPermanent, ErrorCode::Internal)
    );
}

#[tokio::test(start_paused = true)]
async fn live_and_finished_jobs_are_bounded() {
    let jobs = jobs(JobsConfig {
        max_live: 2,
        max_finished: 2,
        ttl_secs: 60,
        ..JobsConfig::default()
    });
    let (_, release_a, _) = held(&jobs, "a").await;
    let (_, release_b, _) = held(&jobs, "b").await;
    let refused = jobs
        .start(JobKind::ModelLoad, "c", |_| async { done() })
        .await
        .unwrap_err();
    assert_eq!(*refused.code(), ErrorCode::QueueFull);
    drop((release_a, release_b));
    soon(jobs.idle()).await;
    let third = jobs.start(JobKind::ModelLoad, "c", |_| async { done() }).await.unwrap();
    soon(jobs.idle()).await;
    assert_eq!(jobs.list().len(), 2, "the oldest finished job is forgotten");
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(*jobs.status(third.as_str()).unwrap_err().code(), ErrorCode::UnknownJob);
    assert!(jobs.list().is_empty());
}

#[tokio::test(start_paused = true)]
async fn progress_is_shown_and_a_closed_registry_takes_nothing() {
    let jobs = jobs(JobsConfig::default());
    let (reported, seen) = oneshot::channel::<()>();
    let id = jobs
        .start(JobKind::ModelPull, "a", move |handle| async move {
            handle.progress("download", 3, Some(9), "bytes");
            let _ = reported.send(());
            handle.cancel().cancelled().await;
            Err(ServiceError::cancelled())
        })
        .await
        .unwrap();
    soon(seen).await.unwrap();
    let progress = jobs.status(id.as_str()).unwrap().progress;
    assert_eq!(
        (
            progress.phase.as_str(),
            progress.done,
            progress.total,
            progress.unit.as_str()
        ),
        ("download", 3, Some(9), "bytes")
    );
    jobs.close();
    let refused = jobs
        .start(JobKind::ModelLoad, "b", |_| async { done() })
        .await
        .unwrap_err();
    assert_eq!(*refused.code(), ErrorCode::ShuttingDown);
    jobs.cancel_all();
    soon(jobs.idle()).await;
}

/// Proves JOB-01, JOB-04. Work is on the disk when it is accepted, with its end before that is shown; what a stop cancels is
/// left to the next start, and what its caller cancels is not.
#[tokio::test(start_paused = true)]
async fn work_is_kept_before_it_is_accepted() {
    let jobs = jobs(JobsConfig::default());
    let (done, release, _) = held(&jobs, "a").await;
    assert!(matches!(
        rows(&jobs)[..],
        [(ref id, JobState::Queued | JobState::Running)] if *id == done.to_string()
    ));
    release.send(()).unwrap();
    soon(jobs.idle()).await;
    let row = jobs.store().job(done.as_str()).unwrap().unwrap();
    let result = JobResult::from_text(&row.result.unwrap()).unwrap();
    assert_eq!((row.state, row.kind.as_str()), (JobState::Done, "model_load"));
    assert_eq!(Some(result), jobs.status(done.as_str()).unwrap().result);

    let failed = jobs
        .start(JobKind::ModelPull, "b", |_| async {
            Err(ServiceError::download_failed("cut"))
        })
        .await
        .unwrap();
    soon(jobs.idle()).await;
    let row = jobs.store().job(failed.as_str()).unwrap().unwrap();
    assert_eq!(row.state, JobState::FailedTransient);
    assert!(row.error.unwrap().contains("download_failed"));

    let (cancelled, _held, begun) = held(&jobs, "c").await;
    soon(begun).await.unwrap();
    jobs.cancel(cancelled.as_str()).unwrap();
    soon(jobs.idle()).await;
    assert_eq!(rows(&jobs)[0], (cancelled.to_string(), JobState::Cancelled));

    let (stopped, _held, begun) = held(&jobs, "d").await;
    soon(begun).await.unwrap();
    jobs.close();
    jobs.cancel_all();
    soon(jobs.idle()).await;
    assert_eq!(rows(&jobs)[0], (stopped.to_string(), JobState::Running));
}

/// Proves JOB-01. A disk that takes nothing: what was asked for by name has not begun, what a request needs goes on.
#[tokio::test(start_paused = true)]
async fn work_that_cannot_be_kept_does_not_begin() {
    let jobs = jobs(JobsConfig::default());
    jobs.store().break_writes_for_tests();
    let never = jobs.start(JobKind::ModelLoad, "a", |_| async { panic!("begun") });
    assert_eq!(*never.await.unwrap_err().code(), ErrorCode::StorageFailed);
    assert!(jobs.list().is_empty());
    let implied = jobs.start_implied(JobKind::ModelLoad, "a", |_| async { done() });
    let implied = implied.await.unwrap();
    soon(jobs.idle()).await;
    assert_eq!(state(&jobs, &implied), wire::JobState::Done);
}

/// No kind waits for another's turn: a probe waits for loads, and no pull holds one up.
#[tokio::test(start_paused = true)]
async fn each_kind_has_turns_of_its_own() {
    let jobs = jobs(JobsConfig {
        max_running: 1,
        ..JobsConfig::default()
    });
    let (_, _held, begun) = held(&jobs, "a").await;
    soon(begun).await.unwrap();
    let pull = jobs.start(JobKind::ModelPull, "a", |_| async { done() }).await.unwrap();
    let probe = jobs.start(JobKind::Probe, "a", |_| async { done() }).await.unwrap();
    let ended = async {
        while !state(&jobs, &pull).is_final() || !state(&jobs, &probe).is_final() {
            tokio::task::yield_now().await;
        }
    };
    soon(ended).await;
    jobs.cancel_all();
    soon(jobs.idle()).await;
}
