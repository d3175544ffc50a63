//! Depth, size and duplicate checks before any JSON of a stranger is used.
