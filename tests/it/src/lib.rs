//! Integration tests: real sockets, real processes.
