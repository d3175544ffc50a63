//! The operation behind `models_remove`.
