//! The worker that describes bundles in these tests: the real one under another name.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    synapse_worker::run()
}
