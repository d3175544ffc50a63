//! What a plugin does to its host and its process (PC-50 to PC-55).

use std::collections::BTreeMap;
use std::fs;
use std::hint::black_box;
use std::path::Path;

use synapse_core::digest::sha256;
use synapse_plugin_api::ErrorCode;

use crate::bench::{Bench, said, went};
use crate::catalogue::{Check, Level, Run, Verdict, fail, skip};
use crate::check::compute::probe;
use crate::process;
use crate::subject::Kind;

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "host-services",
        level: Level::Core,
        rules: &["PC-50"],
        says: "What is asked of the host's services is well-formed: sizes, alignments, names.",
        why: "A host refuses the rest, and the figure or the memory is missing.",
        fix: "The message has the request; names of metrics are [a-z0-9_], alignments powers of two.",
        run: Run::Library(services),
    },
    Check {
        id: "host-memory",
        level: Level::Core,
        rules: &["PC-52"],
        says: "Every block from alloc is given back, once, with its size and alignment, when its model or engine goes.",
        why: "Admission needs true figures; what is not given back is charged for ever.",
        fix: "Own blocks by a type that frees them (HostBuffer).",
        run: Run::Library(memory),
    },
    Check {
        id: "host-refuses",
        level: Level::Fault,
        rules: &["PC-52"],
        says: "Memory that is refused at any request is OUT_OF_MEMORY, and the engine works afterwards.",
        why: "A lane's budget ends; the process must not.",
        fix: "Test what alloc gives for null, and undo what the call had begun.",
        run: Run::Library(refuses),
    },
    Check {
        id: "quiet",
        level: Level::Core,
        rules: &["PC-51"],
        says: "Nothing is written to standard output or standard error.",
        why: "A worker's output is a log, and an operator's terminal is not yours.",
        fix: "Log through the host; set the native library's log callback; no println.",
        run: Run::Silent(life),
    },
    Check {
        id: "files",
        level: Level::Core,
        rules: &["PC-53"],
        says: "Files are written below scratch_dir only, and the bundle stays as it was.",
        why: "Bundles are staged by digest; a home folder belongs to its user.",
        fix: "Ask the host for scratch_dir; turn caches of native libraries off or lead them there.",
        run: Run::Library(files),
    },
    Check {
        id: "process",
        level: Level::Core,
        rules: &["PC-54"],
        says: "Environment, working directory, signal handlers, floating-point modes and children stay as they were.",
        why: "The process is shared.",
        fix: "The message names what changed; look for it in native libraries' set-up too.",
        run: Run::Library(manners),
    },
    Check {
        id: "network",
        level: Level::Full,
        rules: &["PC-55"],
        says: "No internet socket is open after loading and computing.",
        why: "A local daemon is local.",
        fix: "Turn telemetry and downloads of native libraries off.",
        run: Run::Library(network),
    },
    Check {
        id: "no-growth",
        level: Level::Full,
        rules: &["PC-21", "PC-23"],
        says: "Twenty loads, calls and unloads leave no more descriptors, threads and memory than the first two.",
        why: "A daemon runs for months.",
        fix: "Look for files that stay open, threads that are started a load, tables that only grow.",
        run: Run::Library(growth),
    },
];

/// Loads and computes every kind.
fn life(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        went("a batch", lane.values(&lane.items(90, &[9, 3]))).map(|_| ())
    })
}

fn services(bench: &Bench) -> Verdict {
    life(bench)?;
    match bench.host.notes().into_iter().find(|note| !note.starts_with("free")) {
        None => Ok(()),
        Some(note) => fail(note),
    }
}

fn memory(bench: &Bench) -> Verdict {
    life(bench)?;
    if let Some(note) = bench.host.notes().into_iter().find(|note| note.starts_with("free")) {
        return fail(note);
    }
    match bench.host.held() {
        0 => Ok(()),
        held => fail(format!(
            "{held} bytes are held after every model was unloaded and every engine dropped"
        )),
    }
}

fn refuses(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let before = bench.host.allocations();
        let second = went("a load", lane.load(|_| {}))?;
        let items = lane.items(91, &[7, 7]);
        let right = went("a batch", lane.values(&items))?;
        went("unload", lane.engine.unload(second.model))?;
        let asked = bench.host.allocations() - before;
        if asked == 0 {
            return skip("the engine gets no memory from the host");
        }
        for nth in 1..=asked.min(20) {
            bench.host.refuse_from(nth);
            let loaded = lane.load(|_| {});
            let computed = lane.values(&items);
            bench.host.refuse_from(0);
            for (what, error) in [("a load", loaded.as_ref().err()), ("a call", computed.as_ref().err())] {
                match error {
                    Some(error) if error.code != ErrorCode::OUT_OF_MEMORY || error.state.0 != 0 => {
                        return fail(format!("{what} whose memory was refused: {}", said(error)));
                    }
                    _ => {}
                }
            }
            if let Ok(loaded) = loaded {
                went("unload", lane.engine.unload(loaded.model))?;
            }
            if went("a batch after memory was refused", lane.values(&items))? != right {
                return fail("other values after memory was refused");
            }
        }
        Ok(())
    })
}

/// Every file below a folder with its digest.
fn content(folder: &Path, into: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            content(&path, into);
        } else {
            let digest = fs::read(&path).map_or_else(|error| error.to_string(), |bytes| sha256(&bytes).to_string());
            into.insert(path.display().to_string(), digest);
        }
    }
}

fn files(bench: &Bench) -> Verdict {
    let places = ["home", "tmp", "cwd"].map(|name| bench.job.work.join(name));
    let all = || {
        let mut found = BTreeMap::new();
        for folder in places.iter().chain([&bench.job.bundle]) {
            content(folder, &mut found);
        }
        found
    };
    let before = all();
    life(bench)?;
    bench.module()?.shutdown()();
    let after = all();
    let changed = after.iter().find(|(path, digest)| before.get(*path) != Some(digest));
    match changed
        .map(|(path, _)| path)
        .or_else(|| before.keys().find(|path| !after.contains_key(*path)))
    {
        None => Ok(()),
        Some(path) => {
            let path = path.replace(&*bench.job.work.to_string_lossy(), "…");
            fail(format!("{path} was written or removed"))
        }
    }
}

/// What the process looks like to everybody in it.
#[derive(PartialEq)]
struct Shared {
    environment: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    directory: Option<std::path::PathBuf>,
    caught: Option<u64>,
    ignored: Option<u64>,
    umask: Option<String>,
    children: Vec<String>,
    subnormal: u64,
    thirds: [u64; 2],
}

impl Shared {
    fn now() -> Self {
        let mut environment: Vec<_> = std::env::vars_os().collect();
        environment.sort();
        // Half of the smallest normal value is 0 where subnormal values are flushed; a third tells the rounding mode.
        let third = |sign: f64| (black_box(sign) / black_box(3.0)).to_bits();
        Self {
            environment,
            directory: std::env::current_dir().ok(),
            caught: process::signals("SigCgt"),
            ignored: process::signals("SigIgn"),
            umask: process::status("Umask"),
            children: process::children(),
            subnormal: (black_box(f64::MIN_POSITIVE) / black_box(2.0)).to_bits(),
            thirds: [third(1.0), third(-1.0)],
        }
    }
}

fn manners(bench: &Bench) -> Verdict {
    let before = Shared::now();
    bench.module()?;
    bench.lanes(&Kind::ALL, |lane| {
        probe(lane)?;
        let after = Shared::now();
        let changed = [
            ("the environment", before.environment != after.environment),
            ("the working directory", before.directory != after.directory),
            ("the set of caught signals", before.caught != after.caught),
            ("the set of ignored signals", before.ignored != after.ignored),
            ("the umask", before.umask != after.umask),
            ("the list of child processes", before.children != after.children),
            ("the treatment of subnormal floats", before.subnormal != after.subnormal),
            ("the rounding mode", before.thirds != after.thirds),
        ];
        match changed.iter().find(|(_, changed)| *changed) {
            None => Ok(()),
            Some((what, _)) => fail(format!("{what} changed while the engine was made, loaded and called")),
        }
    })
}

fn network(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        probe(lane)?;
        match process::internet_sockets().first() {
            None => Ok(()),
            Some(socket) => fail(format!("an internet socket is open: {socket}")),
        }
    })
}

fn growth(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let round = || {
            let loaded = went("a load", lane.load(|_| {}))?;
            went("a batch", lane.values(&lane.items(92, &[11])))?;
            went("unload", lane.engine.unload(loaded.model))
        };
        let now = || (process::descriptors(), process::threads().len(), process::resident());
        round()?;
        round()?;
        let before = now();
        for _ in 0..20 {
            round()?;
        }
        let after = now();
        if after.0 > before.0 || after.1 > before.1 {
            return fail(format!(
                "{} descriptors and {} threads before twenty rounds, {} and {} after",
                before.0, before.1, after.0, after.1
            ));
        }
        let (grown, bound) = (after.2.saturating_sub(before.2), 32 << 20);
        if grown > bound {
            return fail(format!("twenty rounds took {grown} bytes, expected at most {bound}"));
        }
        Ok(())
    })
}
