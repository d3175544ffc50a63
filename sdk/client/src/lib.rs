//! Typed async client of a Synapse daemon.
