//! Where things lie on disk, and the environment that decides it.
//!
//! State: none. Callers: `serve`, the configuration and the command line. Not known here: what the files hold. The
//! environment is an argument, so that every rule is a pure function of it (PLAT-05).

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use synapse_wire::socket::Surroundings;

/// A snapshot of environment variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    /// This process's environment now. Names that are not UTF-8 are left out: none of ours is.
    #[must_use]
    pub fn of_this_process() -> Self {
        std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .collect()
    }

    /// The variable's value, unless it is unset or empty.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0
            .get(name)
            .map(OsString::as_os_str)
            .filter(|value| !value.is_empty())
    }

    /// The variable as a path, unless it is unset, empty or relative (the XDG rule for base directories).
    #[must_use]
    pub fn absolute(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }
}

impl FromIterator<(String, OsString)> for Environment {
    fn from_iter<I: IntoIterator<Item = (String, OsString)>>(pairs: I) -> Self {
        Self(pairs.into_iter().collect())
    }
}

/// The operating systems whose directory rules differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// Linux and everything like it.
    Linux,
    /// macOS.
    MacOs,
    /// Windows.
    Windows,
}

impl Platform {
    /// The platform that this build runs on.
    #[must_use]
    pub const fn current() -> Self {
        if cfg!(windows) {
            Self::Windows
        } else if cfg!(target_os = "macos") {
            Self::MacOs
        } else {
            Self::Linux
        }
    }
}

/// The default data directory: `$XDG_DATA_HOME/synapse`, otherwise `~/.local/share/synapse` (on Windows
/// `%LOCALAPPDATA%\synapse`, then `%USERPROFILE%\synapse`). `None` when the environment names no home.
#[must_use]
pub fn default_data_dir(environment: &Environment, platform: Platform) -> Option<PathBuf> {
    let home = match platform {
        Platform::Windows => {
            let base = environment
                .absolute("LOCALAPPDATA")
                .or_else(|| environment.absolute("USERPROFILE"));
            return environment
                .absolute("XDG_DATA_HOME")
                .or(base)
                .map(|base| base.join("synapse"));
        }
        Platform::Linux | Platform::MacOs => environment.absolute("HOME"),
    };
    // The rule is the client's too, so it stands in `wire`.
    let around = Surroundings {
        xdg_data_home: environment.absolute("XDG_DATA_HOME"),
        home,
        ..Surroundings::default()
    };
    around.data_dir()
}

/// The folders that are searched for bundles, in order: those of the command line, of `SYNAPSE_PLUGIN_PATH`, of the
/// configuration, the user's and the system's. A folder that stands twice is searched once, at its first place.
#[must_use]
pub fn plugin_dirs(
    environment: &Environment,
    platform: Platform,
    command_line: &[PathBuf],
    configured: &[PathBuf],
) -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = Vec::new();
    let from_variable = environment.get("SYNAPSE_PLUGIN_PATH").map(std::env::split_paths);
    let user = default_data_dir(environment, platform).map(|dir| dir.join("plugins"));
    let system = (platform != Platform::Windows).then(|| PathBuf::from("/usr/lib/synapse/plugins"));
    let all = command_line
        .iter()
        .cloned()
        .chain(from_variable.into_iter().flatten().filter(|dir| dir.is_absolute()))
        .chain(configured.iter().cloned())
        .chain(user)
        .chain(system);
    for dir in all {
        if !dirs.contains(&dir) {
            dirs.push(dir);
        }
    }
    dirs
}

/// The layout of one data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDir {
    root: PathBuf,
}

impl DataDir {
    /// The layout under `root`.
    #[must_use]
    pub const fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// The directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The database.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.root.join("store.db")
    }

    /// Model files by digest, their pins and records.
    #[must_use]
    pub fn models(&self) -> PathBuf {
        self.root.join("models")
    }

    /// Private copies of bundles, by digest.
    #[must_use]
    pub fn staging(&self) -> PathBuf {
        self.root.join("staging")
    }

    /// Log files.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// The digests of bundles that the operator promoted.
    #[must_use]
    pub fn trust_file(&self) -> PathBuf {
        self.root.join("trust.toml")
    }

    /// The file whose lock makes the daemon the only one of this directory.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.root.join("synapse.lock")
    }

    /// Sockets.
    #[must_use]
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    /// The sockets of workers. Where their paths would be too long for a socket, a short folder stands for it, as for
    /// the daemon's own socket.
    #[must_use]
    pub fn worker_sockets(&self) -> PathBuf {
        /// Room for a separator and the longest file name: 16 characters of the bundle's id, two numbers, an ending.
        const NAME: usize = 40;
        let dir = self.run().join("workers");
        #[cfg(unix)]
        if dir.as_os_str().len() + NAME > synapse_wire::socket::MAX_SOCKET_PATH {
            let uid = rustix::process::geteuid().as_raw();
            return synapse_wire::socket::short_path(&dir, uid).with_file_name("workers");
        }
        dir
    }

    /// The operator's own model records.
    #[must_use]
    pub fn catalog(&self) -> PathBuf {
        self.root.join("catalog")
    }
}

/// Creates a directory that only this user may enter, with its parents; an existing one of ours is narrowed to 0700.
///
/// # Errors
/// It cannot be created, or something else (a link, another user's directory) stands there.
pub fn private_dir(path: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        match std::fs::DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let found = std::fs::symlink_metadata(path)?;
        let ours = rustix::process::geteuid().as_raw();
        if !found.is_dir() {
            return Err(std::io::Error::other(format!("{} is not a directory", path.display())));
        }
        if found.uid() != ours {
            let owner = found.uid();
            return Err(std::io::Error::other(format!(
                "{} belongs to user {owner}, not to {ours}",
                path.display()
            )));
        }
        if found.mode() & 0o077 != 0 {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))?;
        }
        Ok(())
    }
    #[cfg(not(unix))]
    std::fs::create_dir_all(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Variables, a platform, and the path that follows.
    type Case = (&'static [(&'static str, &'static str)], Platform, Option<&'static str>);

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), OsString::from(value)))
            .collect()
    }

    /// Proves PLAT-05.
    #[test]
    fn data_dir_follows_the_environment() {
        let cases: &[Case] = &[
            (
                &[("XDG_DATA_HOME", "/x"), ("HOME", "/h")],
                Platform::Linux,
                Some("/x/synapse"),
            ),
            (
                &[("XDG_DATA_HOME", "x"), ("HOME", "/h")],
                Platform::Linux,
                Some("/h/.local/share/synapse"),
            ),
            (
                &[("XDG_DATA_HOME", ""), ("HOME", "/h")],
                Platform::MacOs,
                Some("/h/.local/share/synapse"),
            ),
            (
                &[("LOCALAPPDATA", "/l"), ("USERPROFILE", "/u")],
                Platform::Windows,
                Some("/l/synapse"),
            ),
            (&[("USERPROFILE", "/u")], Platform::Windows, Some("/u/synapse")),
            (&[], Platform::Linux, None),
        ];
        for (pairs, platform, expected) in cases {
            let found = default_data_dir(&environment(pairs), *platform);
            assert_eq!(found, expected.map(PathBuf::from), "{pairs:?} on {platform:?}");
        }
    }

    #[test]
    fn plugin_dirs_keep_their_order_and_stand_once() {
        let environment = environment(&[("HOME", "/h"), ("SYNAPSE_PLUGIN_PATH", "/a:/b::rel:/a")]);
        let found = plugin_dirs(
            &environment,
            Platform::Linux,
            &[PathBuf::from("/c"), PathBuf::from("/b")],
            &["/d".into()],
        );
        let expected = [
            "/c",
            "/b",
            "/a",
            "/d",
            "/h/.local/share/synapse/plugins",
            "/usr/lib/synapse/plugins",
        ];
        assert_eq!(found, expected.map(PathBuf::from));
    }

    /// Proves JOB-02, LOG-08.
    #[test]
    fn everything_lies_under_the_data_dir() {
        let dir = DataDir::new(PathBuf::from("/d"));
        let all = [
            dir.store(),
            dir.models(),
            dir.staging(),
            dir.logs(),
            dir.trust_file(),
            dir.lock(),
            dir.run(),
            dir.catalog(),
        ];
        assert!(all.iter().all(|path| path.parent() == Some(dir.root())));
        assert_eq!(dir.store(), Path::new("/d/store.db"));
        assert_eq!(dir.logs(), Path::new("/d/logs"));
    }

    /// Proves WPROTO-03.
    #[cfg(unix)]
    #[test]
    fn sockets_of_workers_have_paths_that_fit() {
        let short = DataDir::new(PathBuf::from("/h/.local/share/synapse"));
        assert_eq!(short.worker_sockets(), short.run().join("workers"));
        let long = |name: char| DataDir::new(PathBuf::from(format!("/{}", String::from(name).repeat(90))));
        let dir = long('a').worker_sockets();
        assert!(
            dir.join("sixteen-letters-18446744073-999.sock").as_os_str().len() <= 103,
            "{dir:?}"
        );
        assert_ne!(
            dir,
            long('b').worker_sockets(),
            "two data directories never share a folder"
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_private_dir_is_narrowed_and_a_link_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        std::fs::create_dir_all(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        private_dir(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(private_dir(&link).is_err());
    }

    /// What guards the sockets of workers is the folder: nobody else's is used.
    ///
    /// Proves WPROTO-31.
    #[cfg(unix)]
    #[test]
    fn another_users_dir_is_refused() {
        use rustix::fs::{Uid, chown};
        let dir = tempfile::tempdir().unwrap();
        // Root may give a folder away; anybody else finds one of root's.
        let theirs = if rustix::process::geteuid().is_root() {
            let path = dir.path().join("theirs");
            std::fs::create_dir(&path).unwrap();
            chown(&path, Some(Uid::from_raw(1)), None).unwrap();
            path
        } else {
            PathBuf::from("/")
        };
        let error = private_dir(&theirs).unwrap_err();
        assert!(error.to_string().contains("belongs to user"), "{error}");
    }
}
