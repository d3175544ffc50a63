//! What to start: program, arguments, environment, streams. A value; nothing runs until it is spawned.
//!
//! State: none. Callers: everyone who starts a process. Not known here: how it is started.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Where a child's standard input comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Input {
    /// Nothing: reads give end of file.
    #[default]
    Null,
    /// These bytes, then end of file; written by [`super::Child::wait_with_output`].
    Bytes(Vec<u8>),
}

/// Where a child's standard output or error goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// Nowhere.
    #[default]
    Null,
    /// Kept by [`super::Child::wait_with_output`], the first `limit` bytes; the rest is read and dropped.
    Capture {
        /// The most bytes kept.
        limit: usize,
    },
    /// A pipe that the caller reads itself: [`super::Child::take_stdout`], [`super::Child::take_stderr`].
    Stream,
}

/// A process to start.
#[derive(Clone, Debug)]
pub struct Command {
    pub(super) program: PathBuf,
    pub(super) args: Vec<OsString>,
    pub(super) env: Vec<(OsString, OsString)>,
    pub(super) inherit: Vec<OsString>,
    pub(super) dir: Option<PathBuf>,
    pub(super) stdin: Input,
    pub(super) stdout: Output,
    pub(super) stderr: Output,
}

/// Variables that every child inherits when they are set: enough to find programs, a home and temporary space.
pub(super) const BASE_ENVIRONMENT: &[&str] = &["PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "TZ"];

/// Variables that no child ever gets (WSUP-02): they are this process's own launch authority.
pub(super) const NEVER: &[&str] = &["SYNAPSE_LAUNCH_NONCE", "SYNAPSE_LAUNCH_NONCE_FILE"];

/// Variables that every child has, unless it is started with others: a local daemon is local. onnxruntime 1.32 writes an
/// id of the device below HOME and keeps a thread for its telemetry, whatever its API was told, until this one is set. No
/// other engine here reads a variable of that kind, `DO_NOT_TRACK` included, so none is set: it would promise what nobody
/// keeps.
pub(super) const QUIET: &[(&str, &str)] = &[("ORT_DISABLE_TELEMETRY", "1")];

/// Makes this process as quiet as its children: an engine may run inside it. To be called at the start of `main`; where
/// another thread runs already, or cannot be ruled out, nothing is set.
pub fn quiet_environment() {
    let alone = std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1);
    for (key, value) in QUIET.iter().filter(|(key, _)| alone && std::env::var_os(key).is_none()) {
        // SAFETY: this is the process's only thread, so nobody reads the environment meanwhile.
        unsafe { std::env::set_var(key, value) };
    }
}

impl Command {
    /// A process of `program` without arguments, with closed input, and with its output dropped. A `program` without
    /// a slash is looked up in `PATH`.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
            inherit: Vec::new(),
            dir: None,
            stdin: Input::Null,
            stdout: Output::Null,
            stderr: Output::Null,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets a variable of the child. The launch nonces are dropped even when set here.
    #[must_use]
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((key.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Lets the child inherit `key` from this process when it is set here.
    #[must_use]
    pub fn inherit_env(mut self, key: impl AsRef<OsStr>) -> Self {
        self.inherit.push(key.as_ref().to_owned());
        self
    }

    /// Starts the child in `dir`.
    #[must_use]
    pub fn dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.dir = Some(dir.as_ref().to_owned());
        self
    }

    /// Says where standard input comes from.
    #[must_use]
    pub fn stdin(mut self, input: Input) -> Self {
        self.stdin = input;
        self
    }

    /// Says where standard output goes.
    #[must_use]
    pub const fn stdout(mut self, output: Output) -> Self {
        self.stdout = output;
        self
    }

    /// Says where standard error goes.
    #[must_use]
    pub const fn stderr(mut self, output: Output) -> Self {
        self.stderr = output;
        self
    }

    /// The child's whole environment, given this process's.
    pub(super) fn environment(
        &self,
        lookup: impl Fn(&OsStr) -> Option<OsString>,
    ) -> std::collections::BTreeMap<OsString, OsString> {
        let base = BASE_ENVIRONMENT.iter().map(OsStr::new);
        let inherited = base
            .chain(self.inherit.iter().map(OsString::as_os_str))
            .filter_map(|key| Some((key.to_owned(), lookup(key)?)));
        let quiet = QUIET.iter().map(|(key, value)| (key.into(), value.into()));
        let mut out: std::collections::BTreeMap<_, _> = quiet.chain(inherited).collect();
        out.extend(self.env.iter().cloned());
        out.retain(|key, _| !NEVER.iter().any(|never| key == OsStr::new(never)));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves WSUP-02: the nonces stay here also when this process has them and a caller asks for them by mistake.
    #[test]
    fn nonces_are_never_inherited() {
        let command = Command::new("x")
            .inherit_env(NEVER[0])
            .inherit_env("MINE")
            .env(NEVER[1], "secret");
        let environment = command.environment(|key| Some(key.to_owned()));
        let names: Vec<_> = environment.keys().filter_map(|key| key.to_str()).collect();
        assert!(names.contains(&"MINE") && names.contains(&"PATH"), "{names:?}");
        assert!(!names.iter().any(|name| name.contains("NONCE")), "{names:?}");
    }

    #[test]
    fn every_child_is_told_not_to_report() {
        let told = |command: Command| command.environment(|_| None).remove(OsStr::new(QUIET[0].0));
        assert_eq!(told(Command::new("x")), Some("1".into()));
        assert_eq!(told(Command::new("x").env(QUIET[0].0, "0")), Some("0".into()));
    }
}
