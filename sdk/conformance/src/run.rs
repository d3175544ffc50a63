//! One run: the bundle is judged by the loader, then each check that was chosen gets a process.
//!
//! State: a temporary folder, removed at the end; a process for each running check, ended with it. Callers: runners. Not
//! known here: what a check does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use synapse_loader::process::{Command, Output, WaitError, spawner};
use synapse_loader::{Bundle, Loader, LoaderConfig, LoaderError, MemoryOnly};

use crate::catalogue::{Check, Group, Level, Outcome, Run, Stop, Verdict, catalogue, fail, skip};
use crate::child::{ANSWER, JOB};
use crate::host::lock;
use crate::json::{self, Job};
use crate::package;
use crate::report::{Line, Report};
use crate::subject;

/// The first argument of a check's process.
pub(crate) const CHECK_ARGUMENT: &str = "--conformance-check";
/// The most bytes kept of what a check's process prints.
const KEPT: usize = 64 << 10;
/// The time limit of one check.
const TIME_LIMIT: Duration = Duration::from_secs(45);

/// What to check, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The bundle's folder.
    pub bundle: PathBuf,
    /// A program whose `main` calls [`crate::hidden`] first.
    pub runner: PathBuf,
    /// `synapse-worker`, for the protocol checks of a library bundle; without it they skip.
    pub worker: Option<PathBuf>,
    /// The file that names models and tests, instead of the bundle's own `conformance.toml`.
    pub subject: Option<PathBuf>,
    /// How far to go.
    pub level: Level,
    /// Ids to run, separated by commas, `*` for any letters; the level does not count then.
    pub only: Option<String>,
    /// The seed of everything that is drawn.
    pub seed: u64,
    /// How many checks run at once.
    pub jobs: usize,
    /// How long one check may take.
    pub time_limit: Duration,
}

impl Options {
    /// The core level with seed 1, two checks at once, 45 s each.
    pub fn new(bundle: impl Into<PathBuf>, runner: impl Into<PathBuf>) -> Self {
        Self {
            bundle: bundle.into(),
            runner: runner.into(),
            worker: None,
            subject: None,
            level: Level::Core,
            only: None,
            seed: 1,
            jobs: 2,
            time_limit: TIME_LIMIT,
        }
    }
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused a file or a folder.
    #[error("{what}: {error}")]
    Io {
        /// What was to be done.
        what: String,
        /// The system's reason.
        error: std::io::Error,
    },
    /// The folder is no bundle at all.
    #[error("{}: expected a bundle's folder", path.display())]
    NoBundle {
        /// The folder.
        path: PathBuf,
    },
    /// A pattern of [`Options::only`] matches no check.
    #[error("no check is named {pattern:?}; `explain` lists all")]
    NoCheck {
        /// The pattern.
        pattern: String,
    },
    /// The loader cannot work.
    #[error(transparent)]
    Loader(#[from] LoaderError),
}

fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
    let what = what.into();
    move |error| Error::Io { what, error }
}

/// The checks that options choose, in the catalogue's order.
///
/// # Errors
/// [`Error::NoCheck`].
pub fn selected(options: &Options) -> Result<Vec<&'static Check>, Error> {
    let Some(only) = &options.only else {
        return Ok(catalogue().filter(|check| check.level <= options.level).collect());
    };
    let mut chosen = BTreeSet::new();
    for pattern in only.split(',').map(str::trim).filter(|pattern| !pattern.is_empty()) {
        let matching: Vec<_> = catalogue().filter(|check| matches(pattern, check.id)).collect();
        if matching.is_empty() {
            let pattern = pattern.to_owned();
            return Err(Error::NoCheck { pattern });
        }
        chosen.extend(matching.iter().map(|check| check.id));
    }
    Ok(catalogue().filter(|check| chosen.contains(check.id)).collect())
}

/// Whether a text has a pattern's form: `*` is any letters, also none.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text
            .strip_prefix(start)
            .is_some_and(|text| (0..=text.len()).any(|at| text.is_char_boundary(at) && matches(rest, &text[at..]))),
    }
}

/// What the processes of one run share.
struct Ground<'a> {
    options: &'a Options,
    bundle: &'a Bundle,
    descriptor: String,
    subject: Option<PathBuf>,
    work: &'a Path,
}

/// Checks a bundle. `progress` hears of each check as it ends, from several threads, in any order.
///
/// # Errors
/// [`Error`], when nothing could be checked at all.
pub fn run(options: &Options, progress: &(dyn Fn(&Line) + Sync)) -> Result<Report, Error> {
    let checks = selected(options)?;
    let work = tempfile::Builder::new()
        .prefix("synapse-check-")
        .tempdir()
        .map_err(io("a temporary folder"))?;
    let bundle = examine(options, work.path())?;
    let subject = subject_of(options, &bundle)?;
    let ground = Ground {
        options,
        bundle: &bundle,
        descriptor: bundle
            .descriptor
            .as_ref()
            .map(|descriptor| descriptor.to_json())
            .unwrap_or_default(),
        subject,
        work: work.path(),
    };
    let lines = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::SeqCst);
                    let Some(check) = checks.get(place) else { break };
                    let line = ground.one(check);
                    progress(&line);
                    lock(&lines).push((place, line));
                }
            });
        }
    });
    let mut lines = std::mem::take(&mut *lock(&lines));
    lines.sort_by_key(|(place, _)| *place);
    Ok(Report {
        bundle: bundle.id.clone(),
        version: bundle.version.as_ref().map(ToString::to_string).unwrap_or_default(),
        digest: bundle.digest.map(|digest| digest.to_string()).unwrap_or_default(),
        level: options.level,
        seed: options.seed,
        lines: lines.into_iter().map(|(_, line)| line).collect(),
    })
}

/// The file that names models and tests: the one that was asked for, or the bundle's own.
pub(crate) fn subject_of(options: &Options, bundle: &Bundle) -> Result<Option<PathBuf>, Error> {
    match &options.subject {
        Some(path) => Ok(Some(std::path::absolute(path).map_err(io(path.display().to_string()))?)),
        // The staged copy is what the models' paths are relative to.
        None => {
            let staged = bundle.staged.clone().unwrap_or_default().join(subject::FILE_NAME);
            Ok(bundle.dir.join(subject::FILE_NAME).is_file().then_some(staged))
        }
    }
}

/// What discovery says about the bundle.
pub(crate) fn examine(options: &Options, work: &Path) -> Result<Bundle, Error> {
    let dir = std::path::absolute(&options.bundle).map_err(io(options.bundle.display().to_string()))?;
    if !dir.is_dir() {
        return Err(Error::NoBundle { path: dir });
    }
    let config = LoaderConfig {
        plugin_dirs: Vec::new(),
        staging_dir: work.join("staging"),
        worker_binary: options.worker.clone().unwrap_or_else(|| options.runner.clone()),
        trust_file: work.join("trust.toml"),
        scan_timeout: LoaderConfig::SCAN_TIMEOUT,
        max_bundle_bytes: LoaderConfig::MAX_BUNDLE_BYTES,
    };
    let loader = Loader::new(config, Arc::new(MemoryOnly::default()))?;
    Ok(loader.examine_one(&dir))
}

impl Ground<'_> {
    /// Runs one check.
    fn one(&self, check: &Check) -> Line {
        let started = Instant::now();
        let verdict = match check.run {
            Run::Package(_) => package::judge(check.id, self.bundle),
            _ => match package::failed(self.bundle) {
                Some((first, ..)) => skip(format!("{first} comes first")),
                None => self.in_a_process(check),
            },
        };
        let (outcome, message) = match verdict {
            Ok(()) => (Outcome::Pass, String::new()),
            Err(stop) => (stop.outcome, stop.message),
        };
        Line {
            id: check.id.to_owned(),
            outcome,
            message: one_line(&message),
            ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        }
    }

    fn in_a_process(&self, check: &Check) -> Verdict {
        let staged = self.bundle.staged.clone().unwrap_or_default();
        let library = self.bundle.library.clone();
        if check.group() == Group::Library && library.is_none() {
            return skip("the bundle is a program: it has no library to call");
        }
        // An executable bundle is served by its own program, a library by the worker that was named.
        let own = self.bundle.program.as_ref().map(|program| staged.join(program));
        let worker = own.or_else(|| self.options.worker.clone());
        if check.group() == Group::Protocol && worker.is_none() {
            return skip("no synapse-worker to serve the bundle was named");
        }
        let work = self.work.join(check.id);
        let job = Job {
            check: check.id.to_owned(),
            id: self.bundle.id.clone(),
            version: self
                .bundle
                .version
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            bundle: staged,
            library,
            worker,
            descriptor: self.descriptor.clone(),
            abort_capable: !self.bundle.promotable,
            settings: self.bundle.config.clone(),
            subject: self.subject.clone(),
            work: work.clone(),
            seed: self.options.seed,
        };
        let path = work.join(JOB);
        let folders = ["home", "tmp", "cwd", "scratch"];
        let made = std::fs::create_dir(&work)
            .and_then(|()| {
                folders
                    .iter()
                    .try_for_each(|folder| std::fs::create_dir(work.join(folder)))
            })
            .and_then(|()| std::fs::write(&path, job.to_json()));
        if let Err(error) = made {
            return fail(format!("the kit's own folder {}: {error}", work.display()));
        }
        let keep = Output::Capture { limit: KEPT };
        let command = Command::new(&self.options.runner)
            .arg(CHECK_ARGUMENT)
            .arg(&path)
            .env("HOME", work.join("home"))
            .env("TMPDIR", work.join("tmp"))
            .inherit_env("LD_LIBRARY_PATH")
            .dir(work.join("cwd"))
            .stdout(keep)
            .stderr(keep);
        let child = match spawner().spawn(command) {
            Ok(child) => child,
            Err(error) => return fail(format!("the kit's own process: {error}")),
        };
        let limit = self.options.time_limit;
        let ended = child.wait_with_output(limit);
        let text = std::fs::read_to_string(work.join(ANSWER)).unwrap_or_default();
        let verdict = json::read_answer(&text);
        let finished = match (ended, &verdict) {
            (Ok(finished), _) => finished,
            (Err(WaitError::Io(error)), _) => return fail(format!("the kit's own process: {error}")),
            (Err(WaitError::Timeout { stderr, .. }), None) => {
                return Err(Stop {
                    outcome: Outcome::Hang,
                    message: format!("no answer within {limit:?}{}", last_words(&stderr)),
                });
            }
            (Err(WaitError::Timeout { .. }), Some(verdict)) if !matches!(check.run, Run::ToTheEnd(_)) => {
                return verdict.clone();
            }
            (Err(WaitError::Timeout { .. }), Some(_)) => {
                return Err(Stop {
                    outcome: Outcome::Hang,
                    message: format!("the process did not end within {limit:?} after its last call"),
                });
            }
        };
        let crashed = |when: &str| {
            let words = last_words(&finished.stderr);
            Err(Stop {
                outcome: Outcome::Crash,
                message: format!("the process ended {when}: {}{words}", finished.status),
            })
        };
        let Some(verdict) = verdict else {
            return crashed("in the middle of the check");
        };
        match check.run {
            Run::ToTheEnd(_) if !finished.status.success() => crashed("badly after its last call"),
            Run::Silent(_) if verdict.is_ok() => silent(&finished.stdout, &finished.stderr),
            _ => verdict,
        }
    }
}

fn silent(stdout: &[u8], stderr: &[u8]) -> Verdict {
    for (name, bytes) in [("output", stdout), ("error", stderr)] {
        if !bytes.is_empty() {
            return fail(format!(
                "{} bytes on standard {name}, expected none{}",
                bytes.len(),
                last_words(bytes)
            ));
        }
    }
    Ok(())
}

/// The last line that a process wrote, as the tail of a message.
fn last_words(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let words = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    words.map_or_else(String::new, |line| format!("; its last words: {line}"))
}

/// A message on one line of bounded length: some of it is a plugin's own.
fn one_line(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = words.char_indices().nth(600) {
        words.truncate(end);
        words.push('…');
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_chosen_by_pattern_and_a_wrong_one_is_named() {
        let mut options = Options::new("x", "y");
        let ids =
            |options: &Options| selected(options).map(|checks| checks.iter().map(|check| check.id).collect::<Vec<_>>());
        options.only = Some("package-magic, package-l*".to_owned());
        let found = ids(&options).expect("known ids");
        assert_eq!(
            found,
            ["package-library", "package-magic", "package-link", "package-layout"]
        );
        options.only = Some("package-magic,no-such-check".to_owned());
        assert!(matches!(ids(&options), Err(Error::NoCheck { pattern }) if pattern == "no-such-check"));
        options.only = None;
        let core = ids(&options).expect("a level").len();
        options.level = Level::Perf;
        let all = ids(&options).expect("a level").len();
        assert!(core < all && all == catalogue().count(), "{core} of {all}");
    }

    #[test]
    fn foreign_words_stay_on_one_line() {
        let line = one_line(&format!("a\n\u{1b}[2J b{}", "x".repeat(2000)));
        assert!(line.starts_with("a [2J bx") && line.chars().count() == 601, "{line}");
    }
}
