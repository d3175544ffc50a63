//! The synapse command: the daemon and its command line.

fn main() {}
