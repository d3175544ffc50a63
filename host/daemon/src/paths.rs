//! Where things lie on disk.
