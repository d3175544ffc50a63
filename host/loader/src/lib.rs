//! Finds, checks, scans and loads engine bundles.
