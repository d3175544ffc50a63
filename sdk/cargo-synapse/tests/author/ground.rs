//! Where the tests work: a registry, a home for cargo and a target folder, shared by all; for each test a folder outside
//! this repository, which is gone afterwards.
//!
//! State: a folder below cargo's folder for temporary test files, kept for the next run. What was built from packages that
//! have changed since is removed, because cargo takes a package of a known version for known.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use synapse_loader::process::{Command, Output, spawner};

/// A build may wait for another cargo: this only bounds a hang.
pub const HANG: Duration = Duration::from_secs(1800);

/// The tool.
const TOOL: &str = env!("CARGO_BIN_EXE_cargo-synapse");

/// What all tests share.
pub struct Ground {
    root: PathBuf,
}

/// A folder of a test's own, below which its projects lie: outside this workspace, as an author's do.
pub struct Place {
    pub folder: PathBuf,
    ground: &'static Ground,
    _gone_with_it: tempfile::TempDir,
}

/// How a program ended.
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Its standard output; the test fails when it did not end well.
    pub fn well(self, what: &str) -> String {
        assert_eq!(self.code, Some(0), "{what}:\n{}\n{}", self.stdout, self.stderr);
        self.stdout
    }

    /// Its words of error; the test fails when it ended with another code.
    pub fn badly(self, what: &str, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{what}:\n{}\n{}", self.stdout, self.stderr);
        self.stderr
    }
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the repository")
}

/// The ground, laid out at the first call.
pub fn ground() -> &'static Ground {
    static GROUND: OnceLock<Ground> = OnceLock::new();
    GROUND.get_or_init(|| {
        let ground = Ground {
            root: Path::new(env!("CARGO_TARGET_TMPDIR")).join("author"),
        };
        ground.lay_out();
        ground
    })
}

impl Ground {
    fn lay_out(&self) {
        let (fresh, kept) = (self.root.join("registry.new"), self.root.join("registry"));
        fs::create_dir_all(&self.root).expect("a folder");
        let script = Command::new("python3")
            .arg(repository().join("scripts/registry.py"))
            .arg(&fresh)
            .arg("--replace-in")
            .arg(self.cargo_home())
            .env("CARGO", env!("CARGO"));
        let script = std::env::vars_os().fold(script, |script, (key, _)| script.inherit_env(key));
        finish(script).well("scripts/registry.py");
        let contents = |folder: &Path| fs::read_to_string(folder.join("contents.txt")).unwrap_or_default();
        if contents(&fresh) != contents(&kept) {
            self.forget_packages();
        }
        let _ = fs::remove_dir_all(&kept);
        fs::rename(&fresh, &kept).expect("renames");
        // The script named the folder that it wrote to.
        let config = self.cargo_home().join("config.toml");
        let text = fs::read_to_string(&config)
            .expect("a config")
            .replace("registry.new", "registry");
        fs::write(&config, text).expect("writes");
    }

    /// Removes what cargo unpacked and built of our packages.
    fn forget_packages(&self) {
        let _ = fs::remove_dir_all(self.cargo_home().join("registry"));
        for profile in ["debug", "release"] {
            let prints = self.target().join(profile).join(".fingerprint");
            for print in fs::read_dir(prints).into_iter().flatten().flatten() {
                if print.file_name().to_string_lossy().starts_with("synapse-plugin-") {
                    fs::remove_dir_all(print.path()).expect("removes");
                }
            }
        }
    }

    /// The home for cargo.
    pub fn cargo_home(&self) -> PathBuf {
        self.root.join("cargo-home")
    }

    fn remap(&self) -> String {
        format!("--remap-path-prefix={}=/cargo", self.cargo_home().display())
    }

    fn target(&self) -> PathBuf {
        self.root.join("target")
    }
}

/// An empty folder.
pub fn place() -> Place {
    let folder = tempfile::Builder::new()
        .prefix("synapse-author-")
        .tempdir()
        .expect("a folder");
    Place {
        folder: folder.path().canonicalize().expect("a folder"),
        ground: ground(),
        _gone_with_it: folder,
    }
}

impl Place {
    /// Runs `cargo synapse …` in a folder of the place.
    pub fn synapse(&self, folder: &str, arguments: &[&str]) -> Ran {
        finish(
            self.command(TOOL)
                .arg("synapse")
                .args(arguments)
                .dir(self.folder.join(folder)),
        )
    }

    /// Runs `cargo …` in a folder of the place.
    pub fn cargo(&self, folder: &str, arguments: &[&str]) -> Ran {
        finish(
            self.command(env!("CARGO"))
                .args(arguments)
                .dir(self.folder.join(folder)),
        )
    }

    /// Makes a project and gives its folder.
    pub fn project(&self, name: &str, kind: &str) -> PathBuf {
        self.synapse(".", &["new", name, "--kind", kind]).well("new");
        self.folder.join(name)
    }

    /// A program in the environment of an author: a home of their own, the tool and the toolchain in PATH, no network.
    pub fn command(&self, program: impl Into<PathBuf>) -> Command {
        self.environment()
            .into_iter()
            .fold(Command::new(program), |command, (key, value)| command.env(key, value))
    }

    /// That environment.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        let folder = |program: &str| {
            Path::new(program)
                .parent()
                .expect("a program lies in a folder")
                .to_owned()
        };
        let mut path = vec![folder(TOOL), folder(env!("CARGO"))];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        let home = self.folder.join("home");
        fs::create_dir_all(&home).expect("a folder");
        let mut environment = vec![
            ("PATH", std::env::join_paths(path).expect("paths")),
            ("HOME", home.clone().into()),
            ("XDG_DATA_HOME", home.join("data").into()),
            ("CARGO_HOME", self.ground.cargo_home().into()),
            ("CARGO_TARGET_DIR", self.ground.target().into()),
            // The flag that packing adds, so that `cargo test` and packing share the builds of the dependencies.
            ("CARGO_BUILD_RUSTFLAGS", self.ground.remap().into()),
            ("CARGO_NET_OFFLINE", "true".into()),
            ("CARGO_TERM_COLOR", "never".into()),
        ];
        // A toolchain of rustup's is found by its own variables.
        for key in ["RUSTUP_HOME", "RUSTUP_TOOLCHAIN"] {
            environment.extend(std::env::var_os(key).map(|value| (key, value)));
        }
        environment
    }
}

/// Runs a program to its end.
pub fn finish(command: Command) -> Ran {
    let limit = 4 << 20;
    let child = spawner()
        .spawn(
            command
                .stdout(Output::Capture { limit })
                .stderr(Output::Capture { limit }),
        )
        .expect("starts");
    let finished = child.wait_with_output(HANG).expect("ends");
    Ran {
        code: finished.status.code(),
        stdout: String::from_utf8_lossy(&finished.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&finished.stderr).into_owned(),
    }
}

/// Changes the one place of a file that has this text.
pub fn edit(file: &Path, find: &str, put: &str) {
    let text = fs::read_to_string(file).expect("a text");
    assert_eq!(
        text.matches(find).count(),
        1,
        "{}: one place with {find:?}",
        file.display()
    );
    fs::write(file, text.replace(find, put)).expect("writes");
}

/// The digest that the tool printed.
pub fn digest(text: &str) -> &str {
    let line = text.lines().find_map(|line| line.strip_prefix("digest"));
    let digest = line.map(str::trim).expect("a line with the digest");
    assert!(
        digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{digest}"
    );
    digest
}
