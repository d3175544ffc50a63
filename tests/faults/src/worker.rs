//! The worker's own code under a name of this package, so that cargo builds it for the tests of this package.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    synapse_worker::run()
}
