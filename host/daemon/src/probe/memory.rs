//! Resident memory of the process that holds a model.
//!
//! State: none. Caller: `run.rs`. Not known here: why it is wanted.

use crate::lane::loaded::Loaded;

/// Bytes of a page where the system does not say otherwise; `statm` counts in pages.
const PAGE: u64 = 4096;

/// Bytes, where the system says: of the worker where the model is in one, of this process otherwise.
pub(super) fn resident(loaded: &Loaded) -> Option<u64> {
    let process = match loaded.engine.supervisor() {
        Some(supervisor) => supervisor.status().pid?.to_string(),
        None => "self".to_owned(),
    };
    let statm = std::fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    pages(&statm).map(|pages| pages * page_size())
}

/// The second number of a `statm` line: resident pages.
fn pages(statm: &str) -> Option<u64> {
    statm.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn page_size() -> u64 {
    u64::try_from(rustix::param::page_size()).unwrap_or(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_pages_are_the_second_number() {
        assert_eq!(pages("2500 1200 300 10 0 900 0\n"), Some(1200));
        assert_eq!(pages(""), None);
        assert_eq!(pages("2500 many"), None);
    }
}
