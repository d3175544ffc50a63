//! The bridge from the `log` facade to the host's log, behind the feature `log`.
//!
//! Owns the plugin's global logger. A crate that logs through `tracing` arrives here too when `tracing` is built with
//! its `log` feature and no subscriber is set.

use std::sync::OnceLock;

use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::{api::LogLevel, host::Host};

struct Bridge(OnceLock<Host>);

static BRIDGE: Bridge = Bridge(OnceLock::new());

/// Sends every record of the `log` facade in this library to the host. The first host stays.
pub fn install(host: Host) {
    if BRIDGE.0.set(host).is_ok() && log::set_logger(&BRIDGE).is_ok() {
        log::set_max_level(LevelFilter::Trace);
    }
}

const fn level(level: Level) -> LogLevel {
    match level {
        Level::Error => LogLevel::ERROR,
        Level::Warn => LogLevel::WARN,
        Level::Info => LogLevel::INFO,
        Level::Debug => LogLevel::DEBUG,
        Level::Trace => LogLevel::TRACE,
    }
}

impl Log for Bridge {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.0
            .get()
            .is_some_and(|host| host.log_enabled(level(metadata.level())))
    }

    fn log(&self, record: &Record<'_>) {
        if let Some(host) = self.0.get() {
            host.log(
                level(record.level()),
                format_args!("{}: {}", record.target(), record.args()),
            );
        }
    }

    fn flush(&self) {}
}
