//! The model store: pulls, verifies and keeps model files.
