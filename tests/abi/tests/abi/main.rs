//! The ABI's own tests: one binary, because it links the loader.
//!
//! - `layout`: golden layout of the frozen types and of the extension tables, and the vendored copy;
//! - `load`: plugins built from the frozen source, against a newer minor and by another compiler run in this host;
//! - `public_api`: what authors see of plugin-api and plugin-sdk;
//! - `refuse`: every mismatch is refused in one line that names the field.

mod layout;
mod load;
mod public_api;
mod refuse;
