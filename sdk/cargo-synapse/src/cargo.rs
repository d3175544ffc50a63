//! Runs cargo: what it knows of a project, and a build of it.
//!
//! State: none; cargo keeps its own. Callers: `project.rs`, `bundle.rs`. The environment is handed on whole, since build
//! scripts read what they like of it. Cargo's words for people go to standard error as they come.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use synapse_loader::process::{Command, Output, spawner};

use crate::args::Build;
use crate::error::Error;
use crate::json::{self, Made, Metadata};

/// A build may compile a large C library: this only bounds a hang.
const BOUND: Duration = Duration::from_secs(4 * 3600);

/// The cargo that called this program, else the one in PATH.
fn program() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}

/// Starts cargo in the current folder and gives what it prints and whether it worked.
fn run(arguments: &[String], mut each: impl FnMut(&str)) -> Result<bool, Error> {
    let program = program();
    let missing = |reason: String| Error::Program {
        program: program.display().to_string(),
        reason,
        remedy: "install Rust (rustup or your system's packages) and see that cargo is in PATH",
    };
    let folder = std::env::current_dir().map_err(Error::io("cannot find", "."))?;
    let command = Command::new(&program)
        .args(arguments)
        .dir(folder)
        .stdout(Output::Stream)
        .stderr(Output::Stream);
    let command = std::env::vars_os().fold(command, |command, (key, _)| command.inherit_env(key));
    let mut child = spawner().spawn(command).map_err(|error| missing(error.to_string()))?;
    let words = child.take_stderr();
    let forward = std::thread::spawn(move || {
        if let Some(mut words) = words {
            // Whoever closed our standard error wants no words.
            let _ = std::io::copy(&mut words, &mut std::io::stderr());
        }
    });
    if let Some(lines) = child.take_stdout() {
        for line in BufReader::new(lines).lines().map_while(Result::ok) {
            each(&line);
        }
    }
    let status = child.wait_for_exit(BOUND).map_err(|error| missing(error.to_string()))?;
    let _ = forward.join();
    Ok(status.is_some_and(|status| status.success()))
}

/// What cargo knows of the project.
///
/// # Errors
/// [`Error::Project`] where there is none; cargo has said why.
pub fn metadata(build: &Build) -> Result<Metadata, Error> {
    let mut arguments: Vec<String> = ["metadata", "--no-deps", "--format-version", "1"]
        .map(str::to_owned)
        .into();
    if build.offline {
        arguments.push("--offline".to_owned());
    }
    if let Some(path) = &build.manifest_path {
        arguments.extend(["--manifest-path".to_owned(), path.display().to_string()]);
    }
    let mut text = String::new();
    if !run(&arguments, |line| text.push_str(line))? {
        return Err(Error::Project(
            "there is no Rust project here: go to the plugin's folder, name its Cargo.toml with --manifest-path, or make \
             one with `cargo synapse new NAME`"
                .to_owned(),
        ));
    }
    json::metadata(&text).map_err(|error| Error::Project(format!("cargo metadata: {error}")))
}

/// Builds a package's library so that the same source gives the same bytes in any folder.
///
/// # Errors
/// [`Error::Build`]; the compiler has said why.
pub fn build(manifest: &Path, package_id: &str, build: &Build) -> Result<Made, Error> {
    let mut arguments: Vec<String> = [
        "rustc",
        "--lib",
        "--message-format",
        "json-render-diagnostics",
        "--manifest-path",
    ]
    .map(str::to_owned)
    .into();
    arguments.push(manifest.display().to_string());
    arguments.extend(["--profile".to_owned(), build.profile.clone()]);
    for (wanted, word) in [(build.offline, "--offline"), (build.locked, "--locked")] {
        if wanted {
            arguments.push(word.to_owned());
        }
    }
    if let Some(features) = &build.features {
        arguments.extend(["--features".to_owned(), features.clone()]);
    }
    // Where the dependencies' sources lie on this machine is nobody's business; panic messages hold such paths. The flag
    // is laid beside the project's own, unless it is among them: other flags are another build of all dependencies.
    let given = std::env::var("CARGO_BUILD_RUSTFLAGS").unwrap_or_default();
    let remap = cargo_home().map(|home| format!("--remap-path-prefix={}=/cargo", home.display()));
    if let Some(remap) = remap.filter(|remap| !given.split(' ').any(|flag| flag == remap)) {
        arguments.extend(["--config".to_owned(), format!("build.rustflags=[{remap:?}]")]);
    }
    arguments.push("--".to_owned());
    if cfg!(target_os = "linux") {
        // The compiler hands the linker a version script that keeps everything local but the crate's own exports; this
        // keeps the symbols of static libraries local too.
        arguments.extend(["-C".to_owned(), "link-arg=-Wl,--exclude-libs=ALL".to_owned()]);
    }
    let mut made = Made::default();
    if !run(&arguments, |line| json::message(line, package_id, &mut made))? {
        return Err(Error::Build(format!(
            "see above, or run cargo build --profile {}",
            build.profile
        )));
    }
    Ok(made)
}

/// Cargo's home.
fn cargo_home() -> Option<PathBuf> {
    let set = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    set.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")))
}
