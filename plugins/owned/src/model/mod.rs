//! Architectures, one file each, over shared blocks.
//!
//! [`architecture`] lists the files; each makes a [`blueprint`] from a config.json, [`load`] reads the tensors that it
//! names through [`reader`] and gives an [`encoder`], which owns its weights. [`workspace`] owns the activations of one
//! rank; [`plan`] spreads items over ranks and [`worker`] runs the blocks on one. Called by `engine`; knows nothing of
//! files' roles, settings or the ABI.

pub mod architecture;
pub mod bert;
pub mod blueprint;
pub mod distilbert;
pub mod encoder;
pub mod gemma3;
pub mod gte;
pub mod load;
pub mod modernbert;
pub mod mpnet;
pub mod nomic_bert;
pub mod plan;
pub mod post_norm;
pub mod qwen3;
pub mod reader;
pub mod roberta;
pub mod worker;
pub mod workspace;
