//! Integration tests of the daemon: real processes, real sockets, real files. The tests are the `it` binary.

#![forbid(unsafe_code)]
