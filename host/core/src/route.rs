//! Which lane serves a request: candidates × constraints → one lane, or one typed refusal (API-05..10, CERT-10, FPR-05).
//!
//! State: none. Callers: the daemon's admission gathers the facts of every lane that could serve a model here and carries
//! out the decision; `models.explain` shows it lane by lane. Not known here: how the facts are found, texts, engines.
//!
//! The rules, in their order:
//! 1. The request's `required_epoch` is the alias table's, or nothing is served.
//! 2. Each lane meets the first bar that stands in its way, in the order of [`Bar`]: the name, the device, the
//!    certificate, the query path, the numeric space. A pinned lane is the only candidate, so it never falls back.
//! 3. With a demand for a space, a lane of that very space comes before one that is equivalent to it. Without one, all
//!    requests for a model by its name stay in one space: that of the lane which is best at batches. A query may go to
//!    another lane only where that one's space is the same or equivalent now.
//! 4. Among the lanes that are left the knob decides by measured speed ([`preference`]), otherwise the catalog's order.
//! 5. With no lane left, the refusal is the bar of the lane that got furthest.

mod level;
mod preference;

pub use self::level::{Level, NotALevel};
pub use self::preference::{Knob, Measured, Workload, preference};
use crate::alias::AliasTable;
use crate::digest::Sha256Digest;

/// What a lane's probe found, for exactly what runs now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Certification {
    /// It passed.
    Certified {
        /// What it rests on.
        level: Level,
        /// Single queries may be served too (FPR-05).
        hot_path: bool,
    },
    /// It failed. The lane stays closed until a probe passes (CERT-11).
    Failed,
    /// What was found is for another machine, bundle, model or configuration (CERT-08..10).
    Stale,
    /// It was never probed.
    Unprobed,
}

impl Certification {
    /// Whether a certificate holds now.
    #[must_use]
    pub const fn is_certified(self) -> bool {
        matches!(self, Self::Certified { .. })
    }

    /// Whether a certificate holds now, for single queries too.
    #[must_use]
    pub const fn hot_path(self) -> bool {
        matches!(self, Self::Certified { hot_path: true, .. })
    }

    /// What the certificate rests on; `None` without one.
    #[must_use]
    pub const fn level(self) -> Option<Level> {
        match self {
            Self::Certified { level, .. } => Some(level),
            _ => None,
        }
    }
}

/// One lane that could serve the model here, in the catalog's order among the others.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// `MODEL@ENGINE:VARIANT`.
    pub lane: &'a str,
    /// The space in which it would serve the request.
    pub fingerprint: Sha256Digest,
    /// What its probe found.
    pub certification: Certification,
    /// The least level that its origin must show (config, `probe.min_certificate*`).
    pub minimum: Level,
    /// The class of device that it runs on.
    pub device: &'a str,
    /// It computes in another arithmetic than the model's first lane: only its name or its space leads to it.
    pub by_name_only: bool,
    /// How fast it was measured at the request's kind of work, under the knob in force.
    pub measured: Option<Measured>,
    /// How fast it was measured at batches: decides which space a model's name stands for.
    pub measured_batch: Option<Measured>,
}

/// What a request demands of its lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct Demand<'a> {
    /// The one space to serve in (API-06).
    pub required: Option<Sha256Digest>,
    /// Whether a space equivalent to the required one will do.
    pub allow_equivalent: bool,
    /// The space of the caller's index: it or an equivalent one (API-10). With `required` too, both must hold (OQ-44).
    pub target: Option<Sha256Digest>,
    /// The alias table's epoch to serve under (API-07).
    pub required_epoch: Option<u64>,
    /// The class of device.
    pub device: Option<&'a str>,
    /// The request is one query on the hot path.
    pub query: bool,
    /// The request names its lane.
    pub pinned: bool,
}

/// How strict this daemon is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Lanes without a valid certificate serve too (config, `probe.allow_uncertified`). A failed one never does.
    pub allow_uncertified: bool,
    /// The knob in force.
    pub knob: Knob,
}

/// Which demand for a space was not met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceField {
    /// `required_fingerprint`.
    Required,
    /// `target_fingerprint`.
    Target,
}

/// What stands in a lane's way. Ordered: a lane that meets a larger bar got further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bar {
    /// It is served only where it, or its space, is named.
    ByNameOnly,
    /// It runs on another class of device.
    Device,
    /// It was never probed here.
    Unprobed,
    /// Its certificate says less than the configuration demands.
    Level,
    /// Its certificate is for something else than runs now.
    Stale,
    /// Its probe failed.
    Failed,
    /// Its queries and its batches are not of one space.
    HotPath,
    /// It serves another space than the one demanded.
    Space,
}

/// Why no lane serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The alias table has another epoch than the one demanded.
    Epoch {
        /// As demanded.
        demanded: u64,
        /// The table's.
        current: u64,
    },
    /// The lane that got furthest, by its place among the candidates, and what stopped it.
    Barred {
        /// Its place.
        lane: usize,
        /// What stopped it.
        bar: Bar,
        /// Which demand, where the bar is [`Bar::Space`].
        field: Option<SpaceField>,
    },
    /// There were no candidates.
    NoCandidates,
}

/// The public code of a refusal (OQ-2, OQ-44).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefusalCode {
    /// A lane may serve, but not in this space or under this epoch.
    SubstitutionRejected,
    /// No lane may serve this.
    NotCertified,
    /// A probe must run, or pass, first.
    ProbeRequired,
}

impl Bar {
    /// The code of a refusal that comes from it.
    #[must_use]
    pub const fn code(self) -> RefusalCode {
        match self {
            Self::ByNameOnly | Self::Device | Self::Unprobed | Self::Level | Self::HotPath => RefusalCode::NotCertified,
            Self::Stale | Self::Failed => RefusalCode::ProbeRequired,
            Self::Space => RefusalCode::SubstitutionRejected,
        }
    }

    /// A stable word for `detail.reason`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ByNameOnly => "by_name_only",
            Self::Device => "device",
            Self::Unprobed => "unprobed",
            Self::Level => "level",
            Self::Stale => "stale",
            Self::Failed => "probe_failed",
            Self::HotPath => "hot_path",
            Self::Space => "fingerprint_mismatch",
        }
    }
}

impl Refusal {
    /// Its public code.
    #[must_use]
    pub const fn code(self) -> RefusalCode {
        match self {
            Self::Epoch { .. } => RefusalCode::SubstitutionRejected,
            Self::Barred { bar, .. } => bar.code(),
            Self::NoCandidates => RefusalCode::NotCertified,
        }
    }
}

/// The lane that serves, by its place among the candidates.
///
/// # Errors
/// [`Refusal`]: one for the request as a whole.
pub fn choose(
    candidates: &[Candidate<'_>],
    demand: &Demand<'_>,
    rules: Rules,
    table: &AliasTable,
) -> Result<usize, Refusal> {
    if let Some(demanded) = demand.required_epoch
        && demanded != table.epoch()
    {
        return Err(Refusal::Epoch {
            demanded,
            current: table.epoch(),
        });
    }
    let bars: Vec<Option<Bar>> = candidates
        .iter()
        .map(|candidate| bar(candidate, demand, rules, table))
        .collect();
    let open: Vec<usize> = (0..candidates.len()).filter(|&at| bars[at].is_none()).collect();
    let home = home(candidates, demand, rules, table);
    let fits: Vec<usize> = open
        .iter()
        .copied()
        .filter(|&at| home.is_none_or(|home| table.equivalent(candidates[at].fingerprint, home)))
        .collect();
    let exact = demand.required.or(demand.target);
    let (very, others): (Vec<usize>, Vec<usize>) = fits
        .into_iter()
        .partition(|&at| exact.is_some_and(|space| candidates[at].fingerprint == space));
    for group in [very, others] {
        let measured: Vec<Option<Measured>> = group.iter().map(|&at| candidates[at].measured).collect();
        if let Some(&best) = preference(rules.knob, &measured).first() {
            return Ok(group[best]);
        }
    }
    // The first of those that got furthest, in the order of the catalog.
    let furthest = (0..candidates.len())
        .filter_map(|at| Some((bars[at]?, std::cmp::Reverse(at))))
        .max()
        .ok_or(Refusal::NoCandidates)?;
    let (bar, std::cmp::Reverse(lane)) = furthest;
    Err(Refusal::Barred {
        lane,
        bar,
        field: (bar == Bar::Space)
            .then(|| mismatch(candidates[lane].fingerprint, demand, table))
            .flatten(),
    })
}

/// The first bar in a lane's way; `None` where the lane may serve.
#[must_use]
pub fn bar(candidate: &Candidate<'_>, demand: &Demand<'_>, rules: Rules, table: &AliasTable) -> Option<Bar> {
    let asks_for_itself = demand.pinned || demand.required.is_some() || demand.target.is_some();
    if candidate.by_name_only && !asks_for_itself {
        return Some(Bar::ByNameOnly);
    }
    if demand.device.is_some_and(|device| device != candidate.device) {
        return Some(Bar::Device);
    }
    match candidate.certification {
        Certification::Failed => return Some(Bar::Failed),
        Certification::Unprobed if !rules.allow_uncertified => return Some(Bar::Unprobed),
        Certification::Stale if !rules.allow_uncertified => return Some(Bar::Stale),
        Certification::Certified { level, .. } if level < candidate.minimum && !rules.allow_uncertified => {
            return Some(Bar::Level);
        }
        Certification::Certified { hot_path: false, .. } if demand.query => return Some(Bar::HotPath),
        Certification::Certified { .. } | Certification::Stale | Certification::Unprobed => {}
    }
    mismatch(candidate.fingerprint, demand, table).map(|_| Bar::Space)
}

/// Which demand for a space a lane does not meet.
fn mismatch(served: Sha256Digest, demand: &Demand<'_>, table: &AliasTable) -> Option<SpaceField> {
    let required = demand
        .required
        .is_none_or(|space| served == space || (demand.allow_equivalent && table.equivalent(served, space)));
    if !required {
        return Some(SpaceField::Required);
    }
    let target = demand.target.is_none_or(|space| table.equivalent(served, space));
    (!target).then_some(SpaceField::Target)
}

/// The one space that a model's name stands for: that of the lane which is best at batches, among those that may serve
/// batches, and queries too if any of them does. `None` where the request says itself which lane or space it wants.
fn home(candidates: &[Candidate<'_>], demand: &Demand<'_>, rules: Rules, table: &AliasTable) -> Option<Sha256Digest> {
    if demand.pinned || demand.required.is_some() || demand.target.is_some() {
        return None;
    }
    let open = |query: bool| -> Vec<&Candidate<'_>> {
        let demand = Demand { query, ..*demand };
        let may = candidates
            .iter()
            .filter(|candidate| bar(candidate, &demand, rules, table).is_none());
        may.collect()
    };
    let mut lanes = open(true);
    if lanes.is_empty() {
        lanes = open(false);
    }
    let measured: Vec<Option<Measured>> = lanes.iter().map(|lane| lane.measured_batch).collect();
    let best = *preference(rules.knob, &measured).first()?;
    Some(lanes[best].fingerprint)
}
