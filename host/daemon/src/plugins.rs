//! The bundles found at start and their states.
