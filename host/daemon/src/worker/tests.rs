//! Supervision against real sockets and real processes.
