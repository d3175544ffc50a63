//! The checks of the worker protocol: the kit plays the daemon, and every byte that the worker gets is a check's.
//!
//! State: [`Peer`] (`peer.rs`) owns one worker process and the connection to it. Callers: the checks beside this file. A library bundle
//! is served by `synapse-worker`, an executable one by its own program: both keep the same rules
//! (`docs/worker-protocol.md`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use synapse_core::digest::sha256;
use synapse_core::engine::EngineKind as CoreKind;
use synapse_loader::process::{Finished, Output, spawner};
use synapse_loader::{Descriptor, start as start_command};
use synapse_transport::{Listener, name};
use synapse_wire::worker::message::{ArtifactFile, BatchItem, Budget, EngineKind, PromptHeader};
use synapse_wire::worker::{DEFAULT_MAX_FRAME, HostMessage, raw};

pub(crate) use peer::{Peer, Reply, type_of};

use crate::bench::Draw;
use crate::catalogue::{Outcome, Stop, Verdict, fail, skip};
use crate::json::Job;
use crate::subject::{Kind, Model, ModelFile, Subject};

pub(crate) mod end;
pub(crate) mod exchange;
mod peer;
pub(crate) mod start;

/// What the worker is told in `--nonce`.
pub(crate) const NONCE: &str = "5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e";
/// Longer than anything here takes on a busy machine.
pub(crate) const BOUND: Duration = Duration::from_secs(20);
/// No deadline, one thread.
pub(crate) const BUDGET: Budget = Budget {
    deadline_ms: None,
    threads: 1,
};

/// A request and its raw frame.
pub(crate) type Request = (HostMessage, Vec<u8>);

/// What a protocol check works with.
pub(crate) struct Desk {
    pub(crate) job: Job,
}

impl Desk {
    pub(crate) const fn new(job: Job) -> Self {
        Self { job }
    }

    /// The program that serves the bundle.
    pub(crate) fn program(&self) -> Result<&Path, Stop> {
        match &self.job.worker {
            Some(worker) => Ok(worker),
            None => skip("no program to serve the bundle"),
        }
    }

    /// The descriptor as discovery read it.
    pub(crate) fn descriptor(&self) -> Result<Descriptor, Stop> {
        Descriptor::from_json(&self.job.descriptor).or_else(|error| fail(error.to_string()))
    }

    /// The model of the first kind that the bundle serves and that there is a model for.
    pub(crate) fn first_model(&self) -> Result<Model, Stop> {
        let mut last = None;
        for kind in Kind::ALL {
            match self.model(kind) {
                Ok(model) => return Ok(model),
                Err(stop) => last = Some(stop),
            }
        }
        last.map_or_else(|| skip("no model"), Err)
    }

    /// The model of a kind: the author's, or drawn bytes for the first row of the descriptor.
    pub(crate) fn model(&self, kind: Kind) -> Result<Model, Stop> {
        let rows = self.descriptor()?.supports;
        let core = match kind {
            Kind::Embed => CoreKind::Embed,
            Kind::Rerank => CoreKind::Rerank,
            Kind::Generate => CoreKind::Generate,
        };
        let Some(row) = rows.iter().find(|row| row.kind == core) else {
            return skip(format!("no {} engine", kind.name()));
        };
        if let Some(path) = &self.job.subject {
            let models = Subject::read(path).or_else(fail)?.models;
            let found = models.into_iter().find(|model| model.kind == kind);
            return found.map_or_else(
                || skip(format!("conformance.toml names no model of kind {}", kind.name())),
                Ok,
            );
        }
        let path = self.job.work.join("weights");
        let mut draw = Draw(self.job.seed);
        let content: Vec<u8> = (0..4096).map(|_| draw.next().to_le_bytes()[0]).collect();
        if let Err(error) = std::fs::write(&path, content) {
            return fail(format!("the kit's own file {}: {error}", path.display()));
        }
        let role = "weights".to_owned();
        Ok(Model {
            kind,
            format: row.format.clone(),
            dtype: row.dtype.clone(),
            pooling: "mean".to_owned(),
            max_tokens: 128,
            vocabulary: 1000,
            output_normalized: false,
            extra: std::collections::BTreeMap::new(),
            files: vec![ModelFile { role, path }],
        })
    }

    /// Starts the worker with these settings and reads its HELLO. No HELLO_ACK yet.
    pub(crate) fn start_with(&self, settings: &[(String, String)]) -> Result<Peer, Stop> {
        let folder = self.job.work.join("run");
        if let Err(error) = std::fs::create_dir_all(&folder) {
            return fail(format!("the kit's own folder: {error}"));
        }
        let address = name::address(&folder, "w-1");
        let mut listener = Listener::bind(&address).or_else(|error| fail(format!("the kit's own socket: {error}")))?;
        let keep = Output::Capture { limit: 1 << 16 };
        let command = start_command::serve(self.program()?, &self.job.bundle, listener.address(), NONCE, settings)
            .env("SYNAPSE_WORKER_ID", "w-1")
            .dir(self.job.work.join("cwd"))
            .stdout(keep)
            .stderr(keep);
        let child = match spawner().spawn(command) {
            Ok(child) => child,
            Err(error) => return fail(format!("the worker does not start: {error}")),
        };
        let stream = match listener.accept(BOUND) {
            Ok(Some(stream)) => stream,
            Ok(None) => {
                let words = child.wait_with_output(Duration::from_millis(10));
                return fail(format!(
                    "the worker did not connect within {BOUND:?}{}",
                    tail(words.ok().as_ref())
                ));
            }
            Err(error) => return fail(format!("the kit's own socket: {error}")),
        };
        Peer::greet(stream, child)
    }

    pub(crate) fn start(&self) -> Result<Peer, Stop> {
        self.start_with(&self.job.settings)
    }

    /// A worker that was let in, with frames of at most `max_frame` bytes.
    pub(crate) fn ready_with(&self, max_frame: u32) -> Result<Peer, Stop> {
        let mut peer = self.start()?;
        peer.acknowledge(max_frame);
        Ok(peer)
    }

    pub(crate) fn ready(&self) -> Result<Peer, Stop> {
        self.ready_with(DEFAULT_MAX_FRAME)
    }

    /// A worker with a model of a kind loaded.
    pub(crate) fn loaded(&self, kind: Kind) -> Result<(Peer, Loaded), Stop> {
        let model = self.model(kind)?;
        let mut peer = self.ready()?;
        let loaded = peer.load(&model)?;
        Ok((peer, loaded))
    }

    /// A worker with the first model loaded that there is.
    pub(crate) fn any(&self) -> Result<(Peer, Loaded), Stop> {
        let kind = self.first_model()?.kind;
        self.loaded(kind)
    }
}

/// What a process said last, as the tail of a message.
pub(crate) fn tail(finished: Option<&Finished>) -> String {
    let text = finished.map(|finished| String::from_utf8_lossy(&finished.stderr).into_owned());
    let line = text
        .as_deref()
        .and_then(|text| text.lines().rfind(|line| !line.trim().is_empty()));
    line.map_or_else(String::new, |line| format!("; its last words: {line}"))
}

/// A loaded model as a worker named it.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) spec: Model,
    pub(crate) model_ref: u64,
    pub(crate) dims: u32,
    pub(crate) max_tokens: u32,
    pub(crate) memory_bytes: u64,
}

impl Loaded {
    /// Drawn items of these lengths.
    pub(crate) fn items(&self, salt: u64, lengths: &[usize]) -> Vec<Vec<i32>> {
        let mut draw = Draw(salt.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut longest = self.max_tokens as usize;
        if self.spec.kind == Kind::Generate {
            longest = longest.saturating_sub(16).max(1);
        }
        let mut id = || i32::try_from(draw.below(u64::from(self.spec.vocabulary))).unwrap_or(0);
        lengths
            .iter()
            .map(|length| (0..(*length).clamp(1, longest)).map(|_| id()).collect())
            .collect()
    }

    /// A request to compute these items: a batch, or a short generation after the first.
    pub(crate) fn request(&self, req_id: u64, items: &[Vec<i32>]) -> Request {
        let mut bytes = Vec::new();
        let model_ref = self.model_ref;
        if self.spec.kind == Kind::Generate {
            let ids = items.first().map_or(&[][..], Vec::as_slice);
            raw::put_i32(ids, &mut bytes);
            let message = HostMessage::Generate {
                req_id,
                model_ref,
                budget: BUDGET,
                max_tokens: 8,
                temperature: 0.0,
                top_p: 1.0,
                seed: 0,
                stop: Vec::new(),
                grammar: None,
                prompt: PromptHeader::Ids(crate::bench::count(ids.len())),
                raw_bytes: bytes.len() as u64,
            };
            return (message, bytes);
        }
        items.iter().for_each(|item| raw::put_i32(item, &mut bytes));
        let raw_bytes = bytes.len() as u64;
        let pairs = self.spec.kind == Kind::Rerank;
        let rows = items.iter().zip(0..).map(|(item, id)| BatchItem {
            id,
            n_tokens: crate::bench::count(item.len()),
            doc_start: pairs.then(|| crate::bench::count(item.len() / 2)),
        });
        let (items, budget, type_ids) = (rows.collect(), BUDGET, false);
        let message = if pairs {
            HostMessage::Rerank {
                req_id,
                model_ref,
                budget,
                items,
                type_ids,
                raw_bytes,
            }
        } else {
            HostMessage::EmbedBatch {
                req_id,
                model_ref,
                budget,
                items,
                type_ids,
                raw_bytes,
            }
        };
        (message, bytes)
    }
}

/// A kind as the protocol names it.
pub(crate) const fn wire_kind(kind: Kind) -> EngineKind {
    match kind {
        Kind::Embed => EngineKind::Embed,
        Kind::Rerank => EngineKind::Rerank,
        Kind::Generate => EngineKind::Generate,
    }
}

/// A model's files as LOAD names them: measured now.
pub(crate) fn files(model: &Model) -> Vec<ArtifactFile> {
    let measured = model.files.iter().map(|file| {
        let bytes = std::fs::read(&file.path).unwrap_or_default();
        ArtifactFile {
            role: file.role.clone(),
            path: absolute(&file.path).to_string_lossy().into_owned(),
            sha256: sha256(&bytes).to_string(),
            size: bytes.len() as u64,
        }
    });
    measured.collect()
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Runs a body for each kind that the bundle serves; skips when there is none.
pub(crate) fn each_kind(kinds: &[Kind], body: impl Fn(Kind) -> Verdict) -> Verdict {
    let mut ran = false;
    let mut skipped = Vec::new();
    for kind in kinds {
        match body(*kind) {
            Ok(()) => ran = true,
            Err(stop) if stop.outcome == Outcome::Skip => skipped.push(stop.message),
            Err(stop) => {
                let (outcome, message) = (stop.outcome, format!("{}: {}", kind.name(), stop.message));
                return Err(Stop { outcome, message });
            }
        }
    }
    if ran { Ok(()) } else { skip(skipped.join("; ")) }
}
