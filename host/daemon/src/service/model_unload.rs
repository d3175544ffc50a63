//! The operation behind `model_unload`.
