//! What is remembered about scans, so that an unchanged bundle is described once.
//!
//! State: [`MemoryOnly`] holds a map; the daemon's store implements [`ScanMemory`] with a table. Callers: the scan.
//! Not known here: how long a memory lasts.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::bundle::BundleDigest;

/// How a scan of one digest ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanOutcome {
    /// The descriptor, as JSON of this crate ([`crate::Descriptor::from_json`]).
    Described(String),
    /// The library crashed; the text says how. The digest is not scanned again.
    Quarantined(String),
    /// The library did not answer in time; the digest is scanned again at the next start.
    TimedOut,
}

impl ScanOutcome {
    /// The kind as one word for a database column: `described`, `quarantined`, `timed_out`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Described(_) => "described",
            Self::Quarantined(_) => "quarantined",
            Self::TimedOut => "timed_out",
        }
    }

    /// The text beside the kind; empty for a time-out.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Described(text) | Self::Quarantined(text) => text,
            Self::TimedOut => "",
        }
    }

    /// Back from [`Self::kind`] and [`Self::text`]; `None` for an unknown kind.
    #[must_use]
    pub fn from_parts(kind: &str, text: String) -> Option<Self> {
        match kind {
            "described" => Some(Self::Described(text)),
            "quarantined" => Some(Self::Quarantined(text)),
            "timed_out" => Some(Self::TimedOut),
            _ => None,
        }
    }
}

/// Where scan outcomes are kept between starts. Called from the thread that runs [`crate::Loader::discover`].
pub trait ScanMemory: Send + Sync {
    /// What is known about `digest`. A failure to read is `None`: the bundle is scanned again.
    fn recall(&self, digest: &BundleDigest) -> Option<ScanOutcome>;

    /// Keeps `outcome`, replacing what was known. A failure to write is the memory's to report.
    fn remember(&self, digest: &BundleDigest, outcome: &ScanOutcome);
}

/// A [`ScanMemory`] that lasts as long as the value. For tests and tools without a store.
#[derive(Debug, Default)]
pub struct MemoryOnly {
    rows: Mutex<HashMap<BundleDigest, ScanOutcome>>,
}

impl ScanMemory for MemoryOnly {
    fn recall(&self, digest: &BundleDigest) -> Option<ScanOutcome> {
        self.rows
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(digest)
            .cloned()
    }

    fn remember(&self, digest: &BundleDigest, outcome: &ScanOutcome) {
        self.rows
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(*digest, outcome.clone());
    }
}
