//! The process spawner against real processes: environment, descriptors, bounds, groups, and death with the parent.

#![cfg(target_os = "linux")]

use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::time::Duration;

use synapse_loader::process::{Child, Command, Finished, Input, Output, WaitError, spawner};

/// Ten times what the slowest of these takes on a busy machine.
const BOUND: Duration = Duration::from_secs(60);
const KEEP: Output = Output::Capture { limit: 64 * 1024 };

fn shell(script: &str) -> Command {
    Command::new("/bin/sh").arg("-c").arg(script).stdout(KEEP).stderr(KEEP)
}

fn run(command: Command) -> Finished {
    spawner().spawn(command).unwrap().wait_with_output(BOUND).unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Whether a process number is in use by a process that still runs.
fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// Waits for a process of anyone to end.
fn wait_until_gone(pid: &str) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };
    let bound = Timespec::try_from(BOUND).unwrap();
    let count = poll(
        &mut [PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN)],
        Some(&bound),
    )
    .unwrap();
    assert_eq!(count, 1, "the process {pid:?} still runs");
}

/// Proves WSUP-02, TEST-03: a child gets what is on the list and never the launch nonces, not even when told to.
#[test]
fn stripped_child_environment_contains_neither_launch_nonce_variable() {
    let command = Command::new("/usr/bin/env")
        .env("ONE", "1")
        .env("SYNAPSE_LAUNCH_NONCE", "secret")
        .env("SYNAPSE_LAUNCH_NONCE_FILE", "/secret")
        .inherit_env("CARGO_PKG_NAME")
        .inherit_env("NOT_SET_ANYWHERE")
        .stdout(KEEP);
    let finished = run(command);
    let names: Vec<&str> = text(&finished.stdout)
        .lines()
        .filter_map(|line| Some(line.split_once('=')?.0))
        .collect();
    assert!(
        names.contains(&"ONE") && names.contains(&"CARGO_PKG_NAME") && names.contains(&"PATH"),
        "{names:?}"
    );
    let allowed = [
        "ONE",
        "CARGO_PKG_NAME",
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "LANG",
        "LC_ALL",
        "TMPDIR",
        "TZ",
        "ORT_DISABLE_TELEMETRY",
    ];
    assert!(names.iter().all(|name| allowed.contains(name)), "{names:?}");
    // Local is local: every child is told, whatever this process has.
    assert!(
        text(&finished.stdout)
            .lines()
            .any(|line| line == "ORT_DISABLE_TELEMETRY=1")
    );
}

/// A descriptor that this process holds, also one that foreign code opened to be inherited, is closed in a child.
#[test]
fn descriptors_are_closed() {
    let held = std::fs::File::open("/proc/self/exe").unwrap();
    rustix::io::fcntl_setfd(&held, rustix::io::FdFlags::empty()).unwrap();
    let finished = run(shell("ls -l /proc/self/fd"));
    let listing = text(&finished.stdout);
    assert!(listing.contains("0 -> /dev/null"), "{listing}");
    let test = std::env::current_exe().unwrap();
    assert!(!listing.contains(test.to_str().unwrap()), "{listing}");
    drop(held);
}

#[test]
fn streams_are_fed_and_captured_up_to_their_limits() {
    let long = vec![b'x'; 300_000];
    let command = shell("wc -c; echo err >&2").stdin(Input::Bytes(long));
    let finished = run(command);
    assert_eq!(text(&finished.stdout).trim(), "300000");
    assert_eq!((text(&finished.stderr), finished.truncated), ("err\n", false));
    let finished = run(shell("head -c 1000000 /dev/zero").stdout(Output::Capture { limit: 10 }));
    assert_eq!((finished.stdout.len(), finished.truncated), (10, true));
    // A child that does not read its input is no failure.
    let finished = run(shell("exit 7").stdin(Input::Bytes(vec![0; 300_000])));
    assert_eq!(finished.status.code(), Some(7));
    assert_eq!(text(&run(shell("pwd").dir("/")).stdout), "/\n");
}

/// After the bound the whole group is dead, grandchildren included, and what was said until then is kept.
#[test]
fn a_late_process_is_killed_with_its_group() {
    let child = spawner().spawn(shell("sleep 1000 & echo $!; wait")).unwrap();
    match child.wait_with_output(Duration::from_millis(500)) {
        Err(WaitError::Timeout { stdout, .. }) => {
            // On a machine so busy that the shell said nothing yet there is nothing more to check.
            if !stdout.is_empty() {
                wait_until_gone(text(&stdout));
            }
        }
        other => panic!("{other:?}"),
    }
    let stopped = spawner()
        .spawn(shell("sleep 1000"))
        .unwrap()
        .wait_unless(BOUND, || true);
    assert!(matches!(stopped, Err(WaitError::Timeout { .. })), "{stopped:?}");
}

/// A process that leaves others behind, holding its streams, is over when it ends.
#[test]
fn what_a_process_leaves_behind_is_killed() {
    let finished = run(shell("sleep 1000 & echo $!"));
    assert!(finished.status.success());
    wait_until_gone(text(&finished.stdout));
}

#[test]
fn a_dropped_child_is_killed_and_reaped() {
    let child = spawner().spawn(shell("sleep 1000")).unwrap();
    let pid = child.pid().to_string();
    assert!(runs(&pid));
    drop(child);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists() || !runs(&pid));
}

#[test]
fn the_exit_is_seen_without_waiting() {
    let mut child = spawner().spawn(shell("read x; exit 3").stdout(Output::Null)).unwrap();
    let status = loop {
        if let Some(status) = child.wait_for_exit(BOUND).unwrap() {
            break status;
        }
    };
    assert_eq!(status.code(), Some(3), "end of input ends the read");
    assert_eq!(child.try_wait().unwrap(), Some(status));
    child.kill();
}

#[test]
fn what_cannot_be_started_is_said() {
    let error = spawner().spawn(Command::new("/nonexistent/program")).unwrap_err();
    assert!(
        error.to_string().starts_with("cannot start /nonexistent/program: "),
        "{error}"
    );
}

/// The parent-death signal belongs to the thread that forked: a child must outlive the thread that asked for it.
#[test]
fn a_child_outlives_the_thread_that_asked_for_it() {
    let asked = std::thread::spawn(|| spawner().spawn(shell("sleep 0.3; echo alive")).unwrap());
    let finished = asked.join().unwrap().wait_with_output(BOUND).unwrap();
    assert_eq!(text(&finished.stdout), "alive\n");
}

const VICTIM: &str = "SYNAPSE_TEST_VICTIM";

/// The part of [`children_die_with_their_parent`] that is killed. Does nothing when it is run by itself.
#[test]
fn victim() {
    if std::env::var_os(VICTIM).is_none() {
        return;
    }
    let child: Child = spawner().spawn(shell("sleep 1000")).unwrap();
    let mut out = std::io::stderr();
    std::io::Write::write_all(&mut out, format!("child {}\n", child.pid()).as_bytes()).unwrap();
    let _ = child.wait_with_output(BOUND * 10);
}

/// When this process is killed, nothing that it started goes on.
#[test]
fn children_die_with_their_parent() {
    let command = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--nocapture"])
        .env(VICTIM, "1")
        .stderr(Output::Stream);
    let mut parent = spawner().spawn(command).unwrap();
    let lines = BufReader::new(parent.take_stderr().unwrap()).lines();
    let pid = lines
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("child ").map(str::to_owned));
    let pid = pid.expect("the parent says whom it started");
    assert!(runs(&pid));
    // SIGKILL to the parent alone: its child is in a group of its own.
    parent.kill();
    wait_until_gone(&pid);
}
