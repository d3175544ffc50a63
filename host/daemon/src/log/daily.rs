//! The log files: `synapse.<YYYY-MM-DD>.log`, one for each UTC day, the last seven kept (LOG-08, OQ-16).
//!
//! State: today's open file. Callers: `log/mod.rs`. Not known here: what a line says. The clock is an argument. A day's
//! file stops growing at 64 MiB; a line then says so once.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use super::line::Utc;

/// Files kept, today's included.
const KEPT: usize = 7;
/// Bytes of one day's file.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The file of the day.
#[derive(Debug)]
pub struct DailyFile {
    folder: PathBuf,
    today: Mutex<Today>,
}

#[derive(Debug)]
struct Today {
    day: String,
    file: Option<File>,
    bytes: u64,
}

impl DailyFile {
    /// Opens the file of `now`'s day in `folder`, which is made private when it does not exist.
    ///
    /// # Errors
    /// The folder or the file cannot be made.
    pub fn open(folder: PathBuf, now: SystemTime) -> std::io::Result<Self> {
        crate::paths::private_dir(&folder)?;
        let today = Self::begin(&folder, Utc::of(now).day())?;
        Ok(Self {
            folder,
            today: Mutex::new(today),
        })
    }

    /// Opens a day's file and removes those that are too old.
    fn begin(folder: &Path, day: String) -> std::io::Result<Today> {
        let path = folder.join(format!("synapse.{day}.log"));
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path)?;
        let bytes = file.metadata()?.len();
        remove_old(folder);
        Ok(Today {
            day,
            file: Some(file),
            bytes,
        })
    }

    /// Appends a line to the file of `now`'s day. A file that cannot be written loses the line: there is nowhere to
    /// complain, and the daemon goes on.
    pub fn append(&self, line: &str, now: SystemTime) {
        let mut today = self.today.lock().unwrap_or_else(PoisonError::into_inner);
        let day = Utc::of(now).day();
        if day != today.day {
            *today = Self::begin(&self.folder, day.clone()).unwrap_or(Today {
                day,
                file: None,
                bytes: 0,
            });
        }
        let length = u64::try_from(line.len()).unwrap_or(u64::MAX);
        let before = today.bytes;
        today.bytes = before.saturating_add(length);
        let Some(file) = &mut today.file else { return };
        if before.saturating_add(length) <= MAX_FILE_BYTES {
            let _ = file.write_all(line.as_bytes());
        } else if before <= MAX_FILE_BYTES {
            let _ = file.write_all(b"(this day's file is full; further lines are dropped until tomorrow)\n");
        }
    }
}

/// Removes all but the newest files. The names sort by their days.
fn remove_old(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| is_log_name(name))
        .collect();
    names.sort_unstable();
    for name in names.iter().take(names.len().saturating_sub(KEPT)) {
        let _ = std::fs::remove_file(folder.join(name));
    }
}

/// Whether the name is one of ours: `synapse.YYYY-MM-DD.log`.
fn is_log_name(name: &str) -> bool {
    name.strip_prefix("synapse.")
        .and_then(|rest| rest.strip_suffix(".log"))
        .is_some_and(|day| {
            day.len() == 10
                && day.bytes().enumerate().all(|(at, byte)| {
                    if at == 4 || at == 7 {
                        byte == b'-'
                    } else {
                        byte.is_ascii_digit()
                    }
                })
        })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn day(number: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(number * 86_400)
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }

    /// Proves LOG-08.
    #[test]
    fn midnight_in_utc_starts_another_file() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("logs");
        let midnight = day(20_000);
        let log = DailyFile::open(folder.clone(), midnight - Duration::from_millis(1)).unwrap();
        log.append("before\n", midnight - Duration::from_millis(1));
        log.append("after\n", midnight);
        assert_eq!(names(&folder), ["synapse.2024-10-03.log", "synapse.2024-10-04.log"]);
        assert_eq!(
            std::fs::read_to_string(folder.join("synapse.2024-10-03.log")).unwrap(),
            "before\n"
        );
        assert_eq!(
            std::fs::read_to_string(folder.join("synapse.2024-10-04.log")).unwrap(),
            "after\n"
        );
        drop(log);
        DailyFile::open(folder.clone(), midnight)
            .unwrap()
            .append("again\n", midnight);
        assert_eq!(
            std::fs::read_to_string(folder.join("synapse.2024-10-04.log")).unwrap(),
            "after\nagain\n"
        );
    }

    #[test]
    fn seven_files_are_kept_and_foreign_ones_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("synapse.notes.log"), "mine").unwrap();
        let log = DailyFile::open(dir.path().to_owned(), day(0)).unwrap();
        for number in 1..10 {
            log.append("line\n", day(number));
        }
        let mut expected: Vec<String> = (4..=10).map(|day| format!("synapse.1970-01-{day:02}.log")).collect();
        expected.push(String::from("synapse.notes.log"));
        assert_eq!(names(dir.path()), expected);
    }

    #[test]
    fn a_day_has_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("synapse.1970-01-01.log");
        File::create(&path).unwrap().set_len(MAX_FILE_BYTES - 4).unwrap();
        let log = DailyFile::open(dir.path().to_owned(), day(0)).unwrap();
        log.append("abc\n", day(0));
        let full = std::fs::metadata(&path).unwrap().len();
        assert_eq!(full, MAX_FILE_BYTES);
        log.append("d\n", day(0));
        let told = std::fs::metadata(&path).unwrap().len();
        assert!(told > full);
        log.append("e\n", day(0));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), told);
    }
}
