//! Tells the crate which compiler and target it is built with: both stand in the plugin magic.
//!
//! Owns nothing. Called by cargo. A compiler that cannot be asked is recorded as `unknown`: the field is for people.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=RUSTC");
    let target = std::env::var("TARGET").unwrap_or_else(|_| "unknown".to_owned());
    let rustc = std::env::var_os("RUSTC")
        .and_then(|rustc| Command::new(rustc).arg("--version").output().ok())
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .map_or_else(|| "unknown".to_owned(), |text| text.trim().to_owned());
    println!("cargo:rustc-env=SYNAPSE_PLUGIN_TARGET={target}");
    println!("cargo:rustc-env=SYNAPSE_PLUGIN_RUSTC={rustc}");
}
