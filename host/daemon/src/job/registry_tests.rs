//! The registry of jobs under paused time: states, order, bounds, cancellation, failures.

use tokio::sync::oneshot;

use super::*;
use crate::hang_bound::soon;
use crate::service::ErrorCode;

fn jobs(limits: JobsConfig) -> Jobs {
    Jobs::new(Tasks::new(tokio::runtime::Handle::current()), 7, &limits)
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
fn held(jobs: &Jobs, model: &str) -> (JobId, oneshot::Sender<()>, oneshot::Receiver<()>) {
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
        .unwrap();
    (id, release, begun)
}

fn state(jobs: &Jobs, id: &JobId) -> wire::JobState {
    jobs.status(id.as_str()).unwrap().state
}

/// Proves JOB-03, API-02.
#[tokio::test(start_paused = true)]
async fn a_job_is_accepted_at_once_and_goes_through_its_states() {
    let jobs = jobs(JobsConfig {
        max_running: 1,
        ..JobsConfig::default()
    });
    let (first, release, begun) = held(&jobs, "a");
    let (second, release_second, begun_second) = held(&jobs, "b");
    soon(begun).await.unwrap();
    assert_eq!(
        (state(&jobs, &first), state(&jobs, &second)),
        (wire::JobState::Running, wire::JobState::Queued)
    );
    assert_eq!(jobs.counts(), wire::JobCounts { queued: 1, running: 1 });
    assert_eq!(jobs.live_models(JobKind::ModelLoad), ["a", "b"]);
    release.send(()).unwrap();
    soon(begun_second).await.unwrap();
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
    let (first, release, begun) = held(&jobs, "a");
    soon(begun).await.unwrap();
    assert_eq!(
        jobs.start(JobKind::ModelLoad, "a", |_| async { done() }).unwrap(),
        first
    );
    assert_eq!(jobs.live(JobKind::ModelLoad, "a"), Some(first.clone()));
    assert_ne!(
        jobs.start(JobKind::ModelPull, "a", |_| async { done() }).unwrap(),
        first
    );
    release.send(()).unwrap();
    soon(jobs.idle()).await;
    assert_eq!(jobs.live(JobKind::ModelLoad, "a"), None);
    assert_ne!(
        jobs.start(JobKind::ModelLoad, "a", |_| async { done() }).unwrap(),
        first
    );
}

#[tokio::test(start_paused = true)]
async fn cancelling_ends_a_waiting_job_at_once_and_a_running_one_when_it_notices() {
    let jobs = jobs(JobsConfig {
        max_running: 1,
        ..JobsConfig::default()
    });
    let (running, _release, begun) = held(&jobs, "a");
    let (waiting, _release_waiting, _) = held(&jobs, "b");
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
    let start = |model: &str, error: ServiceError| {
        jobs.start(JobKind::ModelPull, model, move |_| async { Err(error) })
            .unwrap()
    };
    let transient = start("a", ServiceError::download_failed("cut"));
    let permanent = start("b", ServiceError::artifact_invalid("flipped"));
    let panicked = jobs
        .start(JobKind::ModelPull, "c", |_| async { panic!("at the job") })
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
    let (_, release_a, _) = held(&jobs, "a");
    let (_, release_b, _) = held(&jobs, "b");
    let refused = jobs.start(JobKind::ModelLoad, "c", |_| async { done() }).unwrap_err();
    assert_eq!(*refused.code(), ErrorCode::QueueFull);
    drop((release_a, release_b));
    soon(jobs.idle()).await;
    let third = jobs.start(JobKind::ModelLoad, "c", |_| async { done() }).unwrap();
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
    let refused = jobs.start(JobKind::ModelLoad, "b", |_| async { done() }).unwrap_err();
    assert_eq!(*refused.code(), ErrorCode::ShuttingDown);
    jobs.cancel_all();
    soon(jobs.idle()).await;
}
