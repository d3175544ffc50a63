//! In which order lanes are preferred, by their measured speed and the knob (CERT-13, OQ-15).
//!
//! State: none. Callers: [`super::choose`], and the probe, which writes down what it comes to. The rule: a lane's worth is
//! `speed / threads^k`, with `k` = 0 for `performance` (the fastest), ½ for `balanced`, 1 for `quiet` (the most work for
//! one thread's time, the nearest thing to energy that is measured here). The first lane in the catalog's order that comes
//! within a tenth of the best is taken, so that noise between two probes moves no model to another lane. Lanes that were
//! not measured come last, in the catalog's order.

/// How much of the machine the operator gives (CONF-05).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Knob {
    /// The fastest.
    Performance,
    /// Speed against threads.
    Balanced,
    /// The least compute for the work.
    Quiet,
}

/// The kinds of work that lanes are compared at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Workload {
    /// One text, at once.
    Query,
    /// Many texts.
    Batch,
    /// Pairs of query and document.
    Rerank,
    /// Text generation.
    Generate,
}

impl Workload {
    /// Each of them.
    pub const ALL: [Self; 4] = [Self::Query, Self::Batch, Self::Rerank, Self::Generate];

    /// The name in the database and on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Batch => "batch",
            Self::Rerank => "rerank",
            Self::Generate => "generate",
        }
    }
}

/// How fast a lane was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Tokens a second; larger than 0.
    pub speed: f64,
    /// Threads of each call; at least 1.
    pub threads: u32,
}

/// How close to the best a lane must come to be as good.
const WITHIN: f64 = 0.9;

/// The places of lanes, given in the catalog's order, the preferred one first.
#[must_use]
pub fn preference(knob: Knob, lanes: &[Option<Measured>]) -> Vec<usize> {
    let mut measured: Vec<(usize, f64)> = lanes
        .iter()
        .enumerate()
        .filter_map(|(place, lane)| Some((place, worth(knob, (*lane)?))))
        .collect();
    let mut order = Vec::with_capacity(lanes.len());
    while !measured.is_empty() {
        let best = measured.iter().map(|(_, worth)| *worth).fold(0.0, f64::max);
        let next = measured
            .iter()
            .position(|(_, worth)| *worth >= best * WITHIN)
            .unwrap_or_default();
        order.push(measured.remove(next).0);
    }
    order.extend((0..lanes.len()).filter(|&place| lanes[place].is_none()));
    order
}

fn worth(knob: Knob, lane: Measured) -> f64 {
    let threads = f64::from(lane.threads.max(1));
    lane.speed
        / match knob {
            Knob::Performance => 1.0,
            Knob::Balanced => threads.sqrt(),
            Knob::Quiet => threads,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn lane(speed: f64, threads: u32) -> Option<Measured> {
        Some(Measured { speed, threads })
    }

    #[test]
    fn the_knob_weighs_speed_against_threads() {
        let lanes = [lane(100.0, 1), lane(180.0, 2), lane(260.0, 16)];
        assert_eq!(preference(Knob::Performance, &lanes), [2, 1, 0]);
        assert_eq!(preference(Knob::Balanced, &lanes), [1, 0, 2]);
        assert_eq!(preference(Knob::Quiet, &lanes), [0, 1, 2]);
    }

    #[test]
    fn noise_moves_nothing_and_what_was_not_measured_comes_last() {
        for (lanes, order) in [
            (vec![lane(100.0, 1), lane(105.0, 1)], vec![0, 1]),
            (vec![lane(100.0, 1), lane(120.0, 1)], vec![1, 0]),
            (vec![None, lane(1.0, 1), None], vec![1, 0, 2]),
            (vec![None, None], vec![0, 1]),
            (vec![], vec![]),
            (vec![lane(f64::NAN, 1), lane(1.0, 1)], vec![1, 0]),
        ] {
            assert_eq!(preference(Knob::Performance, &lanes), order, "{lanes:?}");
        }
    }
}
