//! The folder source.
