//! The declaration of every setting: name, type, default, range, who may set it, and its documentation.
//!
//! State: none. Callers: everything that reads a setting through [`Config`]; `resolve.rs` and `docs.rs` walk
//! [`FIELDS`]. Not known here: where values come from. A new setting is one entry below and nothing else: the
//! structures, the resolver, `config show` and docs/configuration.md follow from it.

use std::path::PathBuf;

use synapse_core::route::Level;

use super::setting::{Bounds, Field, Knob, Setting};

/// Turns the declaration into the structures, their defaults and the table of fields.
macro_rules! settings {
    (
        top { $( $(#[doc = $tdoc:literal])+ $tname:ident: $tty:ty = $tdefault:expr, $tscope:ident $(, $tmin:literal..=$tmax:literal)?; )* }
        $(
            $(#[doc = $gdoc:literal])+
            $group:ident: $Group:ident { $( $(#[doc = $doc:literal])+ $name:ident: $ty:ty = $default:expr, $scope:ident $(, $min:literal..=$max:literal)?; )* }
        )*
    ) => {
        /// Every setting, resolved. Sampled once at start: a change needs a restart (CONF-12).
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Config {
            $( $(#[doc = $tdoc])+ pub $tname: $tty, )*
            $( $(#[doc = $gdoc])+ pub $group: $Group, )*
        }

        impl Default for Config {
            fn default() -> Self {
                Self { $( $tname: $tdefault, )* $( $group: $Group::default(), )* }
            }
        }

        $(
            $(#[doc = $gdoc])+
            #[derive(Clone, Debug, PartialEq, Eq)]
            pub struct $Group { $( $(#[doc = $doc])+ pub $name: $ty, )* }

            impl Default for $Group {
                fn default() -> Self {
                    Self { $( $name: $default, )* }
                }
            }
        )*

        /// Every setting, in the order of the documentation.
        pub const FIELDS: &[Field] = &[
            $( Field {
                group: "",
                name: stringify!($tname),
                doc: concat!($($tdoc),+),
                scope: super::setting::Scope::$tscope,
                kind: <$tty as Setting>::KIND,
                bounds: settings!(@bounds $($tmin, $tmax)?),
                set: |config, raw| {
                    config.$tname = <$tty as Setting>::read(raw, settings!(@bounds $($tmin, $tmax)?))?;
                    Ok(())
                },
                get: |config| config.$tname.show(),
            }, )*
            $( $( Field {
                group: stringify!($group),
                name: stringify!($name),
                doc: concat!($($doc),+),
                scope: super::setting::Scope::$scope,
                kind: <$ty as Setting>::KIND,
                bounds: settings!(@bounds $($min, $max)?),
                set: |config, raw| {
                    config.$group.$name = <$ty as Setting>::read(raw, settings!(@bounds $($min, $max)?))?;
                    Ok(())
                },
                get: |config| config.$group.$name.show(),
            }, )* )*
        ];

        /// Every group, with its documentation, in order.
        pub const GROUPS: &[(&str, &str)] = &[ $( (stringify!($group), concat!($($gdoc),+)), )* ];
    };
    (@bounds) => { None };
    (@bounds $min:literal, $max:literal) => { Some(Bounds { min: $min, max: $max }) };
}

settings! {
    top {
        /// How much of the machine Synapse may use (CONF-05). `performance`: every core; `balanced`: half of the
        /// cores; `quiet`: one thread, two on machines with eight cores or more.
        knob: Knob = Knob::Balanced, Machine;
        /// Models that are loaded at start, each by a job of its own (CONF-06). The environment variable
        /// `SYNAPSE_PRELOAD_MODELS` of old has no effect.
        preload_models: Vec<String> = Vec::new(), Project;
        /// Gate: `aliases.declare` and `aliases.retract` (CONF-08).
        alias_admin_enabled: bool = false, Machine;
        /// Gate: grammars in text generation (CONF-10). A request with a grammar is refused while it is closed.
        grammar_enabled: bool = false, Machine;
        /// Gate: observations of certification runs; off in ordinary serving (CONF-16). This version certifies nothing
        /// yet.
        certify_observation: bool = false, Machine;
        /// The most tokens one text generation may ask for (CONF-09); more is refused.
        microllm_max_tokens: u32 = 512, Project, 1..=1048576;
        /// Bytes of model files that a garbage collection without a digest works down to (CONF-11). This version collects
        /// nothing by itself yet.
        cache_max_bytes: u64 = 53_687_091_200, Machine, 0..=9007199254740991;
    }

    /// Log lines that are not events of their own (CONF-13). The level is set by `SYNAPSE_LOG` only.
    log: LogConfig {
        /// Seconds between two activity samples of the logger `synapse.perf`; 0 means no sampler (LOG-05).
        perf_interval_secs: u64 = 0, Project, 0..=86400;
        /// Lines a second that are forwarded from one worker's output (LOG-06); what is left out is counted.
        worker_forward_lines_per_sec: u32 = 50, Project, 0..=100000;
    }

    /// Limits of the client socket.
    connection: ConnectionConfig {
        /// Connections that are open at once; one more is closed at once.
        max_connections: usize = 1024, Machine, 1..=65536;
        /// Bytes of one request line.
        max_line_bytes: usize = 16_777_216, Machine, 4096..=16777216;
        /// Milliseconds from the first byte of a line to its end. A connection without a line in progress may stay
        /// idle for ever.
        line_timeout_ms: u64 = 30_000, Machine, 10..=3600000;
        /// Requests in flight on one connection; status operations are free (API-03).
        max_in_flight: usize = 32, Machine, 1..=1024;
        /// Requests in flight of one client process, all its connections together.
        max_in_flight_per_process: usize = 256, Machine, 1..=65536;
        /// Status operations that one connection runs at once; the next line waits.
        max_status_in_flight: usize = 32, Machine, 1..=1024;
        /// Replies that wait for a slow reader; while as many wait, no further line is read.
        max_replies_waiting: usize = 32, Machine, 1..=4096;
        /// Milliseconds that one reply may wait for a client that does not read; then the connection is closed.
        write_timeout_ms: u64 = 30_000, Machine, 10..=3600000;
    }

    /// Times of a request that names none.
    request: RequestConfig {
        /// Milliseconds from the receipt of a request to its deadline, where it names none.
        deadline_ms: u64 = 30_000, Project, 1..=3600000;
        /// Milliseconds that interactive work waits for its start at most, where the request names none.
        max_queue_ms: u64 = 5_000, Project, 1..=3600000;
    }

    /// What one inline batch may hold (API-11); more becomes a job or is refused.
    inline: InlineConfig {
        /// Texts.
        max_items: usize = 64, Machine, 1..=4096;
        /// Tokens of all texts together.
        max_tokens: usize = 8_192, Machine, 1..=1048576;
        /// Bytes of all texts together.
        max_text_bytes: usize = 8_388_608, Machine, 1..=16777216;
        /// Bytes of one text; checked before it is tokenized, which cannot be interrupted.
        max_item_bytes: usize = 1_048_576, Machine, 1..=16777216;
        /// A batch of at most this many texts is interactive work.
        interactive_items: usize = 8, Machine, 0..=64;
        /// The most tokens that a text of an interactive batch may have.
        interactive_item_tokens: usize = 512, Machine, 1..=8192;
    }

    /// What one inline rerank may hold (API-15); more becomes a job or is refused. Bytes are bounded as in `inline`.
    rerank: RerankConfig {
        /// Candidates.
        max_candidates: usize = 64, Machine, 1..=4096;
        /// Tokens of all pairs of query and candidate together.
        max_tokens: usize = 32_768, Machine, 1..=4194304;
        /// A rerank of at most this many candidates is interactive work, if each pair has at most
        /// `inline.interactive_item_tokens`.
        interactive_candidates: usize = 20, Machine, 0..=64;
    }

    /// Jobs: slow work that clients poll.
    jobs: JobsConfig {
        /// Jobs that are queued or running at once.
        max_live: usize = 64, Machine, 1..=4096;
        /// Pulls, and loads, that run at once; the others wait in order. Jobs over texts share their lane instead.
        max_running: usize = 4, Machine, 1..=64;
        /// Finished jobs that are remembered; the oldest are forgotten first.
        max_finished: usize = 1_000, Machine, 1..=100000;
        /// Seconds that a finished job is remembered.
        ttl_secs: u64 = 86_400, Machine, 1..=2592000;
        /// Jobs that are open for texts at once.
        max_open: usize = 8, Machine, 1..=1000;
        /// Bytes of text in all open jobs together.
        max_open_bytes: u64 = 536_870_912, Machine, 1..=9007199254740991;
        /// Seconds without an append after which an open job is forgotten.
        open_ttl_secs: u64 = 3_600, Machine, 1..=2592000;
        /// Texts of one job.
        max_items: usize = 100_000, Machine, 1..=100000000;
        /// Bytes of text of one job.
        max_bytes: u64 = 268_435_456, Machine, 1..=9007199254740991;
    }

    /// The queue of each lane and the threads behind it.
    schedule: ScheduleConfig {
        /// Compute threads of the whole daemon; 0 means what `knob` says.
        compute_threads: usize = 0, Machine, 0..=1024;
        /// Interactive requests that wait in one lane.
        max_interactive_waiting: usize = 256, Machine, 1..=65536;
        /// Bulk requests that wait in one lane.
        max_bulk_waiting: usize = 64, Machine, 1..=65536;
        /// Bytes of work, waiting and running, that one lane accepts.
        lane_byte_budget: u64 = 536_870_912, Machine, 1048576..=9007199254740991;
        /// Tokens of one quantum of bulk work at the start, before any was measured.
        bulk_quantum_tokens: usize = 3_072, Machine, 1..=1048576;
    }

    /// Certificates: which lanes may serve.
    probe: ProbeConfig {
        /// Gate: lanes without a valid certificate serve too. A lane whose probe failed never does.
        allow_uncertified: bool = false, Machine;
        /// What a certificate must rest on for a lane of a model of the built-in catalog.
        min_certificate: Level = Level::Reference, Machine;
        /// The same for models whose records come from the operator or with a bundle.
        min_certificate_own: Level = Level::Consistent, Machine;
        /// Drivers and backends that the daemon cannot see itself, each as `NAME=VERSION`. They are part of the machine
        /// profile, so that another version asks for another probe (CERT-04).
        drivers: Vec<String> = Vec::new(), Machine;
    }

    /// Which loaded models stay in memory.
    residency: ResidencyConfig {
        /// Bytes of loaded models; 0 means half of the machine's memory.
        memory_budget_bytes: u64 = 0, Machine, 0..=9007199254740991;
        /// Seconds without a request after which a model may be unloaded; 0 means never.
        idle_ttl_secs: u64 = 1_800, Machine, 0..=2592000;
        /// Seconds that a model stays loaded at least, once loaded.
        min_residency_secs: u64 = 30, Machine, 0..=86400;
    }

    /// Engine bundles.
    plugins: PluginsConfig {
        /// Folders that hold bundles, searched after those of the command line and of `SYNAPSE_PLUGIN_PATH`.
        dirs: Vec<PathBuf> = Vec::new(), Machine;
        /// Milliseconds that a bundle's description may take.
        scan_timeout_ms: u64 = 5_000, Machine, 100..=600000;
        /// Milliseconds between two glances at the folders that hold bundles; 0: changes count from the next start, or
        /// from `plugins.rescan`, on.
        watch_ms: u64 = 2_000, Machine, 0..=3600000;
        /// Milliseconds for which a changed bundle must look the same before it is looked into.
        settle_ms: u64 = 2_000, Machine, 0..=600000;
    }

    /// Engines in processes of their own.
    worker: WorkerConfig {
        /// Milliseconds from the start of a worker to the end of its handshake.
        handshake_ms: u64 = 10_000, Machine, 10..=600000;
        /// Milliseconds without progress after which a worker that loads a model is lost (WSUP-06).
        setup_silence_ms: u64 = 120_000, Machine, 10..=3600000;
        /// Milliseconds without progress after which a worker that computes is lost (WSUP-06).
        inference_silence_ms: u64 = 30_000, Machine, 10..=3600000;
        /// Milliseconds after which any exchange with a worker ends, whatever its progress (WSUP-07).
        exchange_ceiling_ms: u64 = 600_000, Machine, 10..=86400000;
        /// Milliseconds that a killed worker may take to be gone.
        exit_ms: u64 = 5_000, Machine, 10..=600000;
        /// Milliseconds between two questions to an idle worker how it is (HEALTH-06).
        refresh_ms: u64 = 5_000, Machine, 10..=3600000;
        /// Bytes of the largest frame of the worker protocol; a worker may offer less.
        max_frame_bytes: u32 = 67_108_864, Machine, 65536..=1073741824;
        /// Deaths of workers over one model in one configuration, inside the window, that quarantine it until a
        /// probe has passed it (WSUP-17).
        crashes_per_model: usize = 3, Machine, 1..=1000000;
        /// Deaths of one lane's workers, inside the window, that show the lane as degraded (WSUP-18).
        crashes_per_lane: usize = 6, Machine, 1..=1000000;
        /// Milliseconds for which a death counts.
        crash_window_ms: u64 = 600_000, Machine, 10..=86400000;
        /// Milliseconds before a worker starts again after one death inside the window (WSUP-16).
        backoff_first_ms: u64 = 100, Machine, 0..=600000;
        /// Milliseconds before a worker starts again after two deaths.
        backoff_second_ms: u64 = 1_000, Machine, 0..=600000;
        /// Milliseconds before a worker starts again after three deaths or more.
        backoff_ms: u64 = 5_000, Machine, 0..=600000;
    }

    /// Bringing model files to this machine.
    pull: PullConfig {
        /// Milliseconds without a byte after which a transfer is given up.
        idle_timeout_ms: u64 = 60_000, Machine, 100..=3600000;
    }

    /// The end of the daemon.
    shutdown: ShutdownConfig {
        /// Milliseconds that requests and jobs in flight may take to finish after SIGTERM; then they are cancelled.
        grace_ms: u64 = 5_000, Machine, 0..=600000;
        /// Milliseconds that cancelled work may take to end; then the process exits without it.
        cancel_ms: u64 = 5_000, Machine, 0..=600000;
    }
}
