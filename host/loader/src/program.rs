//! What a program file must be before it is run: an executable of this system, or a script with an interpreter.
//!
//! State: none. Callers: discovery, on the staged copy of an executable bundle. Not known here: what the program says.
//!
//! The rules of a script:
//! 1. it begins with `#!`, and that line ends within 255 bytes, as the system wants it, without a carriage return;
//! 2. the line names an absolute interpreter and at most one argument, or `/usr/bin/env NAME`;
//! 3. NAME is looked up in this process's `PATH`, which the program inherits;
//! 4. the interpreter is a file that may be run, and nobody but this user and root can have written it.
//!
//! The interpreter and what it loads are not part of the bundle's digest. What depends on them belongs into the
//! engine's build flags (WP-03).

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::bundle::{Refusal, RefusalReason};
use crate::manifest::shown;
use crate::note;
use crate::staging::{Staged, check_writers};

/// The most bytes of a script's first line, its end included: what Linux reads of it.
const MAX_LINE: usize = 255;

/// Checks the program at `path` of a staged bundle, and makes its copy executable for this user alone.
///
/// # Errors
/// [`RefusalReason::NotExecutable`], [`RefusalReason::NotAProgram`], [`RefusalReason::TargetMismatch`],
/// [`RefusalReason::InterpreterMissing`], and for the interpreter [`RefusalReason::WrongOwner`] and
/// [`RefusalReason::WorldWritable`].
pub(crate) fn check(staged: &Staged, path: &Path) -> Result<(), Refusal> {
    let name = path.to_string_lossy();
    if !staged.executable.contains(name.as_ref()) {
        let message = format!("{name} has no executable bit: run chmod u+x on it");
        return Err(Refusal::new(RefusalReason::NotExecutable, message));
    }
    let copy = staged.dir.join(path);
    let unreadable = |error: std::io::Error| Refusal::new(RefusalReason::Unreadable, format!("{name}: {error}"));
    let mut start = Vec::new();
    let file = File::open(&copy).map_err(unreadable)?;
    file.take(MAX_LINE as u64 + 1)
        .read_to_end(&mut start)
        .map_err(unreadable)?;
    match start.strip_prefix(b"#!") {
        Some(line) => check_interpreter(&interpreter(line)?, std::env::var_os("PATH").as_deref())?,
        None => note::check_program(&copy)?,
    }
    // The digest says nothing about modes: a copy of before the bit was set is as good as a new one.
    std::fs::set_permissions(&copy, Permissions::from_mode(0o500)).map_err(unreadable)
}

/// Who runs a script.
#[derive(Debug, PartialEq, Eq)]
enum Interpreter {
    /// This file.
    File(PathBuf),
    /// The first of this name in `PATH`.
    Named(String),
}

/// The interpreter of a script, from what follows `#!`.
fn interpreter(start: &[u8]) -> Result<Interpreter, Refusal> {
    let wrong = |found: &str| {
        let message = format!(
            "the program's first line: expected #! with an absolute interpreter and at most one argument, or \
             #!/usr/bin/env NAME, within {MAX_LINE} bytes, found {}",
            shown(found)
        );
        Refusal::new(RefusalReason::NotAProgram, message)
    };
    let lossy = String::from_utf8_lossy(start);
    let end = start
        .iter()
        .position(|byte| *byte == b'\n')
        .ok_or_else(|| wrong(&lossy))?;
    let line = std::str::from_utf8(&start[..end]).map_err(|_| wrong(&lossy))?;
    if line.contains(|c: char| c.is_control() && c != '\t') {
        return Err(wrong(line));
    }
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    match *words.as_slice() {
        ["/usr/bin/env", name] if !name.starts_with('-') && !name.contains(['/', '=']) => {
            Ok(Interpreter::Named(name.to_owned()))
        }
        ["/usr/bin/env", ..] => Err(wrong(line)),
        [path] | [path, _] if path.starts_with('/') => Ok(Interpreter::File(PathBuf::from(path))),
        _ => Err(wrong(line)),
    }
}

/// Whether the interpreter is there, may be run, and is nobody else's.
fn check_interpreter(interpreter: &Interpreter, path: Option<&OsStr>) -> Result<(), Refusal> {
    let missing = |what: String| Refusal::new(RefusalReason::InterpreterMissing, what);
    let file = match interpreter {
        Interpreter::File(file) => file.clone(),
        Interpreter::Named(name) => {
            let mut folders = path.iter().flat_map(|path| std::env::split_paths(path));
            let found = folders.find(|folder| runs(&folder.join(name)));
            let folder = found.ok_or_else(|| missing(format!("the program wants {name}, which is nowhere in PATH")))?;
            folder.join(name)
        }
    };
    if !runs(&file) {
        return Err(missing(format!(
            "the program wants {}, which cannot be run",
            file.display()
        )));
    }
    let stat = rustix::fs::stat(&file).map_err(|error| missing(format!("{}: {error}", file.display())))?;
    check_writers(&stat, &format!("the interpreter {}", file.display()))
}

/// Whether this user may run the file.
fn runs(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_script() {
        let file = |path: &str| Interpreter::File(PathBuf::from(path));
        let named = |name: &str| Interpreter::Named(name.to_owned());
        let good = [
            ("/bin/sh\n", file("/bin/sh")),
            (" /usr/bin/python3 -I\nimport sys\n", file("/usr/bin/python3")),
            ("/usr/bin/env python3\n", named("python3")),
            ("\t/usr/bin/env\tpython3 \n", named("python3")),
        ];
        for (line, expected) in good {
            assert_eq!(interpreter(line.as_bytes()).unwrap(), expected, "{line:?}");
        }
        let long = format!("/{}\n", "x".repeat(300));
        for line in [
            "/bin/sh",
            "\n",
            "python3\n",
            "bin/python3\n",
            "/bin/sh a b\n",
            "/bin/sh\r\n",
            "/usr/bin/env\n",
            "/usr/bin/env -S python3 -I\n",
            "/usr/bin/env ./python3\n",
            "/usr/bin/env A=b\n",
            "/bin/\u{1}sh\n",
            &long[..MAX_LINE],
        ] {
            let refusal = interpreter(line.as_bytes()).unwrap_err();
            assert_eq!(refusal.reason, RefusalReason::NotAProgram, "{line:?}");
            assert!(refusal.message.contains("/usr/bin/env NAME"), "{}", refusal.message);
        }
    }

    #[test]
    fn the_interpreter_is_there_and_nobody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let tool = folder.path().join("tool");
        let named = Interpreter::Named("tool".to_owned());
        let path = std::env::join_paths([folder.path()]).unwrap();
        let reason =
            |interpreter: &Interpreter| check_interpreter(interpreter, Some(&path)).map_err(|error| error.reason);
        let mode = |mode| std::fs::set_permissions(&tool, Permissions::from_mode(mode)).unwrap();
        assert_eq!(reason(&named), Err(RefusalReason::InterpreterMissing));
        std::fs::write(&tool, "").unwrap();
        mode(0o600);
        assert_eq!(reason(&named), Err(RefusalReason::InterpreterMissing));
        mode(0o700);
        assert_eq!(reason(&named), Ok(()));
        assert_eq!(reason(&Interpreter::File(tool.clone())), Ok(()));
        mode(0o777);
        assert_eq!(reason(&named), Err(RefusalReason::WorldWritable));
        let nowhere = Interpreter::File(folder.path().to_owned());
        assert_eq!(reason(&nowhere), Err(RefusalReason::InterpreterMissing));
        assert!(check_interpreter(&named, None).is_err());
    }
}
