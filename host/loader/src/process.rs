//! The only place of the host that starts processes.
//!
//! State: one permanent spawner thread (the parent-death signal belongs to the thread that forked, so that thread
//! must live as long as the process). Callers: the scan, the daemon's pulls, later the worker supervisor. Not known
//! here: what the children do.
//!
//! Every child gets: an environment built from an allow-list (never the daemon's launch nonces), no descriptor but
//! its three standard streams, a process group of its own, and, on Linux, death when this process dies.

mod child;
mod command;
mod spawner;

pub use child::{Child, Finished, WaitError};
pub use command::{Command, Input, Output, quiet_environment};
pub use spawner::{SpawnError, Spawner, spawner};
