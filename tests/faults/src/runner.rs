//! The runner of the conformance kit for the tests of this package: all it does is what the kit tells its processes.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    synapse_conformance::hidden().unwrap_or(std::process::ExitCode::from(2))
}
