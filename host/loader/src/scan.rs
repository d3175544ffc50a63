//! Describes a staged bundle: in a child process with a bound (the daemon's side), and inside that child.
//!
//! State: none here; outcomes are kept by [`crate::ScanMemory`]. Callers: discovery; `synapse-worker --describe`.
//!
//! The child is `synapse-worker` for a library, and the program itself for an executable. Its answer is one line of
//! JSON on its standard output. It ends with 0 and a descriptor, or with [`EXIT_REFUSED`] and a refusal; every other
//! end is a crash. A child that was ended from outside
//! (SIGKILL, SIGTERM: the kernel short of memory, an operator) says nothing about the library.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use crate::bundle::{Refusal, RefusalReason};
use crate::descriptor::{Descriptor, refusal_from_json, refusal_to_json};
use crate::error::LoaderError;
use crate::manifest::{self, Manifest};
use crate::process::{Output, WaitError, spawner};
use crate::{note, open, start, v1};

/// The exit code of a describe child that refuses the bundle.
pub const EXIT_REFUSED: u8 = 3;
/// The most bytes of an answer.
const MAX_ANSWER: usize = 256 * 1024;
/// The most bytes kept of what the library wrote to standard error.
const MAX_STDERR: usize = 16 * 1024;

/// How a scan ended.
#[derive(Debug)]
pub(crate) enum Scan {
    Described(Descriptor),
    Crashed(String),
    TimedOut,
    Refused(Refusal),
}

/// Who describes a bundle.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Describer<'a> {
    /// This worker program loads its library.
    Worker(&'a Path),
    /// It is an executable, and this is its program.
    Own(&'a Path),
}

impl Describer<'_> {
    /// What is described, in a word.
    pub(crate) const fn what(self) -> &'static str {
        match self {
            Self::Worker(_) => "library",
            Self::Own(_) => "program",
        }
    }
}

/// Lets a child describe the staged bundle in `dir`.
pub(crate) fn scan(describer: Describer<'_>, dir: &Path, bound: Duration) -> Scan {
    let (Describer::Worker(program) | Describer::Own(program)) = describer;
    let what = describer.what();
    let command = start::describe(program, dir)
        .stdout(Output::Capture { limit: MAX_ANSWER })
        .stderr(Output::Capture { limit: MAX_STDERR });
    let failed = |message: String| Scan::Refused(Refusal::new(RefusalReason::ScanFailed, message));
    let child = match spawner().spawn(command) {
        Ok(child) => child,
        Err(error) => {
            return failed(match describer {
                Describer::Worker(_) => format!("{error}; is synapse-worker installed beside synapse?"),
                Describer::Own(_) => error.to_string(),
            });
        }
    };
    let finished = match child.wait_with_output(bound) {
        Ok(finished) => finished,
        Err(WaitError::Timeout { .. }) => return Scan::TimedOut,
        Err(WaitError::Io(error)) => return failed(format!("the describing process is lost: {error}")),
    };
    let answer = String::from_utf8_lossy(&finished.stdout);
    let stderr = last_line(&finished.stderr);
    match finished.status.code() {
        Some(0) => match Descriptor::from_json(answer.trim_end()) {
            Ok(descriptor) => Scan::Described(descriptor),
            Err(_) if answer.is_empty() => Scan::Crashed(format!(
                "the {what} ended the process before it described itself{stderr}"
            )),
            Err(error) => Scan::Refused(Refusal::new(RefusalReason::DescriptorInvalid, error.to_string())),
        },
        Some(code) if code == i32::from(EXIT_REFUSED) => match refusal_from_json(answer.trim_end()) {
            Some(refusal) => Scan::Refused(refusal),
            None => Scan::Crashed(format!("the {what} ended the process with code {code}{stderr}")),
        },
        _ => match ended_from_outside(finished.status) {
            Some(signal) => failed(format!(
                "the describing process was ended from outside by signal {signal}"
            )),
            None => Scan::Crashed(format!(
                "the {what} crashed while it was described: {}{stderr}",
                finished.status
            )),
        },
    }
}

fn ended_from_outside(status: ExitStatus) -> Option<i32> {
    status
        .signal()
        .filter(|signal| matches!(*signal, libc::SIGKILL | libc::SIGTERM))
}

/// What the library wrote last, as a tail for a message: a panic's place and words, else the last line.
fn last_line(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let words = match lines.clone().position(|line| line.contains(" panicked at ")) {
        Some(place) => lines.skip(place).take(2).collect::<Vec<_>>().join(" "),
        None => lines.next_back().unwrap_or_default().to_owned(),
    };
    if words.is_empty() {
        return String::new();
    }
    let words: String = words.chars().filter(|c| !c.is_control()).take(300).collect();
    format!("; its last words: {words}")
}

/// What a describe child says, and how it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// One line of JSON, without its end of line.
    pub json: String,
    /// The exit code: 0, or [`EXIT_REFUSED`].
    pub exit_code: u8,
}

/// Loads the bundle in `dir` into this process and describes it. For the describe child only: nothing is checked
/// here that staging checked, and the library's code runs.
#[must_use]
pub fn describe(dir: &Path) -> Answer {
    match describe_here(dir) {
        Ok(descriptor) => Answer {
            json: descriptor.to_json(),
            exit_code: 0,
        },
        Err(refusal) => Answer {
            json: refusal_to_json(&refusal),
            exit_code: EXIT_REFUSED,
        },
    }
}

fn describe_here(dir: &Path) -> Result<Descriptor, Refusal> {
    let manifest = read_manifest(dir)?;
    let library = dir.join(&manifest.library()?.path);
    let magic = note::read(&library)?;
    let module = open::open(&library, &magic)?;
    v1::descriptor(&module.describe()())
        .map_err(|error| Refusal::new(RefusalReason::DescriptorInvalid, error.to_string()))
}

/// The manifest of a bundle, from a file of bounded size.
pub(crate) fn read_manifest(dir: &Path) -> Result<Manifest, Refusal> {
    use std::io::Read as _;
    let missing = |error: std::io::Error| {
        let reason = if error.kind() == std::io::ErrorKind::NotFound {
            RefusalReason::ManifestMissing
        } else {
            RefusalReason::Unreadable
        };
        Refusal::new(reason, format!("{}: {error}", manifest::FILE_NAME))
    };
    let file = std::fs::File::open(dir.join(manifest::FILE_NAME)).map_err(missing)?;
    let mut bytes = Vec::new();
    file.take(manifest::MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(missing)?;
    let invalid = |what: String| {
        Refusal::new(
            RefusalReason::ManifestInvalid,
            format!("{}: {what}", manifest::FILE_NAME),
        )
    };
    if bytes.len() as u64 > manifest::MAX_BYTES {
        return Err(invalid(format!("expected at most {} bytes", manifest::MAX_BYTES)));
    }
    let text = String::from_utf8(bytes).map_err(|_| invalid("expected UTF-8".to_owned()))?;
    Manifest::parse(&text)
}

/// A refusal as an error of opening.
pub(crate) fn load_error(id: &str, refusal: Refusal) -> LoaderError {
    LoaderError::Load {
        id: id.to_owned(),
        reason: refusal.reason,
        message: refusal.message,
    }
}
