//! `kill -9` of the daemon at many points of the lives of jobs: what was answered is true, what was kept is as it was, and
//! each key leads to one job that is done once.
//!
//! One place outlives all daemons. Each round starts one, looks at every job that there is, brings the work of the round
//! before to its end, begins new work and kills at a point that the round's number decides. The work of a round is known
//! by its number of texts, which no other has: so jobs are counted whose names no client was ever told. Most work embeds;
//! some scores the same texts as the candidates of a query.

use std::collections::BTreeMap;
use std::io::Write;

use serde_json::{Value, json};

use super::{
    MODEL, TEXTS, Walk, alone, batch, content, creation, end, job_id, place, result, serving, status, texts, walk,
};
use crate::support::client::{Client, code};
use crate::support::daemon::{Daemon, Place};
use crate::support::toys::{self, Kind};

/// Texts of the first round's work: ten quanta at least.
const ITEMS: usize = 640;
/// The toy that scores, and its query.
const RERANKER: (&str, &str) = ("scoring-toy", "who holds the lock");
/// Appends of a work that is not sent in one piece.
const APPENDS: usize = 4;

/// Where a daemon is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Point {
    /// `job.create` is sent.
    Create,
    /// Some texts are appended, further ones are sent.
    Append,
    /// All texts are appended, `job.seal` is sent.
    Seal,
    /// A whole batch is sent.
    Accept,
    /// Pages are read.
    Commit,
    /// The last pages are read.
    End,
    /// Pages are read, `job.cancel` is sent.
    Cancel,
    /// A job that a kill interrupted is submitted again.
    Resubmit,
}

const POINTS: [Point; 8] = [
    Point::Create,
    Point::Append,
    Point::Seal,
    Point::Accept,
    Point::Commit,
    Point::End,
    Point::Cancel,
    Point::Resubmit,
];

/// Seeded numbers: splitmix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }

    /// Lets the daemon get anywhere from the arrival of a request to some commits later, as counted by the answers that a
    /// bystander has from it.
    fn moment(&mut self, daemon: &Daemon) {
        let mut bystander = daemon.connect();
        for _ in 0..self.below(40) {
            bystander.ok("health", &json!({}));
        }
    }
}

/// One client's work over all rounds, with what it was told and what it read.
#[derive(Debug)]
struct Work {
    key: String,
    items: usize,
    /// It scores, and does not embed.
    scores: bool,
    /// The open job, and how many appends were answered.
    open: Option<(String, usize)>,
    /// The jobs that it was told of, sealed.
    jobs: Vec<String>,
    /// The pages that it read.
    pages: Vec<Value>,
    /// A cancellation was answered.
    cancelled: bool,
    /// How it ended.
    ended: Option<String>,
}

impl Work {
    fn new(number: usize, scores: bool) -> Self {
        Self {
            key: format!("key-{number}"),
            items: ITEMS + number,
            scores,
            open: None,
            jobs: Vec::new(),
            pages: Vec::new(),
            cancelled: false,
            ended: None,
        }
    }

    /// The request that is all of it.
    fn whole(&self) -> (&'static str, Value) {
        if !self.scores {
            return ("embed.batch", batch(&self.key, self.items));
        }
        let (model, query) = RERANKER;
        let candidates = texts(0, self.items);
        let params = json!({"model": model, "query": query, "candidates": candidates, "request_key": self.key});
        ("rerank.score", params)
    }

    fn append(&self, id: &str, seq: usize) -> Value {
        let (from, to) = (self.items * seq / APPENDS, self.items * (seq + 1) / APPENDS);
        json!({"job_id": id, "seq": seq, "items": texts(from, to)})
    }

    /// Its sealed jobs, as the daemon lists them.
    fn listed(&self, jobs: &[Value]) -> Vec<Value> {
        let of_this = |job: &&Value| job["state"] != "open" && job["progress"]["total"] == self.items;
        jobs.iter().filter(of_this).cloned().collect()
    }
}

fn list(client: &mut Client) -> Vec<Value> {
    let jobs = client.ok("job.list", &json!({}))["jobs"].take();
    let of_texts = |job: &&Value| job["kind"] == "embed_batch" || job["kind"] == "rerank_score";
    jobs.as_array()
        .expect("a list")
        .iter()
        .filter(of_texts)
        .cloned()
        .collect()
}

fn is(job: &Value, state: &str) -> bool {
    job["state"] == state
}

/// Kills the daemon and gives what the request in flight was answered: a result, or nothing. An error has to be typed.
fn kill(daemon: Daemon, client: &mut Client) -> Option<Value> {
    daemon.kill();
    let mut answer = client.line()?;
    if let Some(error) = answer.get("error") {
        assert!(!code(error).is_empty(), "{answer}");
        return None;
    }
    Some(answer["result"].take())
}

/// Reads pages until there are so many, or the job has ended.
fn read_pages(client: &mut Client, work: &mut Work, count: usize) {
    let id = work.jobs.last().expect("a job").clone();
    while work.pages.len() < count {
        let mut answer = result(client, &id, work.pages.len());
        if let Some(page) = content(&mut answer) {
            work.pages.push(page);
        } else if !["queued", "running"].contains(&answer["state"].as_str().expect("a state")) {
            return;
        }
    }
}

/// Begins a work and kills the daemon at its point.
fn strike(point: Point, place: &Place, daemon: Daemon, mut client: Client, work: &mut Work, dice: &mut Dice) {
    match point {
        Point::Create => {
            client.request("job.create", &creation(&work.key));
            dice.moment(&daemon);
            work.open = kill(daemon, &mut client).map(|answer| (job_id(&answer), 0));
        }
        Point::Append | Point::Seal => {
            let id = job_id(&client.ok("job.create", &creation(&work.key)));
            let whole = usize::try_from(dice.below(3)).expect("is small");
            let whole = if point == Point::Seal { APPENDS } else { whole };
            for seq in 0..whole {
                client.ok("job.append", &work.append(&id, seq));
            }
            if point == Point::Seal {
                client.request("job.seal", &json!({"job_id": id}));
            } else {
                client.request("job.append", &work.append(&id, whole));
            }
            dice.moment(&daemon);
            let answer = kill(daemon, &mut client);
            match answer {
                Some(answer) if point == Point::Seal => work.jobs.push(job_id(&answer)),
                answer => work.open = Some((id, whole + usize::from(answer.is_some()))),
            }
        }
        Point::Accept => {
            let (method, params) = work.whole();
            client.request(method, &params);
            dice.moment(&daemon);
            work.jobs
                .extend(kill(daemon, &mut client).map(|answer| job_id(&answer)));
        }
        Point::Commit | Point::End | Point::Cancel => {
            let (method, params) = work.whole();
            work.jobs.push(job_id(&client.ok(method, &params)));
            let quanta = work.items / 64;
            // One at least: what was kept is there to be gone on with.
            let pages = 1 + usize::try_from(dice.below(3)).expect("is small");
            read_pages(&mut client, work, if point == Point::End { quanta } else { pages });
            if point == Point::Cancel {
                let id = work.jobs.last().expect("a job").clone();
                client.request("job.cancel", &json!({"job_id": id}));
                dice.moment(&daemon);
                work.cancelled = kill(daemon, &mut client).is_some();
            } else {
                dice.moment(&daemon);
                daemon.kill();
            }
        }
        Point::Resubmit => {
            strike(Point::Commit, place, daemon, client, work, dice);
            let daemon = place.start();
            let mut client = daemon.connect();
            let (method, params) = work.whole();
            client.request(method, &params);
            dice.moment(&daemon);
            work.jobs
                .extend(kill(daemon, &mut client).map(|answer| job_id(&answer)));
        }
    }
}

/// What holds right after every start.
fn survey(client: &mut Client, works: &[Work]) {
    let jobs = list(client);
    for job in &jobs {
        assert!(
            !is(job, "queued") && !is(job, "running"),
            "nothing of an earlier run goes on by itself: {job}"
        );
        assert!(!is(job, "failed_permanent"), "{job}");
        if is(job, "failed_transient") {
            assert_eq!(job["error"]["code"], "module_restarted", "{job}");
        }
    }
    for work in works {
        let own = work.listed(&jobs);
        let current = own.iter().filter(|job| !is(job, "failed_transient")).count();
        assert!(current <= 1, "two jobs of one key: {own:?}");
        for id in &work.jobs {
            assert!(
                own.iter().any(|job| job["job_id"] == **id),
                "{id} was answered and is gone: {work:?}"
            );
        }
        if let Some(state) = &work.ended {
            let ended = own.iter().filter(|job| is(job, state)).count();
            assert_eq!(ended, 1, "the end of {} changed: {own:?}", work.key);
        }
        if work.cancelled {
            assert!(own.iter().any(|job| is(job, "cancelled") || is(job, "done")), "{own:?}");
        }
        if let Some((id, appends)) = &work.open {
            let view = status(client, id);
            let least = work.items * appends / APPENDS;
            let found = view["progress"]["done"]
                .as_u64()
                .and_then(|done| usize::try_from(done).ok());
            assert!(
                !is(&view, "open") || found >= Some(least),
                "{least} were answered: {view}"
            );
        }
    }
}

/// Whatever a kill left of a work, its client brings it to an end that is one job's.
fn finish(daemon: &Daemon, client: &mut Client, work: &mut Work, expected: &Expected) -> bool {
    if let Some((id, _)) = work.open.take() {
        if is(&status(client, &id), "open") {
            for seq in 0..APPENDS {
                let kept = client.ok("job.append", &work.append(&id, seq));
                assert_eq!(kept["kept"], true, "{kept}");
            }
        }
        work.jobs.push(job_id(&client.ok("job.seal", &json!({"job_id": id}))));
    }
    let before = work.listed(&list(client));
    // A job that was just sealed shows no total before its turn; its name is known.
    let sealed = work.jobs.last().map(|id| status(client, id));
    let current = before.iter().chain(&sealed).find(|job| !is(job, "failed_transient"));
    let mut clients: Vec<Client> = (0..4).map(|_| daemon.connect()).collect();
    let (method, params) = work.whole();
    for other in &mut clients {
        other.request(method, &params);
    }
    let told = clients.iter_mut().map(|other| other.line().expect("an answer"));
    let told: Vec<String> = told.map(|answer| job_id(&answer["result"])).collect();
    let id = told[0].clone();
    assert_eq!(told, vec![id.clone(); clients.len()], "one job for all");
    match current {
        Some(job) => assert_eq!(job_id(job), id, "the key names it"),
        None => assert!(
            before.iter().all(|job| job["job_id"] != *id),
            "a fresh one takes its place"
        ),
    }
    let resumed = before
        .iter()
        .any(|job| is(job, "failed_transient") && job["progress"]["done"] != 0);

    let view = end(client, &id);
    let mut seen = Walk::new(expected.of(work));
    let (pages, _) = walk(client, &id, &mut seen);
    assert!(
        pages.starts_with(&work.pages),
        "{}: a page that was read is another now",
        work.key
    );
    if is(&view, "done") {
        assert!(
            seen.is_whole(work.items),
            "{}: {} of {}",
            work.key,
            seen.seen.len(),
            work.items
        );
    } else {
        assert!(is(&view, "cancelled"), "{view}");
    }
    let after = work.listed(&list(client));
    let current: Vec<&Value> = after.iter().filter(|job| !is(job, "failed_transient")).collect();
    assert!(current.len() == 1 && job_id(current[0]) == id, "{after:?}");
    work.ended = Some(view["state"].as_str().expect("a state").to_owned());
    work.jobs.push(id);
    work.pages = pages;
    resumed
}

/// What each of [`TEXTS`] has, inline.
struct Expected {
    vectors: Vec<String>,
    scores: Vec<String>,
}

impl Expected {
    fn of(&self, work: &Work) -> &[String] {
        if work.scores { &self.scores } else { &self.vectors }
    }
}

/// The score of each of [`TEXTS`].
fn scored(client: &mut Client) -> Vec<String> {
    let (model, query) = RERANKER;
    let params = json!({"model": model, "query": query, "candidates": texts(0, TEXTS.len())});
    let answer = client.ok("rerank.score", &params);
    let scores = answer["scores"].as_array().expect("scores").iter();
    scores.map(Value::to_string).collect()
}

/// Cancels open jobs that no client was told of: a `job.create` whose answer was lost. There is one at most.
fn forget_unknown(client: &mut Client) {
    let open: Vec<Value> = list(client).into_iter().filter(|job| is(job, "open")).collect();
    assert!(open.len() <= 1, "{open:?}");
    for job in open {
        client.ok("job.cancel", &json!({"job_id": job["job_id"]}));
    }
}

/// Proves JOB-01, JOB-04, JOB-05, JOB-06, ERR-10, TEST-43. `SYNAPSE_TEST_LONG` makes it 200 points.
#[test]
fn a_daemon_killed_at_any_point_of_a_job_loses_and_repeats_nothing() {
    let rounds = match std::env::var_os("SYNAPSE_TEST_LONG") {
        Some(_) => 200,
        None => 12,
    };
    let place = place("{}");
    toys::write(&place, RERANKER.0, Kind::Rerank);
    let (daemon, mut client) = serving(&place);
    toys::install(&mut client, &place, RERANKER.0);
    let expected = Expected {
        vectors: alone(&mut client),
        scores: scored(&mut client),
    };
    daemon.kill();
    let (mut works, mut resumed): (Vec<Work>, BTreeMap<Point, usize>) = (Vec::new(), BTreeMap::new());
    let mut last = None;
    for round in 0..=rounds {
        let daemon = place.start();
        let mut client = daemon.connect();
        survey(&mut client, &works);
        if let (Some(work), Some(point)) = (works.last_mut(), last) {
            *resumed.entry(point).or_default() += usize::from(finish(&daemon, &mut client, work, &expected));
        } else {
            client.load(MODEL);
        }
        forget_unknown(&mut client);
        if round == rounds {
            // Every page that was ever read is there, after all of the kills.
            for work in &works {
                let id = work.jobs.last().expect("a job");
                let (pages, _) = walk(&mut client, id, &mut Walk::new(expected.of(work)));
                assert_eq!(pages, work.pages, "{}", work.key);
            }
            assert!(daemon.stop().success());
            break;
        }
        let point = POINTS[round % POINTS.len()];
        // Every third of the points that both kinds have: two in twelve rounds, each in twenty-two.
        let appends = [Point::Create, Point::Append, Point::Seal].contains(&point);
        let mut work = Work::new(round, !appends && round % 3 == 0);
        let mut dice = Dice(u64::try_from(round).expect("is small"));
        strike(point, &place, daemon, client, &mut work, &mut dice);
        works.push(work);
        last = Some(point);
    }
    let stderr = std::io::stderr();
    let _ = writeln!(
        stderr.lock(),
        "{rounds} kills; jobs that went on with their pages: {resumed:?}"
    );
    // The kills met jobs at work, and what these had kept was gone on with.
    assert!(resumed.values().sum::<usize>() >= rounds / 6, "{resumed:?}");
}
