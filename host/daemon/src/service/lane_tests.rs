//! Lanes on a real daemon with a toy engine: loads, unloads, failures of the engine, and what is shown meanwhile.

use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use synapse_core::engine::{EngineError, EngineErrorCode, EngineState};
use synapse_loader::BundleStatus;
use synapse_wire::client::{
    Class, EmbedQueryParams, ErrorCode, HealthParams, LaneStatus, ModelEntry, ModelParams, ModelState, ModelsListParams,
};

use super::toy::{Bench, HANG, Setup, ask, code, context, query};
use super::{embed_query, health, model_load, model_status, model_unload, models_list};
use crate::config::Config;

/// Proves ERR-09, SCHED-10, API-19: twenty requests start one load, none waits for it, and then the model serves.
#[tokio::test]
async fn a_request_starts_the_load_and_does_not_wait() {
    let bench = Bench::new().await;
    let mut jobs = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let error = ask(&bench, query("one")).await.unwrap_err();
        assert_eq!(
            (error.code(), error.class()),
            (&ErrorCode::ModelLoading, Class::Transient)
        );
        assert!(error.retry_after_ms().is_some());
        jobs.insert(error.facts().unwrap().job_id.clone().unwrap());
    }
    assert_eq!(jobs.len(), 1);
    bench.job(jobs.first().unwrap()).await.unwrap();
    ask(&bench, query("one")).await.unwrap();
    assert_eq!(bench.script.loads.load(Ordering::SeqCst), 1);

    // Unloading is asked twice, and happens once; afterwards a request loads again.
    let unload = || async {
        let params = ModelParams {
            model: "toy".to_owned(),
        };
        model_unload::run(&bench.daemon, &bench.ctx(), params)
            .await
            .unwrap()
            .unloaded
    };
    assert_eq!((unload().await, unload().await), (true, false));
    assert_eq!(bench.script.unloads.load(Ordering::SeqCst), 1);
    assert_eq!(code(ask(&bench, query("one")).await), Some(ErrorCode::ModelLoading));
}

/// Proves ERR-06.
#[tokio::test]
async fn a_failed_load_is_permanent_and_not_tried_again_by_itself() {
    let bench = Bench::new().await;
    bench.script.fail_load(EngineErrorCode::OutOfMemory);
    assert_eq!(bench.load("toy").await, Err(ErrorCode::EngineCrashed));
    for _ in 0..2 {
        let error = ask(&bench, query("one")).await.unwrap_err();
        assert_eq!(
            (error.code(), error.class()),
            (&ErrorCode::EngineCrashed, Class::Permanent)
        );
        assert_eq!(error.facts().unwrap().stage.as_deref(), Some("load"));
    }
    assert_eq!(bench.script.loads.load(Ordering::SeqCst), 0);
    let shown = status(&bench).await;
    assert_eq!(
        (shown.state, shown.lanes[1].status),
        (ModelState::Failed, LaneStatus::Closed)
    );
    assert!(shown.reason.unwrap().contains("scripted"));
    // The operator may.
    bench.load("toy").await.unwrap();
    ask(&bench, query("one")).await.unwrap();
}

async fn status(bench: &Bench) -> ModelEntry {
    let params = ModelParams {
        model: "toy".to_owned(),
    };
    model_status::run(&bench.daemon, &bench.ctx(), params)
        .await
        .unwrap()
        .model
}

#[tokio::test]
async fn a_panic_closes_the_engine_for_this_run_and_demotes_its_bundle_for_good() {
    let bench = Bench::loaded().await;
    bench.script.then(|_, _| panic!("scripted defect"));
    let error = ask(&bench, query("one")).await.unwrap_err();
    assert_eq!(
        (error.code(), error.class()),
        (&ErrorCode::EngineCrashed, Class::Permanent)
    );
    assert_eq!(error.facts().unwrap().stage.as_deref(), Some("panic"));
    let calls = bench.script.calls().len();
    // Never called again, not even to unload or to load.
    let again = ask(&bench, query("one")).await.unwrap_err();
    assert_eq!(*again.code(), ErrorCode::PluginRefused, "{again}");
    assert_eq!(again.class(), Class::Permanent);
    let params = ModelParams {
        model: "toy".to_owned(),
    };
    model_unload::run(&bench.daemon, &bench.ctx(), params).await.unwrap();
    bench.load("toy").await.unwrap_err();
    let script = &bench.script;
    let counts = (
        script.calls().len(),
        script.loads.load(Ordering::SeqCst),
        script.unloads.load(Ordering::SeqCst),
    );
    assert_eq!(counts, (calls, 1, 0));

    let bundles = bench.daemon.plugins.bundles();
    let BundleStatus::NeedsWorker { reason } = &bundles[0].status else {
        panic!("{:?}", bundles[0].status)
    };
    assert!(reason.contains("scripted defect"), "{reason}");
    let (restarted, _dir) = bench.restart().await;
    let demotions = restarted.store.demotions().unwrap();
    assert_eq!(demotions.len(), 1);
    assert_eq!(demotions[0].digest, bundles[0].digest.unwrap().to_string());
}

#[tokio::test]
async fn a_model_that_its_engine_gives_up_is_loaded_afresh() {
    let bench = Bench::loaded().await;
    bench.script.then(|_, _| {
        Err(EngineError::new(
            EngineErrorCode::Internal,
            EngineState::ModelBad,
            "lost",
        ))
    });
    assert_eq!(code(ask(&bench, query("one")).await), Some(ErrorCode::EngineCrashed));
    // The unload runs in the background, then a request starts the next load, then the model serves.
    let served = async {
        loop {
            match ask(&bench, query("one")).await {
                Ok(reply) => return reply,
                Err(error) => assert_eq!(*error.code(), ErrorCode::ModelLoading, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(HANG, served).await.unwrap();
    assert_eq!(bench.script.unloads.load(Ordering::SeqCst), 1);
    assert_eq!(bench.script.loads.load(Ordering::SeqCst), 2);
}

/// Proves API-20, HEALTH-01, SCHED-12: what is answered from memory is answered while every engine thread is busy.
#[tokio::test]
async fn views_are_answered_while_the_engine_hangs() {
    let bench = Bench::loaded().await;
    let (reached_tx, reached) = sync_channel(2);
    let mut opens = Vec::new();
    for _ in 0..2 {
        let (open, opened) = sync_channel::<()>(1);
        let reached = reached_tx.clone();
        bench.script.then(move |_, _| {
            reached.send(()).unwrap();
            opened.recv_timeout(HANG).unwrap();
            Ok(())
        });
        opens.push(open);
    }
    let ctx = context(HANG, Duration::from_millis(300));
    let hanging = [
        embed_query::run(&bench.daemon, &ctx, query("one")),
        embed_query::run(&bench.daemon, &ctx, query("two")),
    ];
    let [first, second] = hanging;
    let (first, second, ()) = tokio::join!(first, second, async {
        tokio::task::spawn_blocking(move || {
            reached.recv_timeout(HANG).unwrap();
            reached.recv_timeout(HANG).unwrap();
        })
        .await
        .unwrap();
        let list = models_list::run(&bench.daemon, &bench.ctx(), ModelsListParams {})
            .await
            .unwrap();
        let toy = list.models.iter().find(|model| model.id == "toy").unwrap();
        assert_eq!(toy.state, ModelState::Loaded);
        let health = health::run(&bench.daemon, &bench.ctx(), HealthParams {}).await.unwrap();
        assert_eq!(
            (health.lanes[0].lane.as_str(), health.lanes[0].in_flight),
            ("toy@toy:f32", 2)
        );
    });
    // The callers' deadlines end their waits, whatever the engine does.
    assert_eq!(code(first), Some(ErrorCode::DeadlineExceeded));
    assert_eq!(code(second), Some(ErrorCode::DeadlineExceeded));
    opens.iter().for_each(|open| open.send(()).unwrap());
    ask(&bench, query("one")).await.unwrap();
}

/// Proves ENG-11.
#[tokio::test]
async fn the_nearest_obstacle_is_the_one_that_is_named() {
    let bench = Bench::with(Setup {
        without_files: true,
        ..Setup::default()
    })
    .await;
    let error = ask(&bench, query("one")).await.unwrap_err();
    assert_eq!(*error.code(), ErrorCode::ModelNotInstalled);
    assert!(error.message().contains("synapse models pull toy"), "{error}");
    let no_engine = ask(
        &bench,
        EmbedQueryParams {
            model: "no-engine".to_owned(),
            ..query("one")
        },
    )
    .await
    .unwrap_err();
    for part in [
        "no bundle `absent`",
        "version 1.2.3",
        "does not offer embedding of bytes in f16",
        "does not offer embedding of bytes in bf16",
    ] {
        assert!(no_engine.message().contains(part), "{no_engine}");
    }
    let bench = Bench::with(Setup {
        without_engine: true,
        ..Setup::default()
    })
    .await;
    assert_eq!(code(ask(&bench, query("one")).await), Some(ErrorCode::NotCertified));
    assert_eq!(status(&bench).await.lanes[1].status, LaneStatus::NoPlugin);
}

#[tokio::test]
async fn a_model_leaves_when_another_needs_its_room() {
    let mut config = Config::default();
    // Each toy holds 1,000 bytes once loaded, and asks for the size of its files before.
    config.residency.memory_budget_bytes = 1_200;
    config.residency.min_residency_secs = 0;
    let bench = Bench::with(Setup {
        config,
        ..Setup::default()
    })
    .await;
    bench.load("toy").await.unwrap();
    bench.load("toy-two").await.unwrap();
    assert_eq!(bench.script.unloads.load(Ordering::SeqCst), 1);
    assert_eq!(status(&bench).await.state, ModelState::Installed);

    let mut config = Config::default();
    config.residency.memory_budget_bytes = 10;
    let bench = Bench::with(Setup {
        config,
        ..Setup::default()
    })
    .await;
    assert_eq!(bench.load("toy").await, Err(ErrorCode::LimitExceeded));
}

/// Proves HEALTH-03.
#[tokio::test]
async fn ages_grow_between_looks_and_a_request_stamps_them() {
    let bench = Bench::loaded().await;
    let age = || bench.daemon.lanes.snapshots()[0].age;
    let first = age();
    while age() <= first {
        std::hint::spin_loop();
    }
    let asked = Instant::now();
    ask(&bench, query("one")).await.unwrap();
    // What it stamped is younger than the question; without the stamp it would be older.
    let (age, since) = (age(), asked.elapsed());
    assert!(age <= since, "{age:?} {since:?}");
}

/// Proves SCHED-08: a lane serves while another model is at any step of its load.
#[tokio::test]
async fn a_lane_serves_while_another_model_is_loaded() {
    let bench = Bench::loaded().await;
    let (reached_tx, reached) = sync_channel(1);
    let (open, opened) = sync_channel::<()>(1);
    bench.script.before_load(move || {
        reached_tx.send(()).unwrap();
        opened.recv_timeout(HANG).unwrap();
    });
    let params = ModelParams {
        model: "toy-two".to_owned(),
    };
    let job = model_load::run(&bench.daemon, &bench.ctx(), params).await.unwrap();
    tokio::task::spawn_blocking(move || reached.recv_timeout(HANG).unwrap())
        .await
        .unwrap();
    ask(&bench, query("one")).await.unwrap();
    let two = || EmbedQueryParams {
        model: "toy-two".to_owned(),
        ..query("one")
    };
    let error = ask(&bench, two()).await.unwrap_err();
    assert_eq!(error.facts().unwrap().job_id.as_deref(), Some(job.job_id.as_str()));
    open.send(()).unwrap();
    bench.job(&job.job_id).await.unwrap();
    ask(&bench, two()).await.unwrap();
}

/// Proves API-08. Which lane serves is not known while bundles are being described: a request waits for that within
/// its `max_queue_ms`, unless it is to fail at once.
#[tokio::test]
async fn a_request_waits_for_the_bundles_only_if_it_may() {
    let bench = Bench::loaded().await;
    bench.daemon.plugins.pretend_scanned(false);
    let at_once = EmbedQueryParams {
        fail_if_not_ready: true,
        ..query("one")
    };
    assert_eq!(code(ask(&bench, at_once).await), Some(ErrorCode::ModelLoading));
    let impatient = context(Duration::from_millis(20), HANG);
    let waited = embed_query::run(&bench.daemon, &impatient, query("one")).await;
    assert_eq!(code(waited), Some(ErrorCode::ModelLoading));
    let ctx = bench.ctx();
    let (served, ()) = tokio::join!(embed_query::run(&bench.daemon, &ctx, query("one")), async {
        tokio::task::yield_now().await;
        bench.daemon.plugins.pretend_scanned(true);
    });
    served.unwrap();
}
