//! The operation behind `models_pull`.
