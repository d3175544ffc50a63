//! The way back to whoever started this process, out of reach of a library that prints.
//!
//! State: a private copy of standard output. Callers: [`crate::run`], before any foreign code runs.

use std::fs::File;
use std::io::{self, Write};

/// Standard output as it was when the process started.
#[derive(Debug)]
pub(crate) struct Channel {
    out: File,
}

impl Channel {
    /// Moves standard output aside: from now on whatever is printed goes to standard error, so that an engine that
    /// prints cannot spoil the answer. Also turns core files off: a crash here is an answer, and a scan of a bad
    /// bundle must not fill the disk.
    ///
    /// # Errors
    /// The system's reason.
    pub(crate) fn take() -> io::Result<Self> {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let out = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
        rustix::stdio::dup2_stdout(rustix::stdio::stderr())?;
        let none = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        setrlimit(Resource::Core, none)?;
        Ok(Self { out: File::from(out) })
    }

    /// Writes one line.
    ///
    /// # Errors
    /// The system's reason; usually that nobody listens any more.
    pub(crate) fn send(mut self, line: &str) -> io::Result<()> {
        self.out.write_all(format!("{line}\n").as_bytes())?;
        self.out.flush()
    }
}
