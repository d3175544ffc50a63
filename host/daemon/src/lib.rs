//! The Synapse daemon: sockets, files, clock and database.
