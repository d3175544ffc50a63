//! The fuzzer: drawn calls, valid and hostile, against a bundle's library, batch by batch, each batch in a process.
//!
//! State: one run's temporary folder. Callers: `cargo synapse fuzz`. A batch is its seed: the same seed, bundle and number
//! of calls give the same calls in the same order, so what a seed finds is found again. The child notes every call before it
//! makes it; the last note of a process that crashed or hung is the call that did it. What is asked of the answers:
//!
//! - the process lives, and each batch ends within its time;
//! - a valid call gives finite values, the same when it is made again where the engine claims to be thread-invariant;
//! - a call that breaks the contract is refused with the code that the contract has for it (PC-20, PC-23, PC-25, PC-26,
//!   PC-28, PC-34), and a file that is no model is an error or a model, never the end of the engine (PC-19, PC-21);
//! - a cancelled call ends as cancelled (PC-43); no error is PANIC, none leaves engine or model bad (PC-44);
//! - a message has at most 4,096 bytes (PC-48).

mod batch;
mod calls;
mod damage;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use synapse_loader::Bundle;
use synapse_loader::process::{Command, Output, WaitError, spawner};

use crate::catalogue::{Outcome, Stop, Verdict};
use crate::child::{ANSWER, JOB};
use crate::host::lock;
use crate::json::{self, Job};
use crate::run::{Error, Options, examine, subject_of};

/// The first argument of a batch's process; the note of what to do and the number of calls follow.
const FUZZ_ARGUMENT: &str = "--conformance-fuzz";
/// The file that the calls are noted in.
const JOURNAL: &str = "calls.txt";
/// The most bytes kept of what a batch's process prints.
const KEPT: usize = 64 << 10;

/// How much to fuzz. Bundle, runner, subject, jobs, time limit (of a batch) and first seed are those of [`Options`].
#[derive(Clone, Debug)]
pub struct Fuzz {
    /// The bundle and the processes.
    pub options: Options,
    /// How many batches; the seeds of all follow the first one's.
    pub batches: u64,
    /// How many calls each makes.
    pub calls: u32,
}

impl Fuzz {
    /// Twenty batches of 200 calls, two minutes each.
    pub fn new(mut options: Options) -> Self {
        options.time_limit = Duration::from_secs(120);
        Self {
            options,
            batches: 20,
            calls: 200,
        }
    }
}

/// How one batch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its seed.
    pub seed: u64,
    /// Pass, Skip (nothing could be called), Fail, Crash or Hang.
    pub outcome: Outcome,
    /// What was found; empty for a pass.
    pub message: String,
    /// The calls that were made, in order; the last one is what the outcome is about.
    pub calls: Vec<String>,
}

/// What a run found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The bundle's id.
    pub bundle: String,
    /// The digest of the bundle's files.
    pub digest: String,
    /// Every batch, by seed in the order of the run.
    pub batches: Vec<Batch>,
}

impl Found {
    /// Whether nothing failed, crashed or hung.
    #[must_use]
    pub fn passed(&self) -> bool {
        !self.batches.iter().any(|batch| batch.outcome.is_bad())
    }
}

/// Why nothing could be called.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// A host would refuse the bundle.
    #[error("a host refuses this bundle ({check}): {message}; `check` says more")]
    Bundle {
        /// The check of the package that fails.
        check: &'static str,
        /// What the loader says.
        message: String,
    },
    /// The run has no ground.
    #[error(transparent)]
    Run(#[from] Error),
}

/// Fuzzes a bundle. `progress` hears of each batch as it ends, from several threads.
///
/// # Errors
/// [`Refused`], when nothing could be called at all: no bundle, or one that a host refuses.
pub fn run(fuzz: &Fuzz, progress: &(dyn Fn(&Batch) + Sync)) -> Result<Found, Refused> {
    let work = tempfile::Builder::new()
        .prefix("synapse-fuzz-")
        .tempdir()
        .map_err(|error| Error::Io {
            what: "a temporary folder".to_owned(),
            error,
        })?;
    let bundle = examine(&fuzz.options, work.path())?;
    if let Some((check, _, message)) = crate::package::failed(&bundle) {
        return Err(Refused::Bundle { check, message });
    }
    let subject = subject_of(&fuzz.options, &bundle)?;
    let next = AtomicU64::new(0);
    let batches = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..fuzz.options.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    if number >= fuzz.batches {
                        break;
                    }
                    let seed = fuzz.options.seed.wrapping_add(number);
                    let batch = one(fuzz, &bundle, subject.as_deref(), work.path(), seed);
                    progress(&batch);
                    lock(&batches).push((number, batch));
                }
            });
        }
    });
    let mut batches = std::mem::take(&mut *lock(&batches));
    batches.sort_by_key(|(number, _)| *number);
    Ok(Found {
        bundle: bundle.id.clone(),
        digest: bundle.digest.map(|digest| digest.to_string()).unwrap_or_default(),
        batches: batches.into_iter().map(|(_, batch)| batch).collect(),
    })
}

/// Runs one batch in a process of its own.
fn one(fuzz: &Fuzz, bundle: &Bundle, subject: Option<&Path>, work: &Path, seed: u64) -> Batch {
    let work = work.join(format!("{seed:016x}"));
    let verdict = in_a_process(fuzz, bundle, subject, &work, seed);
    let journal = std::fs::read_to_string(work.join(JOURNAL)).unwrap_or_default();
    let (outcome, message) = match verdict {
        Ok(()) => (Outcome::Pass, String::new()),
        Err(stop) => (stop.outcome, stop.message),
    };
    // Damaged copies of models are not needed any more.
    let _ = std::fs::remove_dir_all(&work);
    Batch {
        seed,
        outcome,
        message,
        calls: journal.lines().map(str::to_owned).collect(),
    }
}

fn in_a_process(fuzz: &Fuzz, bundle: &Bundle, subject: Option<&Path>, work: &Path, seed: u64) -> Verdict {
    let ours = |what: String| {
        Err(Stop {
            outcome: Outcome::Fail,
            message: format!("the fuzzer's own {what}"),
        })
    };
    let Some(library) = bundle.library.clone() else {
        return Err(Stop {
            outcome: Outcome::Skip,
            message: "the bundle is a program: it has no library to call".to_owned(),
        });
    };
    let job = Job {
        check: "fuzz".to_owned(),
        id: bundle.id.clone(),
        version: bundle.version.as_ref().map(ToString::to_string).unwrap_or_default(),
        bundle: bundle.staged.clone().unwrap_or_default(),
        library: Some(library),
        worker: None,
        descriptor: bundle
            .descriptor
            .as_ref()
            .map(|descriptor| descriptor.to_json())
            .unwrap_or_default(),
        abort_capable: !bundle.promotable,
        settings: bundle.config.clone(),
        subject: subject.map(Path::to_owned),
        work: work.to_owned(),
        seed,
    };
    let path = work.join(JOB);
    let made = std::fs::create_dir_all(work.join("scratch")).and_then(|()| std::fs::write(&path, job.to_json()));
    if let Err(error) = made {
        return ours(format!("folder {}: {error}", work.display()));
    }
    let command = Command::new(&fuzz.options.runner)
        .arg(FUZZ_ARGUMENT)
        .arg(&path)
        .arg(fuzz.calls.to_string())
        .inherit_env("LD_LIBRARY_PATH")
        .dir(work)
        .stdout(Output::Null)
        .stderr(Output::Capture { limit: KEPT });
    let child = match spawner().spawn(command) {
        Ok(child) => child,
        Err(error) => return ours(format!("process: {error}")),
    };
    let limit = fuzz.options.time_limit;
    let ended = child.wait_with_output(limit);
    let answer = std::fs::read_to_string(work.join(ANSWER)).unwrap_or_default();
    match (json::read_answer(&answer), ended) {
        (Some(verdict), Ok(finished)) if verdict.is_err() || finished.status.success() => verdict,
        (_, Ok(finished)) => Err(Stop {
            outcome: Outcome::Crash,
            message: format!("the process ended: {}{}", finished.status, words(&finished.stderr)),
        }),
        (_, Err(WaitError::Timeout { stderr, .. })) => Err(Stop {
            outcome: Outcome::Hang,
            message: format!("the batch did not end within {limit:?}{}", words(&stderr)),
        }),
        (_, Err(WaitError::Io(error))) => ours(format!("process: {error}")),
    }
}

/// The last line that a process wrote, as the tail of a message.
fn words(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    let shown = |line: &str| line.chars().filter(|c| !c.is_control()).take(300).collect::<String>();
    line.map_or_else(String::new, |line| format!("; its last words: {}", shown(line)))
}

/// Runs one batch when the arguments of this process say so; `None` when they are the program's own.
#[must_use]
pub fn hidden() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != FUZZ_ARGUMENT {
        return None;
    }
    let path = PathBuf::from(arguments.next()?);
    let calls = arguments.next().and_then(|calls| calls.to_str()?.parse().ok())?;
    let Some(job) = std::fs::read_to_string(path).ok().as_deref().and_then(Job::from_json) else {
        return Some(ExitCode::FAILURE);
    };
    let folder = job.work.clone();
    let Ok(journal) = std::fs::File::create(folder.join(JOURNAL)) else {
        return Some(ExitCode::FAILURE);
    };
    let verdict = batch::run(job, calls, journal);
    // Whole or not at all: a process that ends while it writes has not answered.
    let (draft, answer) = (folder.join("draft"), folder.join(ANSWER));
    let written = std::fs::write(&draft, json::answer(&verdict)).and_then(|()| std::fs::rename(draft, answer));
    Some(written.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS))
}
