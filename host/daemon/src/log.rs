//! Log lines and log files.
