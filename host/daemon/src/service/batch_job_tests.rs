//! Jobs over large inputs through their operations, on a real daemon with the toy engine and a real store.
//!
//! State: a bench each. The toy's vectors are those of `embed.query`, so a job's are compared with these.

use std::collections::BTreeMap;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use synapse_core::job::JobEvent;
use synapse_wire::client::{
    BatchItem, EmbedBatchResult, EmbedJobOptions, Encoding, JobAppendParams, JobCreateParams, JobKind, JobOperation,
    JobPage, JobPageResult, JobParams, JobResult, JobResultParams, JobState, JobView, RerankScoreResult, Text,
};

use super::toy::{Bench, HANG, Setup, ask, ask_scores, batch, code, query, rerank, until_cancelled};
use super::{
    ErrorCode, ServiceError, embed_batch, job_append, job_cancel, job_create, job_list, job_result, job_seal,
    job_status, rerank_score,
};
use crate::config::Config;
use crate::store::NewWork;

fn texts(range: std::ops::Range<u32>) -> Vec<BatchItem> {
    // One to six words: lengths of 3 to 8 tokens, so a quantum of 12 tokens holds one to three of them.
    let words = ["one ", "two ", "three ", "four "];
    range
        .map(|n| {
            let word = words[usize::try_from(n % 4).unwrap()];
            BatchItem::new(format!("t{n}"), word.repeat(usize::try_from(n % 6 + 1).unwrap()).trim())
        })
        .collect()
}

async fn create(bench: &Bench, key: Option<&str>) -> String {
    let params = JobCreateParams {
        operation: JobOperation::EmbedBatch,
        model: "toy".to_owned(),
        options: EmbedJobOptions::default(),
        request_key: key.map(ToOwned::to_owned),
        weight: None,
    };
    job_create::run(&bench.daemon, &bench.ctx(), params)
        .await
        .unwrap()
        .job_id
}

async fn append(bench: &Bench, job: &str, seq: u64, items: Vec<BatchItem>) -> (bool, u64) {
    let params = JobAppendParams {
        job_id: job.to_owned(),
        seq,
        items,
    };
    let kept = job_append::run(&bench.daemon, &bench.ctx(), params).await.unwrap();
    (kept.kept, kept.next_seq)
}

fn named(job: &str) -> JobParams {
    JobParams { job_id: job.to_owned() }
}

async fn seal(bench: &Bench, job: &str) -> Result<JobView, ServiceError> {
    job_seal::run(&bench.daemon, &bench.ctx(), named(job)).await
}

async fn status(bench: &Bench, job: &str) -> JobView {
    job_status::run(&bench.daemon, &bench.ctx(), named(job)).await.unwrap()
}

async fn page(bench: &Bench, job: &str, number: u64) -> JobPageResult {
    let params = JobResultParams {
        job_id: job.to_owned(),
        page: number,
        encoding: Some(Encoding::Array),
    };
    job_result::run(&bench.daemon, &bench.ctx(), params).await.unwrap()
}

/// Asks until there is an answer. A job is polled: neither its pages nor a lane's queue tell anybody that they grew.
async fn polled<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let answered = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(HANG, answered).await.unwrap()
}

/// One page, as soon as it is there.
async fn there(bench: &Bench, job: &str, number: u64) -> JobPage {
    polled(async || page(bench, job, number).await.content).await
}

/// Walks the pages while the job runs, to its end.
async fn walk(bench: &Bench, job: &str) -> (JobState, Vec<JobPage>) {
    let mut pages = Vec::new();
    let state = polled(async || {
        let next = page(bench, job, u64::try_from(pages.len()).unwrap()).await;
        let ended = next.content.is_none() && next.state.is_final();
        pages.extend(next.content);
        ended.then_some(next.state)
    })
    .await;
    (state, pages)
}

/// The vectors of all pages by item id; an id that stands twice is a failure.
fn vectors(pages: &[JobPage]) -> BTreeMap<String, Option<Vec<f32>>> {
    let mut found = BTreeMap::new();
    for page in pages {
        assert_eq!(page.items.len(), page.vectors.len());
        for (item, vector) in page.items.iter().zip(&page.vectors) {
            let values = vector.clone().map(|vector| vector.into_values().unwrap());
            assert!(
                found.insert(item.id.clone(), values).is_none(),
                "{} stands twice",
                item.id
            );
        }
    }
    found
}

async fn expected(bench: &Bench, items: &[BatchItem]) -> BTreeMap<String, Option<Vec<f32>>> {
    let mut found = BTreeMap::new();
    for item in items {
        let mut asked = query(item.text.as_str().unwrap());
        asked.role = Some(synapse_wire::client::Role::Document);
        let reply = ask(bench, asked).await.unwrap();
        found.insert(
            item.id.clone(),
            reply.vectors[0].clone().map(|vector| vector.into_values().unwrap()),
        );
    }
    found
}

/// Proves API-11, API-26, JOB-07, SCHED-04. The walk sees every text once while the job runs, with the vector that a
/// query gives; no engine call is larger than the envelope.
#[tokio::test]
async fn a_large_input_is_embedded_page_by_page() {
    let bench = Bench::loaded().await;
    let items = texts(0..60);
    let job = create(&bench, None).await;
    assert_eq!(status(&bench, &job).await.state, JobState::Open);
    assert_eq!(append(&bench, &job, 1, items[40..].to_vec()).await, (false, 0), "a gap");
    assert_eq!(append(&bench, &job, 0, items[..40].to_vec()).await, (true, 1));
    assert_eq!(append(&bench, &job, 0, items[..40].to_vec()).await, (true, 1), "again");
    assert_eq!(append(&bench, &job, 1, items[40..].to_vec()).await, (true, 2));
    assert_eq!(seal(&bench, &job).await.unwrap().job_id, job);
    let (state, pages) = walk(&bench, &job).await;
    assert_eq!(state, JobState::Done);
    let calls = bench.script.calls();
    assert!(
        calls
            .iter()
            .all(|call| call.len() <= 3 && call.iter().sum::<usize>() <= 12),
        "{calls:?}"
    );
    assert_eq!(pages.len(), calls.len(), "one page a quantum");
    assert_eq!(vectors(&pages), expected(&bench, &items).await);
    let view = status(&bench, &job).await;
    assert_eq!(
        (view.state, view.progress.done, view.progress.total),
        (JobState::Done, 60, Some(60))
    );
    let refused = append_error(&bench, &job).await;
    assert!(refused.message().contains("done"), "{refused}");
}

async fn append_error(bench: &Bench, job: &str) -> ServiceError {
    let params = JobAppendParams {
        job_id: job.to_owned(),
        seq: 9,
        items: texts(0..1),
    };
    job_append::run(&bench.daemon, &bench.ctx(), params).await.unwrap_err()
}

/// Proves API-11, JOB-06, SCHED-14. A batch over a cap is a job if it has a key, and the key finds it again.
#[tokio::test]
async fn a_batch_over_the_caps_becomes_a_job() {
    let bench = Bench::loaded().await;
    let many = vec!["one two"; 65];
    let send = |key: Option<&str>, texts: &[&str]| {
        let mut params = batch(texts);
        params.request_key = key.map(ToOwned::to_owned);
        let (daemon, ctx) = (bench.daemon.clone(), bench.ctx());
        async move { embed_batch::run(&daemon, &ctx, params).await }
    };
    assert_eq!(code(send(None, &many).await), Some(ErrorCode::LimitExceeded));
    let accepted = |outcome: Result<EmbedBatchResult, ServiceError>| match outcome.unwrap() {
        EmbedBatchResult::Accepted(job) => job.job_id,
        EmbedBatchResult::Vectors(_) => panic!("answered inline"),
    };
    let job = accepted(send(Some("key"), &many).await);
    assert_eq!(accepted(send(Some("key"), &many).await), job);
    let (state, pages) = walk(&bench, &job).await;
    assert_eq!((state, vectors(&pages).len()), (JobState::Done, 65));
    let calls = bench.script.calls().len();
    assert_eq!(accepted(send(Some("key"), &many).await), job, "after its end");
    assert_eq!(bench.script.calls().len(), calls, "and nothing is computed again");
    let other = vec!["one two three"; 65];
    assert_eq!(
        code(send(Some("key"), &other).await),
        Some(ErrorCode::IdempotencyConflict)
    );
    let within = send(Some("key"), &many[..3]).await.unwrap();
    assert!(
        matches!(within, EmbedBatchResult::Vectors(_)),
        "within the caps a key changes nothing"
    );
}

/// Proves JOB-04, JOB-05, ERR-10. A restart in the middle: what was kept is readable, the job has failed for now, and a
/// seal of it goes on with the rest alone.
#[tokio::test]
async fn a_job_goes_on_after_a_restart() {
    let bench = Bench::loaded().await;
    let items = texts(0..30);
    let job = create(&bench, Some("key")).await;
    append(&bench, &job, 0, items.clone()).await;
    let (reached, at_third) = sync_channel(1);
    for _ in 0..2 {
        bench.script.then(|_, _| Ok(()));
    }
    bench.script.then(move |ctx, _| {
        reached.send(()).unwrap();
        Err(until_cancelled(ctx))
    });
    seal(&bench, &job).await.unwrap();
    tokio::task::spawn_blocking(move || at_third.recv_timeout(HANG).unwrap())
        .await
        .unwrap();
    // Pages are written while the next quantum runs.
    let kept = vectors(&[there(&bench, &job, 0).await, there(&bench, &job, 1).await]);

    let bench = bench.restart_with_engine().await;
    let view = status(&bench, &job).await;
    assert_eq!(view.state, JobState::FailedTransient);
    assert_eq!(view.error.unwrap().code, ErrorCode::ModuleRestarted);
    let (state, pages) = walk(&bench, &job).await;
    assert_eq!((state, vectors(&pages)), (JobState::FailedTransient, kept.clone()));

    let fresh = seal(&bench, &job).await.unwrap().job_id;
    assert_ne!(fresh, job);
    assert_eq!(seal(&bench, &job).await.unwrap().job_id, fresh, "asked again");
    let (state, pages) = walk(&bench, &fresh).await;
    assert_eq!(state, JobState::Done);
    let embedded: usize = bench.script.calls().iter().map(Vec::len).sum();
    assert_eq!(embedded, 30 - kept.len(), "nothing that was kept is computed again");
    assert_eq!(vectors(&pages), expected(&bench, &items).await);
    let listed = job_list::run(&bench.daemon, &bench.ctx(), synapse_wire::client::JobListParams {})
        .await
        .unwrap();
    let batches = listed
        .jobs
        .iter()
        .filter(|view| view.job_id == job || view.job_id == fresh);
    assert_eq!(batches.count(), 2);
}

#[tokio::test]
async fn a_cancelled_job_keeps_its_pages_and_computes_nothing_more() {
    let bench = Bench::loaded().await;
    let job = create(&bench, None).await;
    append(&bench, &job, 0, texts(0..30)).await;
    let (reached, at_second) = sync_channel(1);
    bench.script.then(|_, _| Ok(()));
    bench.script.then(move |ctx, _| {
        reached.send(()).unwrap();
        // It ends as usual once it was told: what it made then is too late.
        let _ = until_cancelled(ctx);
        Ok(())
    });
    seal(&bench, &job).await.unwrap();
    tokio::task::spawn_blocking(move || at_second.recv_timeout(HANG).unwrap())
        .await
        .unwrap();
    there(&bench, &job, 0).await;
    job_cancel::run(&bench.daemon, &bench.ctx(), named(&job)).await.unwrap();
    let (state, pages) = walk(&bench, &job).await;
    assert_eq!((state, pages.len()), (JobState::Cancelled, 1));
    tokio::time::timeout(HANG, bench.daemon.jobs.idle()).await.unwrap();
    assert_eq!(bench.script.calls().len(), 2);
    assert_eq!(status(&bench, &job).await.state, JobState::Cancelled);
    let unknown = job_cancel::run(&bench.daemon, &bench.ctx(), named("job-0-0")).await;
    assert_eq!(code(unknown), Some(ErrorCode::UnknownJob));
}

/// A text that cannot be embedded fails alone. A model that is not in memory is loaded for the job.
#[tokio::test]
async fn failures_of_texts_are_theirs_alone() {
    let bench = Bench::new().await;
    let job = create(&bench, None).await;
    let mut items = texts(0..4);
    items[1].text = serde_json::from_str::<Text>(r#""half \ud800""#).unwrap();
    append(&bench, &job, 0, items).await;
    seal(&bench, &job).await.unwrap();
    let (state, pages) = walk(&bench, &job).await;
    assert_eq!(state, JobState::Done);
    let failed: Vec<(String, ErrorCode)> = pages
        .iter()
        .flat_map(|page| &page.items)
        .filter_map(|item| Some((item.id.clone(), item.error.as_ref()?.code.clone())))
        .collect();
    assert_eq!(failed, [("t1".to_owned(), ErrorCode::InvalidText)]);
    let missing: Vec<String> = vectors(&pages)
        .into_iter()
        .filter_map(|(id, vector)| vector.is_none().then_some(id))
        .collect();
    assert_eq!(missing, ["t1"]);
}

#[tokio::test]
async fn what_a_job_could_not_do_is_refused_before_its_texts() {
    let config = {
        let mut config = Config::default();
        config.jobs.max_open = 1;
        config.jobs.max_items = 2;
        config
    };
    let bench = Bench::with(Setup {
        config,
        ..Setup::default()
    })
    .await;
    let ask = |model: &str, options: EmbedJobOptions, key: Option<&str>| {
        let params = JobCreateParams {
            operation: JobOperation::EmbedBatch,
            model: model.to_owned(),
            options,
            request_key: key.map(ToOwned::to_owned),
            weight: None,
        };
        let (daemon, ctx) = (bench.daemon.clone(), bench.ctx());
        async move { job_create::run(&daemon, &ctx, params).await }
    };
    let options = EmbedJobOptions::default;
    assert_eq!(
        code(ask("nobody", options(), None).await),
        Some(ErrorCode::UnknownModel)
    );
    assert_eq!(
        code(ask("toy-rank", options(), None).await),
        Some(ErrorCode::Unsupported)
    );
    let dims = EmbedJobOptions {
        dimensions: Some(3),
        ..options()
    };
    assert!(ask("toy", dims, None).await.is_err());
    let space = EmbedJobOptions {
        required_fingerprint: Some("ab".repeat(32)),
        ..options()
    };
    assert_eq!(
        code(ask("toy", space, None).await),
        Some(ErrorCode::SubstitutionRejected)
    );
    assert_eq!(
        code(ask("toy", options(), Some("")).await),
        Some(ErrorCode::InvalidRequest)
    );
    let job = ask("toy", options(), None).await.unwrap().job_id;
    assert_eq!(code(ask("toy", options(), None).await), Some(ErrorCode::QueueFull));
    assert_eq!(
        code(seal(&bench, &job).await),
        Some(ErrorCode::InvalidRequest),
        "it is empty"
    );
    let many = JobAppendParams {
        job_id: job.clone(),
        seq: 0,
        items: texts(0..3),
    };
    let refused = job_append::run(&bench.daemon, &bench.ctx(), many).await.unwrap_err();
    let facts = refused.facts().unwrap();
    assert_eq!(
        (facts.limit.as_deref(), facts.maximum, facts.actual),
        (Some("jobs.max_items"), Some(2), Some(3))
    );
}

/// Waits until so many bulk calls wait on the toy's lane.
async fn until_waiting(bench: &Bench, calls: usize) {
    let lane = bench.daemon.lanes.all().remove(0);
    let waits = || lane.loaded().unwrap().executor.load().bulk_waiting >= calls;
    polled(async || waits().then_some(())).await;
}

/// A job of so many texts of so many words, each of which is `words + 2` tokens.
async fn job_of(bench: &Bench, count: u32, words: usize, weight: u32) -> String {
    let params = JobCreateParams {
        operation: JobOperation::EmbedBatch,
        model: "toy".to_owned(),
        options: EmbedJobOptions::default(),
        request_key: None,
        weight: Some(weight),
    };
    let job = job_create::run(&bench.daemon, &bench.ctx(), params)
        .await
        .unwrap()
        .job_id;
    let text = "one ".repeat(words);
    let items = (0..count)
        .map(|n| BatchItem::new(format!("t{n}"), text.trim()))
        .collect();
    append(bench, &job, 0, items).await;
    seal(bench, &job).await.unwrap();
    job
}

/// The engine stops in its next call until the returned gate is opened.
fn gate(bench: &Bench) -> (std::sync::mpsc::Receiver<()>, std::sync::mpsc::SyncSender<()>) {
    let (reached, at_gate) = sync_channel(1);
    let (open, opened) = sync_channel::<()>(1);
    bench.script.then(move |_, _| {
        reached.send(()).unwrap();
        opened.recv_timeout(HANG).unwrap();
        Ok(())
    });
    (at_gate, open)
}

async fn ends(bench: &Bench, jobs: &[String]) {
    for job in jobs {
        assert_eq!(walk(bench, job).await.0, JobState::Done);
    }
}

/// Proves SCHED-06. fault-reports 93: small jobs that come while as many large ones are at work as once had turns all end
/// before a quarter of the large ones is done.
#[tokio::test]
async fn small_jobs_do_not_wait_behind_large_ones() {
    let bench = Bench::loaded().await;
    let (at_gate, open) = gate(&bench);
    let mut jobs = Vec::new();
    for _ in 0..4 {
        // Texts of 8 tokens: one a quantum.
        jobs.push(job_of(&bench, 40, 6, 1).await);
    }
    tokio::task::spawn_blocking(move || at_gate.recv_timeout(HANG).unwrap())
        .await
        .unwrap();
    for _ in 0..6 {
        // Three texts of 3 tokens: all in one quantum.
        jobs.push(job_of(&bench, 3, 1, 1).await);
    }
    until_waiting(&bench, 9).await;
    open.send(()).unwrap();
    ends(&bench, &jobs).await;
    let calls = bench.script.calls();
    let last_small = calls.iter().rposition(|call| call[0] == 3).unwrap();
    let large_before = calls[..last_small].iter().filter(|call| call[0] == 8).count();
    assert!(
        large_before < 4 * 40 / 4,
        "{large_before} of 160 before the last small job"
    );
}

/// Proves SCHED-06. A job of the fourfold weight gets about the fourfold time.
#[tokio::test]
async fn the_weight_of_a_job_reaches_the_scheduler() {
    let bench = Bench::loaded().await;
    let (at_gate, open) = gate(&bench);
    for _ in 0..80 {
        bench.script.then(|_, _| {
            // An engine at work, whose quanta all cost the same.
            let until = Instant::now() + Duration::from_millis(3);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            Ok(())
        });
    }
    // A third job holds the lane until both wait: what it is charged is its own.
    let first = job_of(&bench, 1, 1, 1).await;
    tokio::task::spawn_blocking(move || at_gate.recv_timeout(HANG).unwrap())
        .await
        .unwrap();
    // One text a quantum: 7 and 8 tokens.
    let light = job_of(&bench, 40, 5, 1).await;
    let heavy = job_of(&bench, 40, 6, 4).await;
    until_waiting(&bench, 2).await;
    open.send(()).unwrap();
    ends(&bench, &[first, light, heavy]).await;
    let calls = bench.script.calls();
    let last_heavy = calls.iter().rposition(|call| call[0] == 8).unwrap();
    let light_before = calls[..last_heavy].iter().filter(|call| call[0] == 7).count();
    assert!(
        (4..=24).contains(&light_before),
        "{light_before} of 40 beside the heavy job"
    );
    for weight in [0, 101] {
        let params = JobCreateParams {
            operation: JobOperation::EmbedBatch,
            model: "toy".to_owned(),
            options: EmbedJobOptions::default(),
            request_key: None,
            weight: Some(weight),
        };
        let refused = job_create::run(&bench.daemon, &bench.ctx(), params).await;
        assert_eq!(code(refused), Some(ErrorCode::InvalidRequest), "{weight}");
    }
}

/// Reads scores page by page, while the job runs, to its end.
async fn scores(bench: &Bench, job: &str) -> (JobState, BTreeMap<String, Option<f32>>) {
    let mut pages = Vec::new();
    let state = polled(async || {
        let next = page(bench, job, u64::try_from(pages.len()).unwrap()).await;
        assert!(next.content.is_none(), "a job that scores has no vectors");
        let ended = next.scores.is_none() && next.state.is_final();
        pages.extend(next.scores);
        ended.then_some(next.state)
    })
    .await;
    let mut found = BTreeMap::new();
    for page in pages {
        assert_eq!(page.items.len(), page.scores.len());
        for (item, score) in page.items.into_iter().zip(page.scores) {
            assert!(found.insert(item.id, score).is_none(), "a candidate stands twice");
        }
    }
    (state, found)
}

/// Proves API-11, API-15, JOB-04, JOB-06. Candidates over a cap are a job if the request has a key: the scores are those of
/// an inline request, a restart loses nothing that was kept, and the same request goes on with the rest.
#[tokio::test]
async fn a_rerank_over_the_caps_becomes_a_job() {
    let bench = Bench::loaded_with(Config::default(), "toy-rank").await;
    let words = ["one", "two three", "four", "three two one"];
    let documents: Vec<&str> = (0..90).map(|n| words[n % 4]).collect();
    let request = |key: Option<&str>| {
        let mut params = rerank("two", &documents);
        params.request_key = key.map(ToOwned::to_owned);
        params
    };
    let refused = rerank_score::run(&bench.daemon, &bench.ctx(), request(None)).await;
    assert_eq!(code(refused), Some(ErrorCode::LimitExceeded), "without a key");
    let inline = ask_scores(&bench, &bench.ctx(), rerank("two", &words)).await.unwrap();

    let accepted = |outcome: Result<RerankScoreResult, ServiceError>| match outcome.unwrap() {
        RerankScoreResult::Accepted(job) => job.job_id,
        RerankScoreResult::Scores(_) => panic!("answered inline"),
    };
    bench.script.then(|_, _| Ok(()));
    let (reached, at_second) = sync_channel(1);
    bench.script.then(move |ctx, _| {
        reached.send(()).unwrap();
        Err(until_cancelled(ctx))
    });
    let job = accepted(rerank_score::run(&bench.daemon, &bench.ctx(), request(Some("key"))).await);
    let again = accepted(rerank_score::run(&bench.daemon, &bench.ctx(), request(Some("key"))).await);
    assert_eq!(again, job, "the same request, the same job");
    tokio::task::spawn_blocking(move || at_second.recv_timeout(HANG).unwrap())
        .await
        .unwrap();
    polled(async || page(&bench, &job, 0).await.scores).await;

    let bench = bench.restart_with_engine().await;
    let (state, kept) = scores(&bench, &job).await;
    assert_eq!(state, JobState::FailedTransient);
    assert!(!kept.is_empty() && kept.len() < 90, "{}", kept.len());
    bench.load("toy-rank").await.unwrap();
    let fresh = accepted(rerank_score::run(&bench.daemon, &bench.ctx(), request(Some("key"))).await);
    assert_ne!(fresh, job);
    let shown = status(&bench, &fresh).await;
    assert!(shown.progress.done >= u64::try_from(kept.len()).unwrap(), "{shown:?}");
    let (state, all) = scores(&bench, &fresh).await;
    assert_eq!((state, all.len()), (JobState::Done, 90));
    let scored: usize = bench.script.calls().iter().map(Vec::len).sum();
    assert_eq!(scored, 90 - kept.len(), "nothing that was kept is scored again");
    for (n, word) in (0..90).zip(0_usize..) {
        assert_eq!(all[&format!("c{n}")], inline.scores[word % 4], "candidate {n}");
    }
    let other = {
        let mut params = request(Some("key"));
        params.query = Text::from("three");
        rerank_score::run(&bench.daemon, &bench.ctx(), params).await
    };
    assert_eq!(code(other), Some(ErrorCode::IdempotencyConflict), "another query");
}

/// Proves JOB-01, JOB-04. A load is a row like any job: it is listed after a restart, and is asked for again by its own
/// operation, not by a seal.
#[tokio::test]
async fn a_load_is_remembered_over_a_restart() {
    let bench = Bench::loaded().await;
    let (daemon, _dir) = bench.restart().await;
    let ctx = super::toy::context(HANG, HANG);
    let jobs = job_list::run(&daemon, &ctx, synapse_wire::client::JobListParams {})
        .await
        .unwrap()
        .jobs;
    let [load] = jobs.as_slice() else { panic!("{jobs:?}") };
    assert_eq!((load.kind, load.state), (JobKind::ModelLoad, JobState::Done));
    assert!(matches!(load.result, Some(JobResult::Load(_))), "{load:?}");
    let row = NewWork {
        id: "job-1-1".to_owned(),
        uid: crate::job::owner(),
        kind: "model_load".to_owned(),
        model: "toy".to_owned(),
        now_ms: crate::job::now_ms(),
    };
    daemon.store.accept_work(row).unwrap();
    daemon
        .store
        .move_job("job-1-1", JobEvent::FailTransient, None, crate::job::now_ms())
        .unwrap();
    let refused = job_seal::run(&daemon, &ctx, named("job-1-1")).await;
    assert_eq!(code(refused), Some(ErrorCode::InvalidRequest));
}
