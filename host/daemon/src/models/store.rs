//! Blobs by SHA-256.
