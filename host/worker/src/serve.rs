//! Serving one bundle's engines to the daemon over worker protocol 3.
//!
//! 1. The bundle is loaded, the socket connected, HELLO sent, HELLO_ACK awaited; anything else ends the process.
//! 2. A thread of its own reads the socket, so that CANCEL and the daemon's end are seen while an engine computes.
//! 3. The main thread runs one request at a time and answers each exactly once. Every request's raw frame is read
//!    with its header, whatever becomes of the request, so the stream's position is always known (fault S3).
//! 4. SHUTDOWN is a request like the others: what runs is finished, then the process exits with 0.
//!
//! State: the socket and the loaded models. Callers: `main`. Not known here: who supervises, and why.

mod control;
mod engines;
mod link;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use synapse_core::engine::EngineKind;
use synapse_loader::Plugin;
use synapse_wire::worker::message::{self, BundleHello, EngineHello, EngineState};
use synapse_wire::worker::{DEFAULT_MAX_FRAME, HostMessage, PROTOCOL_VERSION, WorkerMessage};

use control::Cancelled;
use engines::Engines;
use link::{Incoming, Link};

/// How long a call may go on after the daemon is gone.
const ORPHAN_GRACE: Duration = Duration::from_secs(1);

/// What the command line says.
#[derive(Debug)]
pub struct Options {
    /// The staged bundle.
    pub plugin: PathBuf,
    /// The daemon's socket.
    pub socket: PathBuf,
    /// The nonce of this spawn.
    pub nonce: String,
    /// The engine's settings, laid over the manifest's.
    pub settings: Vec<(String, String)>,
}

/// Why the process ends with a failure.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The bundle cannot be loaded.
    #[error(transparent)]
    Bundle(#[from] synapse_loader::LoaderError),
    /// The socket failed.
    #[error("cannot talk to the daemon: {0}")]
    Socket(#[from] std::io::Error),
    /// The daemon does not speak as it must.
    #[error("protocol fault: {0}")]
    Protocol(String),
}

/// Serves until SHUTDOWN or until the daemon is gone.
///
/// # Errors
/// [`ServeError`].
pub fn serve(options: &Options) -> Result<ExitCode, ServeError> {
    // Beside the socket, in the daemon's private folder: the daemon removes it when this process could not.
    let scratch = options.socket.with_extension("tmp");
    std::fs::create_dir_all(&scratch)?;
    let plugin = synapse_loader::open_isolated(&options.plugin, &scratch)?;
    let outcome = serve_plugin(options, plugin);
    // The folder held temporary files of an engine that is gone.
    let _ = std::fs::remove_dir_all(&scratch);
    outcome
}

fn serve_plugin(options: &Options, plugin: Plugin) -> Result<ExitCode, ServeError> {
    let cancelled = Arc::new(Cancelled::default());
    let (link, queue) = Link::connect(&options.socket, &hello(options, &plugin), Arc::clone(&cancelled))?;
    let mut engines = Engines::new(plugin, options.settings.clone());
    loop {
        match link::next(&queue) {
            Incoming::Request(HostMessage::Shutdown {}, _) => {
                engines.shutdown();
                return Ok(ExitCode::SUCCESS);
            }
            Incoming::Request(request, raw) => {
                let (reply, raw) = engines.answer(&request, &raw, &link, &cancelled);
                link.send(&reply, raw.as_deref())?;
            }
            Incoming::Unknown { name, req_id } => {
                let msg = format!("this worker has no {name}; it speaks protocol {PROTOCOL_VERSION}");
                let code = "unknown_type".to_owned();
                link.send(
                    &WorkerMessage::Err {
                        req_id,
                        code,
                        state: EngineState::Usable,
                        msg,
                    },
                    None,
                )?;
            }
            Incoming::Gone => {
                engines.shutdown();
                return Ok(ExitCode::SUCCESS);
            }
            Incoming::Fault(fault) => return Err(ServeError::Protocol(fault)),
        }
    }
}

fn hello(options: &Options, plugin: &Plugin) -> WorkerMessage {
    let descriptor = plugin.descriptor();
    let mut kinds: Vec<EngineKind> = descriptor.supports.iter().map(|support| support.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let engines = kinds
        .into_iter()
        .map(|kind| EngineHello {
            kind: match kind {
                EngineKind::Embed => message::EngineKind::Embed,
                EngineKind::Rerank => message::EngineKind::Rerank,
                EngineKind::Generate => message::EngineKind::Generate,
            },
            engine: descriptor.identity.engine.clone(),
            version: descriptor.identity.version.clone(),
            build_flags: descriptor.identity.build_flags.clone(),
        })
        .collect();
    WorkerMessage::Hello {
        v: PROTOCOL_VERSION,
        nonce: options.nonce.clone(),
        bundle: BundleHello {
            id: descriptor.id.clone(),
            version: descriptor.package_version.to_string(),
        },
        engines,
        pid: std::process::id(),
        max_frame: DEFAULT_MAX_FRAME,
    }
}
