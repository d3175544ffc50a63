//! Runs engine calls on the lanes' own threads, in the order that `synapse_core::schedule` decides.
