//! Deliberately bad bundles.
