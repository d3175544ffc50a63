//! One running child: waiting with a bound, capturing its output, and ending its whole process group.
//!
//! State: the process and its pipes; a child that is dropped is killed and reaped. Callers: whoever spawned it.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::command::Output;
use super::spawner::exit_descriptor;

/// How often a system without exit descriptors is asked whether the child ended.
const EXIT_POLL: Duration = Duration::from_millis(10);

/// What [`Child::wait_with_output`] does with the streams.
pub(super) struct Streams {
    pub(super) input: Option<Vec<u8>>,
    pub(super) limits: (Output, Output),
}

/// A running process, the leader of its own process group.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    exit: Option<OwnedFd>,
    stdin: Option<Feed>,
    stdout: Option<Drain>,
    stderr: Option<Drain>,
    reaped: Option<ExitStatus>,
}

/// A process that ended, with what it wrote.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The exit code or signal.
    pub status: ExitStatus,
    /// What was captured of standard output.
    pub stdout: Vec<u8>,
    /// What was captured of standard error.
    pub stderr: Vec<u8>,
    /// Whether either stream was longer than its limit.
    pub truncated: bool,
}

/// Why a wait ended without an exit.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    /// The bound passed; the process group was killed. Holds what was captured until then.
    #[error("the process did not end within {bound:?} and was killed")]
    Timeout {
        /// The bound.
        bound: Duration,
        /// What was captured of standard output.
        stdout: Vec<u8>,
        /// What was captured of standard error.
        stderr: Vec<u8>,
    },
    /// The system refused to wait.
    #[error("cannot wait for the process: {0}")]
    Io(#[from] io::Error),
}

#[derive(Debug)]
struct Feed {
    pipe: std::process::ChildStdin,
    bytes: Vec<u8>,
    written: usize,
}

#[derive(Debug)]
struct Drain {
    pipe: Pipe,
    limit: usize,
    kept: Vec<u8>,
    truncated: bool,
    open: bool,
}

#[derive(Debug)]
enum Pipe {
    Out(std::process::ChildStdout),
    Err(std::process::ChildStderr),
}

impl Pipe {
    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Out(pipe) => pipe.as_fd(),
            Self::Err(pipe) => pipe.as_fd(),
        }
    }
}

impl Drain {
    fn new(pipe: Pipe, output: Output) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(pipe.descriptor(), true)?;
        let limit = match output {
            Output::Null | Output::Stream => 0,
            Output::Capture { limit } => limit,
        };
        Ok(Self {
            pipe,
            limit,
            kept: Vec::new(),
            truncated: false,
            open: true,
        })
    }

    /// Reads what is there now.
    fn pump(&mut self) -> io::Result<()> {
        let mut chunk = [0u8; 16 * 1024];
        while self.open {
            let read = match &mut self.pipe {
                Pipe::Out(pipe) => pipe.read(&mut chunk),
                Pipe::Err(pipe) => pipe.read(&mut chunk),
            };
            match read {
                Ok(0) => self.open = false,
                Ok(count) => {
                    let room = self.limit.saturating_sub(self.kept.len()).min(count);
                    self.kept.extend_from_slice(&chunk[..room]);
                    self.truncated |= room < count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Child {
    pub(super) fn new(mut process: std::process::Child, streams: Streams) -> io::Result<Self> {
        let exit = exit_descriptor(process.id());
        let stdin = process.stdin.take().zip(streams.input).map(|(pipe, bytes)| Feed {
            pipe,
            bytes,
            written: 0,
        });
        // A stream stays with the process until its caller takes it.
        let drained = |output| output != Output::Stream;
        let stdout = process.stdout.take_if(|_| drained(streams.limits.0)).map(Pipe::Out);
        let stderr = process.stderr.take_if(|_| drained(streams.limits.1)).map(Pipe::Err);
        // From here on a failure must not leave the process behind: dropping `child` ends it.
        let mut child = Self {
            process,
            exit,
            stdin,
            stdout: None,
            stderr: None,
            reaped: None,
        };
        if let Some(feed) = &child.stdin {
            rustix::io::ioctl_fionbio(feed.pipe.as_fd(), true)?;
        }
        child.stdout = stdout.map(|pipe| Drain::new(pipe, streams.limits.0)).transpose()?;
        child.stderr = stderr.map(|pipe| Drain::new(pipe, streams.limits.1)).transpose()?;
        Ok(child)
    }

    /// The process's id, which is also its group's.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The child's standard output, once, where it was started with [`Output::Stream`].
    pub const fn take_stdout(&mut self) -> Option<std::process::ChildStdout> {
        self.process.stdout.take()
    }

    /// The child's standard error, once, where it was started with [`Output::Stream`].
    pub const fn take_stderr(&mut self) -> Option<std::process::ChildStderr> {
        self.process.stderr.take()
    }

    /// Waits for the exit, `bound` at most, and kills nothing but what is left of the group after it. `None` when the
    /// process still runs.
    ///
    /// # Errors
    /// The system's reason.
    pub fn wait_for_exit(&mut self, bound: Duration) -> io::Result<Option<ExitStatus>> {
        let started = Instant::now();
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(Some(status));
            }
            let left = bound.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            self.sleep(left.min(Duration::from_millis(100)))?;
        }
    }

    /// Whether the process ended, without waiting. When it did, what is left of its group is killed.
    ///
    /// # Errors
    /// The system's reason.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.reaped.is_none() && self.has_ended()? {
            self.reap()?;
        }
        Ok(self.reaped)
    }

    /// Kills the process and its whole group. Does not wait.
    pub fn kill(&mut self) {
        if self.reaped.is_none() {
            self.kill_group();
        }
    }

    /// Waits for the exit while feeding the input and capturing the output, `bound` at most; then the whole group is
    /// killed. When the process ends, what is left of its group is killed too, so that nothing outlives it.
    ///
    /// # Errors
    /// [`WaitError::Timeout`] after the bound, [`WaitError::Io`] when the system refuses.
    pub fn wait_with_output(mut self, bound: Duration) -> Result<Finished, WaitError> {
        self.wait_until(bound, || false)
    }

    /// As [`Self::wait_with_output`], and ends the group early (with [`WaitError::Timeout`]) once `stop` says so; it
    /// is asked at least ten times a second.
    ///
    /// # Errors
    /// As [`Self::wait_with_output`].
    pub fn wait_unless(mut self, bound: Duration, stop: impl Fn() -> bool) -> Result<Finished, WaitError> {
        self.wait_until(bound, stop)
    }

    fn wait_until(&mut self, bound: Duration, stop: impl Fn() -> bool) -> Result<Finished, WaitError> {
        let started = Instant::now();
        loop {
            self.feed();
            self.pump()?;
            if self.reaped.is_some() || self.has_ended()? {
                break;
            }
            let left = bound.saturating_sub(started.elapsed());
            if left.is_zero() || stop() {
                self.reap()?;
                self.pump()?;
                return Err(WaitError::Timeout {
                    bound,
                    stdout: self.taken(true).0,
                    stderr: self.taken(false).0,
                });
            }
            self.sleep(left.min(Duration::from_millis(100)))?;
        }
        let status = self.reap()?;
        self.pump()?;
        let (stdout, cut_out) = self.taken(true);
        let (stderr, cut_err) = self.taken(false);
        Ok(Finished {
            status,
            stdout,
            stderr,
            truncated: cut_out || cut_err,
        })
    }

    fn taken(&mut self, out: bool) -> (Vec<u8>, bool) {
        let drain = if out { &mut self.stdout } else { &mut self.stderr };
        drain.as_mut().map_or_else(Default::default, |drain| {
            (std::mem::take(&mut drain.kept), drain.truncated)
        })
    }

    fn pump(&mut self) -> io::Result<()> {
        for drain in [&mut self.stdout, &mut self.stderr].into_iter().flatten() {
            drain.pump()?;
        }
        Ok(())
    }

    /// Writes what the pipe takes now; closes it at the end, or when the child closed its side.
    fn feed(&mut self) {
        let Some(feed) = &mut self.stdin else { return };
        while feed.written < feed.bytes.len() {
            match feed.pipe.write(&feed.bytes[feed.written..]) {
                Ok(count) if count > 0 => feed.written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                _ => break,
            }
        }
        self.stdin = None;
    }

    /// Ends the whole group and takes the leader's exit. The leader is unreaped until then, so its number cannot
    /// belong to another process or group.
    fn reap(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.reaped {
            return Ok(status);
        }
        self.kill_group();
        let status = self.process.wait()?;
        self.reaped = Some(status);
        Ok(status)
    }

    /// Whether the leader ended; it stays unreaped.
    fn has_ended(&self) -> io::Result<bool> {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the child's number is out of range"))?;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(pid), options)?.is_some())
    }

    /// Sleeps until a stream or the exit wants attention, `most` at most.
    fn sleep(&self, most: Duration) -> io::Result<()> {
        let mut watched: Vec<PollFd<'_>> = Vec::with_capacity(4);
        for drain in [&self.stdout, &self.stderr]
            .into_iter()
            .flatten()
            .filter(|drain| drain.open)
        {
            watched.push(PollFd::from_borrowed_fd(drain.pipe.descriptor(), PollFlags::IN));
        }
        if let Some(feed) = &self.stdin {
            watched.push(PollFd::from_borrowed_fd(feed.pipe.as_fd(), PollFlags::OUT));
        }
        let most = match &self.exit {
            Some(exit) => {
                watched.push(PollFd::new(exit, PollFlags::IN));
                most
            }
            None => most.min(EXIT_POLL),
        };
        let wait = Timespec::try_from(most).map_err(io::Error::other)?;
        match poll(&mut watched, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn kill_group(&self) {
        let pid = i32::try_from(self.process.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            // An empty group is the aim; that it is already gone is no failure.
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Nothing can be done about a refusal here, and a killed child ends at once.
        let _ = self.reap();
    }
}
