//! Finds, checks, scans and loads engine bundles.
//!
//! State: the bundles that this process opened (never unloaded), the digests whose scan timed out in this process,
//! and one spawner thread. Callers: the daemon's plugin registry, `synapse-worker`, the conformance kit. Not known
//! here: sockets, the database (scan results go through [`ScanMemory`]), models, requests and schedules.
//!
//! Discovery ([`Loader::discover`]) never runs a bundle's code in this process: it reads the manifest, copies the
//! files to a private folder named by their digest, reads the magic block from the library as a file, and lets a
//! child process load the copy and describe it. Only [`Loader::open`] loads a library here, and only for a bundle
//! whose status is [`BundleStatus::Ready`].
//!
//! | question | file |
//! |---|---|
//! | where are bundles looked for, who wins | `search.rs` |
//! | what may `plugin.toml` say | `manifest.rs` |
//! | did a folder change | `stamp.rs` |
//! | what exactly is loaded | `staging.rs`, `examine.rs` |
//! | which ABI was it built for | `note.rs` |
//! | may a program be run | `program.rs` |
//! | what does it offer | `scan.rs`, `descriptor.rs`, `memory.rs` |
//! | may it run in this process | `trust.rs`, `placement.rs` |
//! | what does the operator see | `bundle.rs` |
//! | how is it loaded and called | `open.rs`, `isolated.rs`, `plugin.rs`, `v1.rs` |
//! | how are processes started | `process.rs`, `start.rs` |

mod bundle;
mod descriptor;
mod error;
mod examine;
mod isolated;
mod loader;
mod manifest;
mod memory;
mod note;
mod open;
mod placement;
mod plugin;
pub mod process;
mod program;
mod scan;
mod search;
mod staging;
mod stamp;
pub mod start;
pub mod trust;
mod v1;

pub use bundle::{Bundle, BundleDigest, BundleStatus, RefusalReason, UnknownReason};
pub use descriptor::{Descriptor, DescriptorError};
pub use error::LoaderError;
pub use examine::WORKER_PROTOCOL;
pub use isolated::open_isolated;
pub use loader::{Glance, Loader, LoaderConfig};
pub use memory::{MemoryOnly, ScanMemory, ScanOutcome};
pub use plugin::Plugin;
pub use scan::{Answer, EXIT_REFUSED, describe};
pub use stamp::Stamp;
