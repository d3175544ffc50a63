//! The hub source: plain HTTP with byte ranges.
