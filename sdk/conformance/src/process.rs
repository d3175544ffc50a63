//! What the system says of this process: descriptors, threads, children, signals, memory.
//!
//! State: none. Callers: the checks of manners, in a process of their own. Empty answers where the system has no `/proc`.

use std::fs;
use std::path::Path;

/// The names in a folder, sorted.
fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// How many descriptors are open.
pub(crate) fn descriptors() -> usize {
    names("/proc/self/fd").len()
}

/// What the descriptors lead to.
pub(crate) fn targets() -> Vec<String> {
    let links = names("/proc/self/fd").into_iter();
    links
        .filter_map(|name| fs::read_link(Path::new("/proc/self/fd").join(name)).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .collect()
}

/// Internet sockets that this process has open, by the table that lists them.
pub(crate) fn internet_sockets() -> Vec<String> {
    let ours: Vec<String> = targets()
        .iter()
        .filter_map(|target| Some(target.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let mut found = Vec::new();
    for table in ["tcp", "tcp6", "udp", "udp6", "raw", "raw6"] {
        let text = fs::read_to_string(format!("/proc/self/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            // The inode is the tenth column of every table.
            let inode = line.split_whitespace().nth(9);
            if inode.is_some_and(|inode| ours.iter().any(|ours| ours == inode)) {
                found.push(format!(
                    "{table} {}",
                    line.split_whitespace().nth(1).unwrap_or_default()
                ));
            }
        }
    }
    found
}

/// The threads of this process.
pub(crate) fn threads() -> Vec<String> {
    names("/proc/self/task")
}

/// Children of this process, ended ones that nobody waited for included.
pub(crate) fn children() -> Vec<String> {
    let mut found = Vec::new();
    for thread in threads() {
        let text = fs::read_to_string(format!("/proc/self/task/{thread}/children")).unwrap_or_default();
        found.extend(text.split_whitespace().map(str::to_owned));
    }
    found
}

/// A field of the process's status, for example `SigCgt`.
pub(crate) fn status(field: &str) -> Option<String> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// A set of signals of the process's status, without the two that the C library takes when it starts its first thread.
pub(crate) fn signals(field: &str) -> Option<u64> {
    let mask = u64::from_str_radix(&status(field)?, 16).ok()?;
    // Bit 31 is signal 32.
    Some(mask & !(0b11 << 31))
}

/// Resident memory in bytes.
pub(crate) fn resident() -> u64 {
    let kilobytes = status("VmRSS").and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}
