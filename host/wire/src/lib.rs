//! Message types and framing of the Synapse sockets: the client wire (JSON-RPC 2.0) and the worker protocol.
//!
//! It owns no state. The daemon's `rpc` folder, the Rust client and the command line build on it; the JSON Schemas
//! and examples in `docs/api/` are generated from it. It deliberately knows no sockets, no clock, no model and none of
//! our other crates: bytes come in as slices, go out as vectors, and what an operation *does* is the daemon's affair.
//!
//! - [`framing`]: bytes to lines, with the line cap and the depth cap.
//! - [`client`]: the envelope, the operations and their params and results, the error contract.
//! - [`socket`]: where the socket lies; the daemon and the client share the rule.
//! - [`worker`]: the other wire, between the daemon and one engine process.
#![forbid(unsafe_code)]

pub mod client;
pub mod framing;
pub mod socket;
pub mod worker;

/// The version of this client wire, as `server.info.api_version` reports it: `MAJOR.MINOR`.
///
/// A minor step adds operations, optional request fields and response fields; a client ignores what it does not know.
/// A major step may break.
pub const API_VERSION: &str = "1.1";
