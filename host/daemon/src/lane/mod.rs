//! Lanes: one model served by one engine.
