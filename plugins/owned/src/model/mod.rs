//! Architectures, one file each, over shared blocks.
//!
//! [`bert`] owns its weights, which [`reader`] puts in place; [`workspace`] owns the activations of one rank;
//! [`plan`] spreads items over ranks and [`worker`] runs the blocks on one. Called by `engine`; knows nothing of files'
//! roles, settings or the ABI.

pub mod bert;
pub mod plan;
pub mod reader;
pub mod worker;
pub mod workspace;
