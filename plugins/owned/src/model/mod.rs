//! Architectures, one file each, over shared blocks.
//!
//! [`bert`] owns its weights; [`workspace`] owns the activations of one rank; [`worker`] runs the blocks on a rank.
//! Called by `engine`; knows nothing of files' roles, settings or the ABI.

pub mod bert;
pub mod plan;
pub mod worker;
pub mod workspace;
