//! The `synapse-worker` binary: see the library of this crate.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    synapse_worker::run()
}
