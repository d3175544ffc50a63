//! A data directory on a file system of its own, small, and read-only when the test says so.
//!
//! State: a process that holds a mount namespace of its own, in which the folder of the data is a tmpfs. Nobody else sees
//! it, and it goes with the process. Daemons enter the namespace before they run; the test reaches its files through
//! `/proc`. Bundles are staged outside of it.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;

use synapse_loader::process::{Child, Command, Output, spawner};

use super::HANG;
use super::daemon::Place;

/// The mounted folder.
pub struct Mount {
    holder: Child,
    data: PathBuf,
}

/// `$1` is the data directory, `$2` a folder outside of it, `$3` the size.
const HOLD: &str = r#"
set -e
mkdir -p "$2/data" "$2/staging"
cp -a "$1/." "$2/data/"
mount -t tmpfs -o "size=$3" synapse-it "$1"
cp -a "$2/data/." "$1/"
mkdir -m 700 "$1/staging"
mount --bind "$2/staging" "$1/staging"
echo mounted
exec sleep 3600
"#;

impl Mount {
    /// Puts a tmpfs of so many bytes in the place's data directory, with what is there already; `None`, with the
    /// reason, where this system does not let us.
    ///
    /// # Errors
    /// The words of the system.
    pub fn over(place: &Place, bytes: u64) -> Result<Self, String> {
        let command = Command::new("unshare")
            .args(["--mount", "/bin/sh", "-c", HOLD, "sh"])
            .arg(place.data())
            .arg(place.path().join("outside"))
            .arg(bytes.to_string())
            .stdout(Output::Stream)
            .stderr(Output::Stream);
        let mut holder = spawner().spawn(command).map_err(|error| error.to_string())?;
        let mut line = String::new();
        let stdout = holder.take_stdout().expect("is a stream");
        BufReader::new(stdout).read_line(&mut line).expect("reads");
        if line == "mounted\n" {
            return Ok(Self {
                holder,
                data: place.data(),
            });
        }
        let mut words = String::new();
        let stderr = holder.take_stderr().expect("is a stream");
        BufReader::new(stderr).read_line(&mut words).expect("reads");
        Err(format!("a mount namespace cannot be made: {}", words.trim()))
    }

    /// The script through which a daemon of the place enters the namespace.
    pub fn script(&self) -> String {
        format!("exec nsenter --mount=/proc/{}/ns/mnt \"$0\" \"$@\"", self.holder.pid())
    }

    /// A program inside the namespace.
    pub fn enter(&self, program: &str) -> Command {
        Command::new("nsenter")
            .arg(format!("--mount=/proc/{}/ns/mnt", self.holder.pid()))
            .arg(program)
    }

    /// A file of the data directory, as this process reaches it.
    pub fn file(&self, name: &str) -> PathBuf {
        let data = self.data.strip_prefix("/").expect("is absolute");
        PathBuf::from(format!("/proc/{}/root", self.holder.pid()))
            .join(data)
            .join(name)
    }

    /// Fills the file system to its last block.
    pub fn fill(&self) {
        let mut ballast = std::fs::File::create(self.file("ballast")).expect("creates");
        for block in [vec![0_u8; 1 << 16], vec![0; 1 << 10]] {
            while ballast.write_all(&block).is_ok() {}
        }
    }

    /// Makes room again.
    pub fn free(&self) {
        std::fs::remove_file(self.file("ballast")).expect("removes");
    }

    /// Mounts it again, read-only (`ro`) or not (`rw`). Nothing may have a file of it open for writing.
    pub fn remount(&self, mode: &str) {
        let command = self
            .enter("mount")
            .args(["-o", &format!("remount,{mode}")])
            .arg(&self.data)
            .stderr(Output::Capture { limit: 1 << 16 });
        let child = spawner().spawn(command).expect("nsenter starts");
        let ended = child.wait_with_output(HANG).expect("nsenter ends");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    }
}
