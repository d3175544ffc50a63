//! The operation behind `model_status`.
