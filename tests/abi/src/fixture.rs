//! Builds plugins against copies of the frozen plugin-api, each copy changed by named edits.
//!
//! Owns the folders below cargo's folder for temporary test files; what is built stays there for the next run.

use std::{
    env::consts::{DLL_PREFIX, DLL_SUFFIX},
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

use synapse_loader::process::{Command, Output, spawner};

use crate::golden::source;

/// The vendored source, relative to this crate.
pub const FROZEN: &str = "fixtures/plugin-api-1.0.0";

/// A build may wait for another cargo: this only bounds a hang.
const BUILD_BOUND: Duration = Duration::from_secs(1200);

/// Which copy of plugin-api a fixture is built against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// The frozen source as it stands.
    Frozen,
    /// A newer minor, 1.1.0, with one more extension.
    Newer,
    /// A struct of the frozen set has one more field: not a version that may ever exist.
    Changed,
}

/// One textual edit: file, text to find, text to put in its place.
type Edit = (&'static str, &'static str, &'static str);

impl Variant {
    /// The fixture's package, plugin and bundle.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frozen => "abi-frozen",
            Self::Newer => "abi-newer",
            Self::Changed => "abi-changed",
        }
    }

    const fn edits(self) -> &'static [Edit] {
        match self {
            Self::Frozen => &[],
            Self::Newer => &[
                ("Cargo.toml", "version = \"1.0.0\"", "version = \"1.1.0\""),
                (
                    "src/lib.rs",
                    "pub const ABI_MINOR: u32 = 0;",
                    "pub const ABI_MINOR: u32 = 1;",
                ),
                ("src/ext/mod.rs", "pub mod grammar;", "pub mod grammar;\npub mod novel;"),
            ],
            Self::Changed => &[(
                "src/load.rs",
                "    pub scratch_bytes: u64,\n",
                "    pub scratch_bytes: u64,\n    /// Added to a frozen type.\n    pub novel: u64,\n",
            )],
        }
    }

    fn slot(self) -> &'static OnceLock<PathBuf> {
        static SLOTS: [OnceLock<PathBuf>; 3] = [const { OnceLock::new() }; 3];
        match self {
            Self::Frozen => &SLOTS[0],
            Self::Newer => &SLOTS[1],
            Self::Changed => &SLOTS[2],
        }
    }

    /// The built library below `scratch`, cargo's folder for temporary test files. Builds it once per process.
    ///
    /// # Panics
    /// When it cannot be built: the message has the end of cargo's output.
    pub fn library(self, scratch: &Path) -> &'static Path {
        self.slot().get_or_init(|| {
            self.build(scratch, None)
                .unwrap_or_else(|error| panic!("{}: {error}", self.name()))
        })
    }

    /// The library built by another compiler, in a target folder of its own.
    ///
    /// # Errors
    /// What does not build; the message has the end of cargo's output.
    pub fn library_by(self, scratch: &Path, compiler: &Compiler) -> Result<PathBuf, String> {
        self.build(scratch, Some(compiler))
    }

    fn build(self, scratch: &Path, compiler: Option<&Compiler>) -> Result<PathBuf, String> {
        let root = scratch.join(if compiler.is_some() {
            "abi-foreign"
        } else {
            "abi-fixtures"
        });
        let workspace = root.join(self.name());
        // Cargo names what it builds by a member's path inside its workspace, and the fixtures share one target
        // folder: so each member's folder has a name of its own.
        let (api_dir, plugin_dir) = (format!("{}-api", self.name()), self.name());
        let mut api = tree(&source(FROZEN))?;
        if self == Self::Newer {
            api.push((
                PathBuf::from("src/ext/novel.rs"),
                read(&source("fixtures/newer/novel.rs"))?,
            ));
        }
        for (file, find, put) in self.edits() {
            let (_, content) = api
                .iter_mut()
                .find(|(path, _)| path == Path::new(file))
                .ok_or_else(|| format!("{file}: not in the vendored source"))?;
            let text = String::from_utf8_lossy(content);
            if text.matches(find).count() != 1 {
                return Err(format!("{file}: expected one place with `{find}`"));
            }
            *content = text.replace(find, put).into_bytes();
        }
        make(&api, &workspace.join(&api_dir))?;
        make(&tree(&source("fixtures/plugin"))?, &workspace.join(plugin_dir))?;
        let features = if self == Self::Newer {
            "\n[features]\ndefault = [\"novel\"]\nnovel = []\n"
        } else {
            ""
        };
        let manifest = String::from_utf8_lossy(&read(&source("fixtures/plugin/Cargo.toml.in"))?)
            .replace("@NAME@", self.name())
            .replace("@API@", &api_dir)
            .replace("@FEATURES@", features);
        write(&workspace.join(plugin_dir).join("Cargo.toml"), manifest.as_bytes())?;
        let members = format!("[workspace]\nresolver = \"3\"\nmembers = [\"{plugin_dir}\", \"{api_dir}\"]\n");
        write(&workspace.join("Cargo.toml"), members.as_bytes())?;
        // The same versions as this repository's, which its own build has already fetched.
        write(&workspace.join("Cargo.lock"), &read(&source("../../Cargo.lock"))?)?;
        let target = root.join("target");
        let cargo = Command::new(env!("CARGO"))
            .args(["build", "--offline", "--quiet", "--lib", "--package", self.name()])
            .dir(&workspace)
            .env("CARGO_TARGET_DIR", &target)
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .inherit_env("CARGO_HOME")
            .inherit_env("RUSTUP_HOME")
            .inherit_env("RUSTUP_TOOLCHAIN")
            .stderr(Output::Capture { limit: 1 << 20 });
        let cargo = match compiler {
            Some(compiler) => cargo.env("RUSTC", &compiler.program),
            None => cargo,
        };
        let child = spawner().spawn(cargo).map_err(|error| error.to_string())?;
        let finished = child.wait_with_output(BUILD_BOUND).map_err(|error| error.to_string())?;
        if !finished.status.success() {
            let text = String::from_utf8_lossy(&finished.stderr);
            let tail: Vec<&str> = text.lines().rev().take(40).collect();
            return Err(format!(
                "cargo: {}\n{}",
                finished.status,
                tail.into_iter().rev().collect::<Vec<_>>().join("\n")
            ));
        }
        let file = format!("{DLL_PREFIX}{}{DLL_SUFFIX}", self.name().replace('-', "_"));
        Ok(target.join("debug").join(file))
    }
}

/// A compiler that is not the one these tests are built with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiler {
    /// Where it lies.
    pub program: PathBuf,
    /// What it says it is, for example `rustc 1.96.0 (…)`.
    pub version: String,
}

impl Compiler {
    /// The one that `SYNAPSE_OTHER_RUSTC` names, else the system's own; none when there is no other than `ours`, the first
    /// line of `rustc -V`.
    ///
    /// # Errors
    /// When the one that is named cannot be started.
    pub fn other_than(ours: &str) -> Result<Option<Self>, String> {
        let named = std::env::var_os("SYNAPSE_OTHER_RUSTC").map(PathBuf::from);
        let program = named.clone().unwrap_or_else(|| PathBuf::from("/usr/bin/rustc"));
        match version(&program) {
            Ok(version) => Ok((version != ours).then_some(Self { program, version })),
            Err(error) if named.is_some() => Err(format!("SYNAPSE_OTHER_RUSTC: {}: {error}", program.display())),
            Err(_) => Ok(None),
        }
    }
}

/// What a compiler says it is.
///
/// # Errors
/// When it cannot be started, or fails.
pub fn version(compiler: &Path) -> Result<String, String> {
    let command = Command::new(compiler).arg("-V").stdout(Output::Capture { limit: 4096 });
    let command = ["RUSTUP_HOME", "RUSTUP_TOOLCHAIN", "CARGO_HOME"]
        .into_iter()
        .fold(command, Command::inherit_env);
    let child = spawner().spawn(command).map_err(|error| error.to_string())?;
    let finished = child
        .wait_with_output(Duration::from_secs(60))
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&finished.stdout).trim().to_owned();
    if finished.status.success() && text.starts_with("rustc ") {
        Ok(text)
    } else {
        Err(format!("expected `rustc …`, found {text:?}"))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes a file unless it has this content, so that cargo sees no change where there is none.
fn write(path: &Path, content: &[u8]) -> Result<(), String> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    let written = path
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(path, content));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// Makes the folder `to` hold these files, touching only what differs and removing other sources.
///
/// # Errors
/// The path that failed, and why.
pub fn make(files: &[(PathBuf, Vec<u8>)], to: &Path) -> Result<(), String> {
    for (relative, content) in files {
        write(&to.join(relative), content)?;
    }
    for (relative, _) in tree(to)? {
        let source = relative.extension().is_some_and(|extension| extension == "rs");
        if source && !files.iter().any(|(path, _)| *path == relative) {
            let path = to.join(relative);
            fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    Ok(())
}

/// Every plain file below a folder with its content, sorted by relative path.
///
/// # Errors
/// The path that cannot be read, and why.
pub fn tree(root: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>, String> {
    let mut folders = vec![PathBuf::new()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let path = root.join(&folder);
        let entries = fs::read_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        for entry in entries {
            let entry = entry.map_err(|error| format!("{}: {error}", path.display()))?;
            let relative = folder.join(entry.file_name());
            if entry.path().is_dir() {
                folders.push(relative);
            } else {
                let content = read(&entry.path())?;
                files.push((relative, content));
            }
        }
    }
    files.sort();
    Ok(files)
}
