//! What the author of an engine plugin writes against.
