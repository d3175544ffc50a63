//! The settings of the daemon: sampled once at start, from layered JSONC files (CONF-01..16).

/// Every setting, resolved.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {}
