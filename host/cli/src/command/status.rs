//! `synapse status`: the daemon's own account of itself.
//!
//! No state. Shows `server.info`, `health` and `admission.status` together.

use serde::Serialize;
use synapse_client::wire::{
    AdmissionStatusResult, HealthResult, HealthStatus, LaneAdmission, ModelState, PluginCounts, ServerInfoResult,
};

use crate::args::Global;
use crate::error::CliError;
use crate::output::Output;
use crate::session::{self, Patience};
use crate::style::{Style, Tone, bytes, clean, duration};
use crate::table::{Cell, Table};

#[derive(Serialize)]
struct Status {
    server: ServerInfoResult,
    health: HealthResult,
    admission: AdmissionStatusResult,
    module_generation: u64,
}

/// Asks and prints.
pub async fn run(global: &Global, output: &mut Output) -> Result<(), CliError> {
    let client = session::open(global, output, Patience::Short).await?;
    let server = client.server_info().await?;
    let status = Status {
        module_generation: server.stamp.module_generation,
        server: server.result,
        health: client.health().await?.result,
        admission: client.admission_status().await?.result,
    };
    output.value(&status, render)
}

/// The tone of a model's state.
pub fn state_cell(state: ModelState) -> Cell {
    let (tone, word) = match state {
        ModelState::NotInstalled => (Tone::Quiet, "not installed"),
        ModelState::Installed => (Tone::Plain, "installed"),
        ModelState::Loading => (Tone::Notice, "loading"),
        ModelState::Loaded => (Tone::Good, "loaded"),
        ModelState::Failed => (Tone::Bad, "failed"),
        ModelState::Unknown => (Tone::Notice, "unknown"),
    };
    Cell::new(tone, word)
}

fn render(status: &Status, style: Style) -> String {
    let (server, health) = (&status.server, &status.health);
    let (tone, word) = match health.status {
        HealthStatus::Ok => (Tone::Good, "ok"),
        HealthStatus::Degraded => (Tone::Notice, "degraded"),
        HealthStatus::Unknown => (Tone::Notice, "unknown"),
    };
    let mut text = style.paint(tone, word);
    if health.text != word {
        text.push_str("  ");
        text.push_str(&clean(&health.text));
    }
    text.push_str("\n\n");
    let mut facts = Table::facts();
    facts.fact(
        "version",
        format!("{} (interface {})", server.version, server.api_version),
    );
    facts.fact("process", format!("{}, up {}", server.pid, duration(health.uptime_ms)));
    facts.fact("generation", status.module_generation.to_string());
    facts.fact("socket", &server.socket);
    facts.fact("data", &server.data_dir);
    facts.fact("plugins", counted(health.plugins));
    facts.fact(
        "jobs",
        format!("{} queued, {} running", health.jobs.queued, health.jobs.running),
    );
    let store = if health.store_ok {
        Cell::new(Tone::Good, "ok")
    } else {
        Cell::new(Tone::Bad, "takes no writes")
    };
    facts.fact("store", store);
    text.push_str(&facts.render(style));
    if !health.models.is_empty() {
        let mut models = Table::new(&["MODEL", "STATE"]);
        for model in &health.models {
            models.row(vec![(&model.id).into(), state_cell(model.state)]);
        }
        text.push('\n');
        text.push_str(&models.render(style));
    }
    if !health.lanes.is_empty() {
        let mut lanes = Table::new(&["LANE", "STATE", "QUERIES", "BULK", "RUNNING"]);
        for lane in &health.lanes {
            lanes.row(vec![
                (&lane.lane).into(),
                state_cell(lane.state),
                lane.queued_interactive.to_string().into(),
                lane.queued_bulk.to_string().into(),
                lane.in_flight.to_string().into(),
            ]);
        }
        text.push('\n');
        text.push_str(&lanes.render(style));
    }
    if !status.admission.lanes.is_empty() {
        let mut lanes = Table::new(&["LANE", "ON TIME", "START", "QUANTUM", "SPEED", "BYTES"]);
        for lane in &status.admission.lanes {
            lanes.row(load_cells(lane));
        }
        text.push('\n');
        text.push_str(&lanes.render(style));
    }
    if !health.workers.is_empty() {
        let mut workers = Table::new(&["WORKER", "STATE"]);
        for worker in &health.workers {
            let state = if worker.alive {
                Cell::new(Tone::Good, "alive")
            } else {
                Cell::new(Tone::Bad, "gone")
            };
            workers.row(vec![(&worker.worker).into(), state]);
        }
        text.push('\n');
        text.push_str(&workers.render(style));
    }
    text
}

/// How a loaded lane does: whether calls start in time, the median wait of queries, a quantum of bulk work, the speed, and
/// the bytes of its budget. A dash stands for what was not measured.
fn load_cells(lane: &LaneAdmission) -> Vec<Cell> {
    let on_time = if lane.meeting_deadlines {
        Cell::new(Tone::Good, "yes")
    } else {
        Cell::new(Tone::Bad, "no")
    };
    let or_dash = |words: Option<String>| words.unwrap_or_else(|| "-".to_owned());
    let millis = |micros: u64| format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100);
    vec![
        (&lane.lane).into(),
        on_time,
        or_dash(lane.start_delay_p50_us.map(millis)).into(),
        or_dash(lane.quantum_us.map(|times| millis(times.p50))).into(),
        or_dash(lane.bulk_tokens_per_s.map(|speed| format!("{speed} tokens/s"))).into(),
        format!("{} of {}", bytes(lane.bytes), bytes(lane.byte_budget)).into(),
    ]
}

/// The bundles that are ready, and of the others only what there is.
fn counted(plugins: PluginCounts) -> String {
    let mut words = format!("{} ready", plugins.ready);
    for (count, word) in [
        (plugins.needs_worker, "without a worker"),
        (plugins.refused, "refused"),
        (plugins.quarantined, "quarantined"),
        (plugins.disabled, "disabled"),
        (plugins.shadowed, "shadowed"),
        (plugins.pending, "with new files that wait"),
    ] {
        if count > 0 {
            words.push_str(&format!(", {count} {word}"));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use synapse_client::wire::{JobCounts, LaneHealth, Limits, ModelHealth, PermitStatus, QueueStatus};

    use super::*;

    #[test]
    fn everything_is_shown() {
        let status = Status {
            module_generation: 1_764_423_000,
            server: ServerInfoResult {
                name: "synapse".to_owned(),
                version: "0.1.0".to_owned(),
                api_version: "1.0".to_owned(),
                pid: 42,
                started_ms: 0,
                data_dir: "/d".to_owned(),
                socket: "/d/run/synapse.sock".to_owned(),
                limits: Limits::default(),
                capabilities: Vec::new(),
            },
            health: HealthResult {
                status: HealthStatus::Degraded,
                text: "loading m".to_owned(),
                uptime_ms: 61_000,
                lanes: vec![LaneHealth {
                    lane: "m@owned:f32".to_owned(),
                    state: ModelState::Loading,
                    queued_interactive: 3,
                    queued_bulk: 0,
                    in_flight: 1,
                    age_ms: 5,
                    certification: None,
                }],
                models: vec![ModelHealth {
                    id: "m".to_owned(),
                    state: ModelState::Loading,
                }],
                plugins: PluginCounts {
                    ready: 1,
                    refused: 2,
                    ..PluginCounts::default()
                },
                jobs: JobCounts { queued: 0, running: 1 },
                store_ok: true,
                workers: Vec::new(),
            },
            admission: AdmissionStatusResult {
                lanes: vec![LaneAdmission {
                    lane: "o@owned:f32".to_owned(),
                    interactive: QueueStatus::default(),
                    bulk: QueueStatus::default(),
                    control: QueueStatus::default(),
                    bytes: 1_536,
                    byte_budget: 1 << 20,
                    meeting_deadlines: false,
                    start_delay_p50_us: Some(1_250),
                    quantum_tokens: 2_000,
                    quantum_us: None,
                    bulk_tokens_per_s: Some(10_000),
                    certification_stale: None,
                    performance_stale: None,
                }],
                permits: PermitStatus::default(),
            },
        };
        assert_eq!(
            render(&status, Style::plain()),
            "\
degraded  loading m

version     0.1.0 (interface 1.0)
process     42, up 1 min 1 s
generation  1764423000
socket      /d/run/synapse.sock
data        /d
plugins     1 ready, 2 refused
jobs        0 queued, 1 running
store       ok

MODEL  STATE
m      loading

LANE         STATE    QUERIES  BULK  RUNNING
m@owned:f32  loading  3        0     1

LANE         ON TIME  START   QUANTUM  SPEED           BYTES
o@owned:f32  no       1.2 ms  -        10000 tokens/s  1.5 KiB of 1.0 MiB
"
        );
    }
}
