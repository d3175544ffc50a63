//! The operation behind `health`.
