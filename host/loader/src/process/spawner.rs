//! The permanent thread that forks, and what happens between fork and exec.
//!
//! State: one thread and its queue, made at first use. Callers: everyone who starts a process.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use super::child::{Child, Streams};
use super::command::{Command, Input, Output};

/// A process could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {}: {source}", program.display())]
pub struct SpawnError {
    /// The program.
    pub program: PathBuf,
    /// The system's reason.
    pub source: io::Error,
}

type Answer = Sender<Result<std::process::Child, io::Error>>;

/// Starts processes. One per process: [`spawner`].
pub struct Spawner {
    queue: Sender<(Command, Answer)>,
}

/// The process's spawner; its thread is made at the first call and never ends.
///
/// # Panics
/// When the system refuses a thread at the first call.
pub fn spawner() -> &'static Spawner {
    static SPAWNER: OnceLock<Spawner> = OnceLock::new();
    SPAWNER.get_or_init(|| {
        let (queue, requests) = channel::<(Command, Answer)>();
        std::thread::Builder::new()
            .name("synapse-spawner".to_owned())
            .spawn(move || {
                for (command, answer) in requests {
                    // The asker may have gone; then the child is dropped here, which `std` leaves running: end it.
                    if let Err(unsent) = answer.send(start(&command))
                        && let Ok(mut child) = unsent.0
                    {
                        let _ = child.kill();
                        let _ = child.wait();
                    }
                }
            })
            .expect("the system gave no thread for starting processes");
        Spawner { queue }
    })
}

impl Spawner {
    /// Starts `command`. Blocks until the child runs its program or failed to.
    ///
    /// # Errors
    /// [`SpawnError`]: the program is missing or may not run, or the system is out of processes.
    pub fn spawn(&self, command: Command) -> Result<Child, SpawnError> {
        let program = command.program.clone();
        let fail = |source| SpawnError {
            program: program.clone(),
            source,
        };
        let input = match &command.stdin {
            Input::Null => None,
            Input::Bytes(bytes) => Some(bytes.clone()),
        };
        let limits = (command.stdout, command.stderr);
        let (answer, reply) = channel();
        let gone = || io::Error::other("the spawner thread ended");
        self.queue.send((command, answer)).map_err(|_| fail(gone()))?;
        let child = reply.recv().map_err(|_| fail(gone()))?.map_err(fail)?;
        Child::new(child, Streams { input, limits }).map_err(fail)
    }
}

fn stdio(output: Output) -> Stdio {
    match output {
        Output::Null => Stdio::null(),
        Output::Capture { .. } | Output::Stream => Stdio::piped(),
    }
}

/// Runs on the spawner thread only.
fn start(command: &Command) -> io::Result<std::process::Child> {
    let mut os = std::process::Command::new(&command.program);
    os.args(&command.args);
    os.env_clear();
    os.envs(command.environment(|key| std::env::var_os(key)));
    if let Some(dir) = &command.dir {
        os.current_dir(dir);
    }
    os.stdin(match command.stdin {
        Input::Null => Stdio::null(),
        Input::Bytes(_) => Stdio::piped(),
    });
    os.stdout(stdio(command.stdout)).stderr(stdio(command.stderr));
    os.process_group(0);
    seal(&mut os);
    os.spawn()
}

/// Adds the steps between fork and exec: death with the parent, and no inherited descriptors.
#[cfg(target_os = "linux")]
fn seal(os: &mut std::process::Command) {
    let parent = rustix::process::getpid();
    let step = move || {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // The parent may have died before the signal was set; then nobody would ever send it.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::Error::from(rustix::io::Errno::SRCH));
        }
        close_descriptors()
    };
    // SAFETY: the closure runs in the forked child and only makes system calls that are async-signal-safe: it takes
    // no lock and allocates nothing.
    unsafe {
        os.pre_exec(step);
    }
}

/// Marks every descriptor above the standard streams close-on-exec, also those that foreign code opened without it.
#[cfg(target_os = "linux")]
fn close_descriptors() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: the call changes descriptor flags only; it reads no memory of ours.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if done == 0 {
        return Ok(());
    }
    // Kernels before 5.11 lack the call or its flag: walk the table, which has a known bound.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .unwrap_or(65_536)
        .min(1 << 20);
    for fd in 3..i32::try_from(limit).unwrap_or(i32::MAX) {
        // SAFETY: setting a flag on a number that may or may not be a descriptor; EBADF is the answer for the latter.
        unsafe {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
    }
    Ok(())
}

/// Other systems have no parent-death signal: there a child sees the end of its socket or input instead.
#[cfg(not(target_os = "linux"))]
fn seal(_os: &mut std::process::Command) {}

/// A descriptor that becomes readable when the process ends, where the system has one.
#[cfg(target_os = "linux")]
pub(super) fn exit_descriptor(pid: u32) -> Option<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).ok()?)?;
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

/// A descriptor that becomes readable when the process ends, where the system has one.
#[cfg(not(target_os = "linux"))]
pub(super) fn exit_descriptor(_pid: u32) -> Option<OwnedFd> {
    None
}
