//! What the system's files say about the machine: the only I/O of this crate.
//!
//! State: none; [`MachineFacts::read`] reads below a root folder, which tests choose. A file that is not there leaves
//! `unknown`: another machine than one that has it, and never an error. On systems without `/proc` everything is
//! `unknown` except the system's name, until its seam is written.

use std::fs;
use std::path::Path;

/// CPU flags that can choose another kernel in an engine: x86-64 first, then Arm.
const NUMERIC_FEATURES: [&str; 26] = [
    "sse4_1",
    "sse4_2",
    "ssse3",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "bmi2",
    "avx512f",
    "avx512bw",
    "avx512cd",
    "avx512dq",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "avx_vnni",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimdhp",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
];

/// Facts of the machine, whichever engine runs on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineFacts {
    /// `SYSTEM ID VERSION KERNEL`.
    pub os_build: String,
    /// Display and compute devices on the bus, as `pci:VENDOR:DEVICE`.
    pub gpus: Vec<String>,
    /// The CPU's flags that can choose another kernel.
    pub cpu_features: Vec<String>,
    /// Memory that the system has.
    pub memory_bytes: Option<u64>,
    /// The chip's name on macOS; `None` elsewhere (CERT-07).
    pub chip: Option<String>,
}

impl MachineFacts {
    /// Reads the files below `root`, which is `/` outside of tests.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let release = text("etc/os-release");
        let field = |name: &str| {
            let value = release
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            value
                .map_or("unknown", |value| value.trim_matches(['"', '\'']))
                .to_owned()
        };
        let kernel = text("proc/sys/kernel/osrelease");
        let kernel = if kernel.trim().is_empty() {
            "unknown"
        } else {
            kernel.trim()
        };
        Self {
            os_build: format!(
                "{} {} {} {kernel}",
                std::env::consts::OS,
                field("ID"),
                field("VERSION_ID")
            ),
            gpus: gpus(&root.join("sys/bus/pci/devices")),
            cpu_features: cpu_features(&text("proc/cpuinfo")),
            memory_bytes: memory_bytes(&text("proc/meminfo")),
            chip: None,
        }
    }
}

/// The flags of the first CPU: `flags` on x86, `Features` on Arm.
fn cpu_features(cpuinfo: &str) -> Vec<String> {
    let flags = cpuinfo.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        matches!(name.trim(), "flags" | "Features").then_some(value)
    });
    let mut found: Vec<String> = flags
        .unwrap_or_default()
        .split_whitespace()
        .filter(|flag| NUMERIC_FEATURES.contains(flag))
        .map(str::to_owned)
        .collect();
    found.sort();
    found.dedup();
    found
}

fn memory_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}

/// Devices of the classes display (0x03) and processing accelerator (0x12).
fn gpus(devices: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(devices) else {
        return Vec::new();
    };
    let id = |folder: &Path, name: &str| {
        let text = fs::read_to_string(folder.join(name)).ok()?;
        Some(text.trim().trim_start_matches("0x").to_owned())
    };
    let mut found: Vec<String> = entries
        .filter_map(|entry| {
            let folder = entry.ok()?.path();
            let class = id(&folder, "class")?;
            let counts = class.starts_with("03") || class.starts_with("12");
            let (vendor, device) = (id(&folder, "vendor")?, id(&folder, "device")?);
            counts.then(|| format!("pci:{vendor}:{device}"))
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("has one")).expect("a folder");
            fs::write(path, text).expect("writes");
        };
        write("etc/os-release", "NAME=\"Debian\"\nID=debian\nVERSION_ID=\"13\"\n");
        write("proc/sys/kernel/osrelease", "6.12.1-amd64\n");
        write(
            "proc/cpuinfo",
            "processor\t: 0\ncpu MHz\t\t: 2400.1\nflags\t\t: fpu avx2 sse4_2 fma\n",
        );
        write("proc/meminfo", "MemTotal:       24000000 kB\nMemFree:        100 kB\n");
        for (slot, class, device) in [
            ("0", "0x030200", "0x2335"),
            ("1", "0x020000", "0x1234"),
            ("2", "0x120000", "0x1"),
        ] {
            write(&format!("sys/bus/pci/devices/{slot}/class"), &format!("{class}\n"));
            write(&format!("sys/bus/pci/devices/{slot}/vendor"), "0x10de\n");
            write(&format!("sys/bus/pci/devices/{slot}/device"), &format!("{device}\n"));
        }
        root
    }

    #[test]
    fn the_files_are_read_and_what_is_volatile_is_not() {
        let root = machine();
        let facts = MachineFacts::read(root.path());
        let os = std::env::consts::OS;
        assert_eq!(facts.os_build, format!("{os} debian 13 6.12.1-amd64"));
        assert_eq!(facts.gpus, ["pci:10de:1", "pci:10de:2335"], "the network card is none");
        assert_eq!(facts.cpu_features, ["avx2", "fma", "sse4_2"]);
        assert_eq!(
            (facts.memory_bytes, facts.chip.as_deref()),
            (Some(24_000_000 << 10), None)
        );
        fs::write(
            root.path().join("proc/cpuinfo"),
            "cpu MHz : 800\nflags : sse4_2 fma fpu avx2\n",
        )
        .expect("writes");
        fs::write(
            root.path().join("proc/meminfo"),
            "MemTotal: 24000000 kB\nMemFree: 7 kB\n",
        )
        .expect("writes");
        assert_eq!(MachineFacts::read(root.path()), facts);
    }

    #[test]
    fn missing_files_are_unknown_and_no_error() {
        let empty = tempfile::tempdir().expect("a folder");
        let facts = MachineFacts::read(empty.path());
        let os = std::env::consts::OS;
        assert_eq!(facts.os_build, format!("{os} unknown unknown unknown"));
        assert!(facts.gpus.is_empty() && facts.cpu_features.is_empty() && facts.memory_bytes.is_none());
    }

    /// Proves CERT-04.
    #[test]
    fn this_machine_reads_the_same_twice() {
        let facts = MachineFacts::read(Path::new("/"));
        assert_eq!(facts, MachineFacts::read(Path::new("/")));
        if cfg!(target_os = "linux") {
            assert!(facts.memory_bytes.is_some_and(|bytes| bytes > 1 << 20), "{facts:?}");
        }
    }
}
