//! A daemon of its own for a test: `synapse serve` in a temporary folder, with the bundles of this build.
//!
//! State: the folder (kept over restarts), the process, and its log lines. The process dies with the test, however
//! the test ends. It is ready when it says so in its log, which is read, not slept for.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use synapse_loader::process::{Child, Command, Output, spawner};

use super::client::Client;
use super::{HANG, models};

/// Where `make plugins` put this build: the folder above the one of the test binary.
pub fn build() -> PathBuf {
    let test = std::env::current_exe().expect("the test binary has a path");
    let folder = test.ancestors().nth(2).expect("target/PROFILE/deps/it").to_owned();
    for part in [
        "synapse",
        "synapse-worker",
        "bundles/owned/plugin.toml",
        "bundles/trust.toml",
    ] {
        assert!(
            folder.join(part).exists(),
            "{} is missing; run `make plugins PROFILE={}` first, as `make test` does",
            folder.join(part).display(),
            folder.file_name().unwrap_or_default().display()
        );
    }
    folder
}

/// A place for a daemon: data, socket and configuration. Outlives the daemon's process.
pub struct Place {
    folder: tempfile::TempDir,
    environment: Vec<(String, String)>,
    plugin_dirs: Vec<PathBuf>,
    trust_file: PathBuf,
    worker: Option<PathBuf>,
    /// A script of `/bin/sh` that ends as the program and its arguments, `"$0" "$@"`.
    through: Option<String>,
}

impl Place {
    /// A fresh place with the catalog of the test models.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("synapse-it-")
            .tempdir()
            .expect("a temporary folder");
        let place = Self {
            folder,
            environment: Vec::new(),
            plugin_dirs: vec![build().join("bundles")],
            trust_file: build().join("bundles/trust.toml"),
            worker: None,
            through: None,
        };
        models::write_catalog(&place.data().join("catalog"));
        // Certificates are not the subject of most tests. Those whose subject they are close the gate again, in the file
        // that goes before this one.
        let user = place.folder.path().join("xdg/cortexkit");
        fs::create_dir_all(&user).expect("a folder");
        fs::write(user.join("synapse.jsonc"), r#"{"probe": {"allow_uncertified": true}}"#).expect("writes");
        place
    }

    /// Sets a variable of the daemon's environment.
    pub fn env(mut self, key: &str, value: impl Into<String>) -> Self {
        self.environment.push((key.to_owned(), value.into()));
        self
    }

    /// Writes the user's configuration file.
    pub fn config(self, jsonc: &str) -> Self {
        let file = self.folder.path().join("config.jsonc");
        fs::write(&file, jsonc).expect("writes");
        let file = file.to_str().expect("UTF-8").to_owned();
        self.env(synapse_daemon::config::CONFIG_PATH_VARIABLE, file)
    }

    /// Writes the configuration file anew: what counts from the next start on.
    pub fn rewrite_config(self, jsonc: &str) -> Self {
        fs::write(self.folder.path().join("config.jsonc"), jsonc).expect("writes");
        self
    }

    /// Searches another folder for bundles, before those of this build.
    pub fn plugin_dir(mut self, folder: PathBuf) -> Self {
        self.plugin_dirs.insert(0, folder);
        self
    }

    /// Searches a copy of the reference bundle first, whose engines have these settings.
    pub fn reference(self, settings: &[(&str, &str)]) -> Self {
        let folder = self.folder.path().join("plugins");
        let bundle = folder.join("reference");
        copy(&build().join("bundles/reference"), &bundle);
        let manifest = bundle.join("plugin.toml");
        let mut text = fs::read_to_string(&manifest).expect("a manifest");
        text.push_str("\n[engine.config]\n");
        for (key, value) in settings {
            text.push_str(&format!("{key} = \"{value}\"\n"));
        }
        fs::write(&manifest, text).expect("writes");
        self.plugin_dir(folder)
    }

    /// Believes another trust file than the one of this build.
    pub fn trust_file(mut self, file: PathBuf) -> Self {
        self.trust_file = file;
        self
    }

    /// Uses another worker program than the one of this build.
    pub fn worker(mut self, program: PathBuf) -> Self {
        self.worker = Some(program);
        self
    }

    /// A write beyond a file-size limit fails like one to a full disk, instead of ending the daemon by a signal.
    pub fn outlives_file_limits(self) -> Self {
        // What a process ignores, the program that takes its place ignores too.
        self.through("trap '' XFSZ; exec \"$0\" \"$@\"")
    }

    /// Starts daemons through a script of `/bin/sh`, whose last word is `exec … "$0" "$@"`.
    pub fn through(mut self, script: &str) -> Self {
        self.through = Some(script.to_owned());
        self
    }

    /// The data directory.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    /// A folder for whatever else the test needs.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The command line of a daemon here.
    pub fn command(&self) -> Command {
        let program = build().join("synapse");
        let command = match &self.through {
            Some(script) => Command::new("/bin/sh").arg("-c").arg(script).arg(program),
            None => Command::new(program),
        };
        let mut command = command
            .arg("serve")
            .arg("--data-dir")
            .arg(self.data())
            .arg("--socket")
            .arg(self.socket())
            .arg("--trust-file")
            .arg(&self.trust_file)
            // Nothing of the machine's own configuration counts.
            .env("HOME", self.folder.path())
            .env("XDG_CONFIG_HOME", self.folder.path().join("xdg"))
            .dir(self.folder.path());
        if let Some(worker) = &self.worker {
            command = command.arg("--worker").arg(worker);
        }
        for folder in &self.plugin_dirs {
            command = command.arg("--plugin-dir").arg(folder);
        }
        for (key, value) in &self.environment {
            command = command.env(key, value);
        }
        command
    }

    /// Starts a daemon here that is expected not to serve, and waits for its end.
    pub fn refused(&self) -> Refused {
        let command = self.command().stderr(Output::Capture { limit: 1 << 20 });
        let child = spawner().spawn(command).expect("`synapse serve` starts");
        let ended = child.wait_with_output(HANG).expect("the start is refused");
        Refused {
            code: ended.status.code().expect("an exit code"),
            words: String::from_utf8(ended.stderr).expect("UTF-8"),
        }
    }

    /// Starts a daemon here and waits until it serves.
    pub fn start(&self) -> Daemon {
        self.try_start()
            .unwrap_or_else(|log| panic!("the daemon does not serve:\n{log}"))
    }

    /// Starts a daemon here and waits until it serves.
    ///
    /// # Errors
    /// It does not; what it has logged.
    pub fn try_start(&self) -> Result<Daemon, String> {
        let mut child = spawner()
            .spawn(self.command().stderr(Output::Stream))
            .expect("`synapse serve` starts");
        let stderr = child.take_stderr().expect("is a stream");
        let log = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&log);
        let (ready, serving) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let serves = line.contains(" serving ");
                let mut log = kept.lock().expect("unpoisoned");
                log.push_str(&line);
                log.push('\n');
                drop(log);
                if serves {
                    // The test may have ended.
                    let _ = ready.send(());
                }
            }
        });
        let daemon = Daemon {
            child,
            log,
            socket: self.socket(),
        };
        // The sender is dropped when the daemon ends.
        match serving.recv_timeout(HANG) {
            Ok(()) => Ok(daemon),
            Err(_) => Err(daemon.log()),
        }
    }
}

/// A start that was refused.
#[derive(Debug)]
pub struct Refused {
    /// The exit code.
    pub code: i32,
    /// What was said, the log lines included.
    pub words: String,
}

/// Copies a folder with everything below it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copies");
        }
    }
}

/// A running daemon.
pub struct Daemon {
    child: Child,
    log: Arc<Mutex<String>>,
    socket: PathBuf,
}

impl Daemon {
    /// A new connection.
    pub fn connect(&self) -> Client {
        Client::connect(&self.socket)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// A line of its `/proc/PID/status`, such as `VmRSS` or `VmHWM`, in KiB.
    pub fn memory(&self, line: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the daemon lives");
        let value = status
            .lines()
            .find_map(|found| found.strip_prefix(line))
            .expect("a line");
        let number = value.trim_start_matches(':').trim_end_matches("kB").trim();
        number.parse().expect("a number")
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("unpoisoned").clone()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("can be asked").is_none()
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        self.child.kill();
        self.child
            .wait_for_exit(HANG)
            .expect("can be waited for")
            .expect("is dead");
    }

    /// SIGTERM, without waiting.
    pub fn terminate(&self) {
        let pid = i32::try_from(self.child.pid())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(pid.expect("a process id"), rustix::process::Signal::TERM).expect("is ours");
    }

    /// Waits for its end.
    pub fn wait(mut self) -> ExitStatus {
        let ended = self.child.wait_for_exit(HANG).expect("can be waited for");
        ended.unwrap_or_else(|| panic!("the daemon does not end:\n{}", self.log()))
    }

    /// SIGTERM, and its exit.
    pub fn stop(self) -> ExitStatus {
        self.terminate();
        self.wait()
    }
}
