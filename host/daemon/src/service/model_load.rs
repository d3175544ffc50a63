//! The operation behind `model_load`.
