//! Inside a check's process: reads what to do, does it, leaves its answer in a file.
//!
//! State: none. Callers: a runner's `main`, before it looks at its own arguments. The answer goes through a file, since a
//! plugin may print whatever it likes.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::bench::Bench;
use crate::catalogue::{Run, Verdict, fail, find, skip};
use crate::json::{self, Job};
use crate::protocol::Desk;
use crate::run::CHECK_ARGUMENT;

/// The file that tells a check's process what to do, in its folder.
pub(crate) const JOB: &str = "job.json";
/// The file that it leaves its answer in.
pub(crate) const ANSWER: &str = "answer.json";

/// Runs one check, or describes one bundle, when the arguments of this process say so; `None` when they are the
/// program's own.
#[must_use]
pub fn hidden() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next()?;
    if first == CHECK_ARGUMENT {
        return Some(check(&PathBuf::from(arguments.next()?)));
    }
    if first == "--describe" || first == "--plugin" {
        return describe(first, arguments);
    }
    None
}

/// Serves the loader as its describing process: `--describe` and `--plugin DIR`, in any order.
fn describe(first: OsString, rest: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let all: Vec<OsString> = std::iter::once(first).chain(rest).collect();
    let at = all.iter().position(|argument| argument == "--plugin")?;
    let dir = PathBuf::from(all.get(at + 1)?);
    if !all.iter().any(|argument| argument == "--describe") {
        return None;
    }
    // What the library prints must not spoil the answer.
    let Ok(out) = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3) else {
        return Some(ExitCode::FAILURE);
    };
    if rustix::stdio::dup2_stdout(rustix::stdio::stderr()).is_err() {
        return Some(ExitCode::FAILURE);
    }
    let answer = synapse_loader::describe(&dir);
    let written = std::fs::File::from(out).write_all(format!("{}\n", answer.json).as_bytes());
    Some(written.map_or(ExitCode::FAILURE, |()| ExitCode::from(answer.exit_code)))
}

fn check(path: &Path) -> ExitCode {
    let Some(job) = std::fs::read_to_string(path).ok().as_deref().and_then(Job::from_json) else {
        return ExitCode::FAILURE;
    };
    let folder = job.work.clone();
    let verdict = judge(job);
    // Whole or not at all: a process that ends while it writes has not answered.
    let (draft, answer) = (folder.join("draft"), folder.join(ANSWER));
    let written = std::fs::write(&draft, json::answer(&verdict)).and_then(|()| std::fs::rename(draft, answer));
    written.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

fn judge(job: Job) -> Verdict {
    let Some(check) = find(&job.check) else {
        return fail(format!("this program knows no check {:?}", job.check));
    };
    match check.run {
        Run::Package(_) => skip("the loader judges it"),
        Run::Library(run) | Run::Silent(run) | Run::ToTheEnd(run) => run(&Bench::new(job)),
        Run::Protocol(run) => run(&Desk::new(job)),
    }
}
