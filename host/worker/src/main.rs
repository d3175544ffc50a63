//! The generic worker process: loads one engine bundle.

fn main() {}
