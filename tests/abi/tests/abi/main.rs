//! The ABI's own tests: one binary, because it links the loader.
//!
//! - `layout`: golden layout of the frozen types and of the extension tables, and the vendored copy;
//! - `load`: plugins built from the frozen source and against a newer minor run in this host;
//! - `refuse`: every mismatch is refused in one line that names the field.

mod layout;
mod load;
mod refuse;
