//! Loading, handles, unloading, memory (PC-18 to PC-24).

use synapse_plugin_api::{ArtifactFile, ErrorCode, KeyValue, ModelRef};

use crate::bench::{Batch, Bench, Draw, Lane, artifact, refused, runtime_config, said, went};
use crate::call::Call;
use crate::catalogue::{Check, Level, Run, Verdict, fail, skip};
use crate::process;
use crate::subject::{Kind, ModelFile};

pub(crate) const CHECKS: &[Check] = &[
    Check {
        id: "load-model",
        level: Level::Core,
        rules: &["PC-18", "PC-26"],
        says: "The model that conformance.toml names loads, and what the load gives makes sense.",
        why: "Without a model most of the contract cannot be looked at.",
        fix: "Ship a small model and conformance.toml in the bundle; give dims, max_tokens and max_concurrency.",
        run: Run::Library(model),
    },
    Check {
        id: "load-roles",
        level: Level::Core,
        rules: &["PC-18"],
        says: "A file's name means nothing: the same files under other names, in another order, give the same bits.",
        why: "Files lie in the host's store under names of its own.",
        fix: "Find a file by its role; do not look at its extension or beside it.",
        run: Run::Library(roles),
    },
    Check {
        id: "load-missing",
        level: Level::Core,
        rules: &["PC-19"],
        says: "A load without files, or whose file is gone or is a folder, is ARTIFACT_INVALID.",
        why: "The host tries another source or another lane, by the code.",
        fix: "Turn errors of opening and reading into ARTIFACT_INVALID, with the role in the message.",
        run: Run::Library(missing),
    },
    Check {
        id: "load-damage",
        level: Level::Fault,
        rules: &["PC-19", "PC-49"],
        says: "Cut and altered files give an error or a model, and never end the process.",
        why: "A digest proves identity, not harmlessness; an engine that can end its process runs in a worker.",
        fix: "Check sizes before you use them, bound nesting; or leave out risk = \"abort-safe\".",
        run: Run::Library(damage),
    },
    Check {
        id: "load-settings",
        level: Level::Core,
        rules: &["PC-20"],
        says: "A number that is 0 and an unknown key of extra are CONFIG_INVALID, and the key is named.",
        why: "A setting that nobody reads changes results that nobody expects.",
        fix: "List your keys (EXTRA_KEYS), and refuse the others by name.",
        run: Run::Library(settings),
    },
    Check {
        id: "load-fails-clean",
        level: Level::Core,
        rules: &["PC-21"],
        says: "Loads that fail leave no memory and no descriptor behind, and the next good one works.",
        why: "The host tries another lane; what a failed load kept would be lost.",
        fix: "Keep nothing of a model before the last step of load that can fail.",
        run: Run::Library(fails_clean),
    },
    Check {
        id: "load-handles",
        level: Level::Core,
        rules: &["PC-22"],
        says: "No handle is ever given twice.",
        why: "A late call must not reach another model.",
        fix: "Count handles up; do not use an index or an address.",
        run: Run::Library(handles),
    },
    Check {
        id: "load-two",
        level: Level::Full,
        rules: &["PC-22", "PC-23"],
        says: "Two models loaded at once give what each gives alone, also after the other is unloaded.",
        why: "Residency is the host's decision, model by model.",
        fix: "Keep nothing of a model in the engine or in statics.",
        run: Run::Library(two),
    },
    Check {
        id: "load-unload",
        level: Level::Core,
        rules: &["PC-23"],
        says: "An unloaded model is gone: it, and a handle that never was, are INVALID_ARGUMENT everywhere.",
        why: "A handle that still works after unload reads memory that was given back.",
        fix: "Remove the model from your table in unload, and look every handle up.",
        run: Run::Library(unload),
    },
    Check {
        id: "load-memory",
        level: Level::Full,
        rules: &["PC-24"],
        says: "memory_bytes and the report are bytes really held, within 10 % and 16 MiB.",
        why: "The host evicts by these figures.",
        fix: "Count weights and kept scratch, take them off at unload.",
        run: Run::Library(memory),
    },
];

fn model(bench: &Bench) -> Verdict {
    bench.kinds(&Kind::ALL, |kind| {
        let spec = bench.model(kind)?;
        let rows = bench.describe()?.supports;
        let known = |row: &synapse_plugin_api::EngineSupport| {
            row.kind == crate::bench::engine_kind(kind)
                && row.format == spec.format.as_str()
                && row.dtype == spec.dtype.as_str()
        };
        if !rows.iter().any(known) {
            return fail(format!(
                "the descriptor has no row for format {}, dtype {}",
                spec.format, spec.dtype
            ));
        }
        let engine = bench.engine(kind)?;
        let result = engine.load(Call::new(2).leaked(), &artifact(&spec.files), &runtime_config(&spec));
        let loaded = match result {
            Ok(loaded) => loaded,
            Err(error) if bench.subject()?.told => return fail(format!("load: {}", said(&error))),
            Err(error) => {
                return skip(format!(
                    "no model: the bundle has no conformance.toml, and drawn bytes are none: {}",
                    said(&error)
                ));
            }
        };
        if kind == Kind::Embed && loaded.dims == 0 {
            return fail("dims is 0, expected the length of a vector");
        }
        if loaded.max_tokens == 0 || loaded.max_tokens > spec.max_tokens {
            let (found, asked) = (loaded.max_tokens, spec.max_tokens);
            return fail(format!(
                "max_tokens is {found}, expected 1 to the {asked} of the settings"
            ));
        }
        went("unload", engine.unload(loaded.model))
    })
}

/// The bits of a small batch on a model.
fn bits(lane: &Lane<'_>, model: ModelRef) -> Result<Vec<u32>, crate::catalogue::Stop> {
    let batch = Batch::of(&lane.items(4, &[5, 9]));
    let mut out = vec![f32::NAN; lane.out_len(batch.len())];
    let values = lane
        .engine
        .compute(Call::new(1).leaked(), model, &batch, &mut out, lane.loaded.dims);
    Ok(went("a batch", values)?.iter().map(|value| value.to_bits()).collect())
}

fn roles(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let folder = bench.job.work.join("ä folder");
        if let Err(error) = std::fs::create_dir_all(&folder) {
            return fail(format!("the kit's own folder: {error}"));
        }
        let mut files = Vec::new();
        for (nth, file) in lane.spec.files.iter().enumerate() {
            let path = folder.join(format!("{} file {nth}.x", lane.kind.name()));
            if let Err(error) = std::fs::copy(&file.path, &path) {
                return fail(format!("the kit's own copy of {}: {error}", file.path.display()));
            }
            let role = file.role.clone();
            files.push(ModelFile { role, path });
        }
        files.reverse();
        let call = Call::new(2).leaked();
        let result = lane.engine.load(call, &artifact(&files), &runtime_config(&lane.spec));
        let other = went("a load of the same files under other names", result)?;
        let same = bits(lane, other.model)? == bits(lane, lane.loaded.model)?;
        went("unload", lane.engine.unload(other.model))?;
        if same {
            Ok(())
        } else {
            fail("other bits from the same files under other names")
        }
    })
}

fn missing(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let codes = [ErrorCode::ARTIFACT_INVALID];
        let config = runtime_config(&lane.spec);
        let load = |artifact| lane.engine.load(Call::new(2).leaked(), &artifact, &config);
        let none = [ErrorCode::ARTIFACT_INVALID, ErrorCode::CONFIG_INVALID];
        refused("a load without files", &load(artifact(&[])), &none)?;
        let absent = bench.job.work.join("absent");
        for (what, path) in [("a file that is gone", &absent), ("a folder", &bench.job.work)] {
            let mut files = artifact(&lane.spec.files);
            if let Some(file) = files.files.first_mut() {
                let path = path.to_string_lossy().into_owned();
                *file = ArtifactFile {
                    path: path.into(),
                    ..file.clone()
                };
            }
            refused(&format!("a load of {what}"), &load(files), &codes)?;
        }
        Ok(())
    })
}

fn damage(bench: &Bench) -> Verdict {
    if bench.job.abort_capable {
        return skip("the bundle may end its process: it runs in a worker only");
    }
    bench.lanes(&Kind::ALL, |lane| {
        let Some(file) = lane.spec.files.first() else {
            return skip("the model has no files");
        };
        let Ok(content) = std::fs::read(&file.path) else {
            return fail(format!("the kit cannot read {}", file.path.display()));
        };
        let mut draw = Draw(bench.seed());
        for round in 0..24u64 {
            let mut bytes = content.clone();
            let length = bytes.len() as u64;
            if round < 8 {
                // Half of the cuts are in the header, where lengths stand.
                let bound = if round % 2 == 0 { length.min(64) } else { length };
                bytes.truncate(usize::try_from(draw.below(bound)).unwrap_or(0));
            } else {
                let near = if round % 2 == 0 { length.min(256) } else { length };
                for _ in 0..8 {
                    let at = usize::try_from(draw.below(near)).unwrap_or(0);
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= 1 << draw.below(8);
                    }
                }
            }
            let path = bench.job.work.join("damaged");
            if std::fs::write(&path, bytes).is_err() {
                return fail("the kit cannot write its own file");
            }
            let mut files = lane.spec.files.clone();
            if let Some(first) = files.first_mut() {
                first.path = path;
            }
            let config = runtime_config(&lane.spec);
            match lane.engine.load(Call::new(2).leaked(), &artifact(&files), &config) {
                Ok(loaded) => went(
                    "unload of a model from an altered file",
                    lane.engine.unload(loaded.model),
                )?,
                Err(error) if error.state.0 == 0 && error.code != ErrorCode::PANIC => {}
                Err(error) => return fail(format!("round {round}: {}, expected a usable engine", said(&error))),
            }
        }
        bits(lane, lane.loaded.model).map(|_| ())
    })
}

fn settings(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let codes = [ErrorCode::CONFIG_INVALID];
        refused("max_tokens = 0", &lane.load(|config| config.max_tokens = 0), &codes)?;
        refused("max_batch = 0", &lane.load(|config| config.max_batch = 0), &codes)?;
        refused(
            "max_batch_tokens = 0",
            &lane.load(|config| config.max_batch_tokens = 0),
            &codes,
        )?;
        refused("threads = 0", &lane.load(|config| config.threads = 0), &codes)?;
        let key = "no-such-key";
        let unknown = lane.load(|config| config.extra.push(KeyValue::new(key, "1")));
        refused("extra no-such-key", &unknown, &codes)?;
        match unknown {
            Err(error) if !error.message.contains(key) => {
                fail(format!("the refusal does not name {key}: {}", said(&error)))
            }
            _ => Ok(()),
        }
    })
}

fn fails_clean(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let absent = vec![ModelFile {
            role: lane.spec.files[0].role.clone(),
            path: bench.job.work.join("absent"),
        }];
        let bad = || {
            let files = artifact(&absent);
            lane.engine
                .load(Call::new(2).leaked(), &files, &runtime_config(&lane.spec))
        };
        let worse = || {
            let files = artifact(&[]);
            lane.engine
                .load(Call::new(2).leaked(), &files, &runtime_config(&lane.spec))
        };
        // The first round may make what is made once.
        let (_, _) = (bad(), worse());
        let before = (lane.engine.memory().model_bytes, process::descriptors());
        for _ in 0..20 {
            let (_, _) = (bad(), worse());
        }
        let after = (lane.engine.memory().model_bytes, process::descriptors());
        if after != before {
            return fail(format!(
                "40 failed loads: {} bytes of models and {} descriptors before, {} and {} after",
                before.0, before.1, after.0, after.1
            ));
        }
        let good = went("a good load after them", lane.load(|_| {}))?;
        went("unload", lane.engine.unload(good.model))
    })
}

fn handles(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let (mut given, mut given_back) = (vec![lane.loaded.model], Vec::new());
        for nth in 0..6 {
            let loaded = went("a load", lane.load(|_| {}))?;
            if given.contains(&loaded.model) {
                return fail(format!("handle {} was given twice", loaded.model.0));
            }
            given.push(loaded.model);
            // Handles of models that are still loaded, and of some that are not.
            if nth % 2 == 0 {
                went("unload", lane.engine.unload(loaded.model))?;
                given_back.push(loaded.model);
            }
        }
        let held = given.iter().skip(1).filter(|model| !given_back.contains(model));
        held.copied()
            .try_for_each(|model| went("unload", lane.engine.unload(model)))
    })
}

fn two(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let alone = bits(lane, lane.loaded.model)?;
        let second = went("a second load", lane.load(|_| {}))?;
        for model in [second.model, lane.loaded.model, second.model] {
            if bits(lane, model)? != alone {
                return fail("other bits with two models loaded than with one");
            }
        }
        went("unload", lane.engine.unload(second.model))?;
        if bits(lane, lane.loaded.model)? == alone {
            Ok(())
        } else {
            fail("other bits after another model was unloaded")
        }
    })
}

fn unload(bench: &Bench) -> Verdict {
    bench.lanes(&Kind::ALL, |lane| {
        let gone = went("a load", lane.load(|_| {}))?.model;
        went("unload", lane.engine.unload(gone))?;
        let codes = [ErrorCode::INVALID_ARGUMENT];
        let batch = Batch::of(&lane.items(5, &[4]));
        for (what, model) in [
            ("an unloaded model", gone),
            ("a handle that never was", ModelRef(u64::MAX - 7)),
        ] {
            let mut out = vec![0.0; lane.out_len(batch.len())];
            let computed = lane
                .engine
                .compute(Call::new(1).leaked(), model, &batch, &mut out, lane.loaded.dims);
            refused(&format!("a call on {what}"), &computed, &codes)?;
            refused(&format!("unload of {what}"), &lane.engine.unload(model), &codes)?;
        }
        bits(lane, lane.loaded.model).map(|_| ())
    })
}

fn memory(bench: &Bench) -> Verdict {
    /// What an allocator and a runtime may keep for themselves.
    const SLACK: u64 = 16 << 20;
    bench.lanes(&Kind::ALL, |lane| {
        let before = (process::resident(), lane.engine.memory().model_bytes);
        let second = went("a second load", lane.load(|_| {}))?;
        bits(lane, second.model)?;
        let after = (process::resident(), lane.engine.memory().model_bytes);
        let (said, reported) = (second.memory_bytes, after.1.saturating_sub(before.1));
        if said.abs_diff(reported) > said.max(reported) / 10 + (1 << 20) {
            return fail(format!("memory_bytes says {said}, and the report grew by {reported}"));
        }
        let grown = after.0.saturating_sub(before.0);
        // A mapped file counts where it is touched, so only a report far above what came is a lie.
        if before.0 > 0 && said > grown.max(file_bytes(lane)) * 11 / 10 + SLACK {
            return fail(format!(
                "memory_bytes says {said}; the process grew by {grown}, the files have {}",
                file_bytes(lane)
            ));
        }
        if grown > said * 11 / 10 + SLACK {
            return fail(format!("memory_bytes says {said}, and the process grew by {grown}"));
        }
        went("unload", lane.engine.unload(second.model))?;
        let end = lane.engine.memory().model_bytes;
        if end == before.1 {
            Ok(())
        } else {
            fail(format!(
                "the report says {end} bytes of models after unload, {} before the load",
                before.1
            ))
        }
    })
}

fn file_bytes(lane: &Lane<'_>) -> u64 {
    artifact(&lane.spec.files).files.iter().map(|file| file.size).sum()
}
