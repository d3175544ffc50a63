//! One daemon per data directory.
