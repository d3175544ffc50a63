//! The examples of docs/api: typed values, one or two per operation, in the order of [`Method::ALL`].
//!
//! They show a small conversation with the default model. Vectors are shortened to four numbers; digests are of the
//! right length.
//!
//! [`Method::ALL`]: synapse_wire::client::Method::ALL

use synapse_wire::API_VERSION;
use synapse_wire::client::*;

use crate::{Documented, alias, document, probe};

/// The default model.
pub const MODEL: &str = "all-minilm-l6-v2";
pub const LANE: &str = "all-minilm-l6-v2@owned:f32";
pub const FINGERPRINT: &str = "5d2c9a7e1f04b8836a1d90c2e7f35b4862d1a0c9b7e84f3d2a615c08e9f7b341";
pub const PROFILE: &str = "0be1a4d57c93f2e86b5d1a7c40f9e832d6b7a5c1908e4f3b2d716c5a0e9f8b34";
pub const BUNDLE: &str = "9c41d7e2b05f8a36c1e4d90b7a2f5836e8d1c4b09a7f3e256d8b1c0a4f9e7d35";
pub const FILES: &str = "e3a0b6c4d2f18975a6c3e0d9b1f47528c9e6a3d0b7f41852e9c6d3a0b7f41825";

fn model_entry(state: ModelState) -> ModelEntry {
    ModelEntry {
        id: MODEL.to_owned(),
        family: "bert".to_owned(),
        kind: ModelKind::Embed,
        licence: "Apache-2.0".to_owned(),
        dims: 384,
        max_tokens: 256,
        state,
        reason: None,
        formats: vec!["safetensors".to_owned()],
        size_bytes: 91_336_080,
        lanes: vec![LaneEntry {
            lane: LANE.to_owned(),
            engine: "owned".to_owned(),
            status: if state == ModelState::Loaded {
                LaneStatus::Loaded
            } else {
                LaneStatus::Available
            },
            reason: None,
            certification: Some(LaneVerdict::Certified),
            level: Some("reference".to_owned()),
            fingerprint: Some(FINGERPRINT.to_owned()),
            equivalent_to: Vec::new(),
        }],
        fingerprint: (state == ModelState::Loaded).then(|| FINGERPRINT.to_owned()),
        default: true,
    }
}

fn served_by(lane: &str, engine: &str, placement: Placement) -> ServedBy {
    ServedBy {
        fingerprint: FINGERPRINT.to_owned(),
        engine: engine.to_owned(),
        engine_version: "1".to_owned(),
        bundle_digest: BUNDLE.to_owned(),
        lane: lane.to_owned(),
        placement,
        model_digest: FILES.to_owned(),
        machine_profile_hash: None,
        certification: None,
    }
}

fn provenance(role: Role) -> Provenance {
    Provenance {
        by: served_by(LANE, "owned", Placement::InProcess),
        role,
        template_id: None,
        normalized: true,
    }
}

fn item(id: &str, tokens: u32) -> ItemOutcome {
    ItemOutcome {
        id: id.to_owned(),
        submitted_tokens: tokens,
        effective_tokens: tokens,
        truncated: false,
        error: None,
    }
}

fn reply(role: Role, vectors: Vec<Option<Vector>>, items: Vec<ItemOutcome>) -> EmbedReply {
    EmbedReply {
        model: MODEL.to_owned(),
        fingerprint: FINGERPRINT.to_owned(),
        numeric_profile_id: PROFILE.to_owned(),
        table_epoch: 0,
        dims: 4,
        provenance: provenance(role),
        vectors,
        real_token_counts: items.iter().map(|item| item.effective_tokens).collect(),
        items,
        equivalent_to: Vec::new(),
    }
}

pub fn job(kind: JobKind, state: JobState) -> JobView {
    JobView {
        job_id: "j-6b1f0c2a".to_owned(),
        kind,
        state,
        model: Some(MODEL.to_owned()),
        progress: JobProgress {
            phase: "download".to_owned(),
            done: 36_700_160,
            total: Some(91_336_080),
            unit: "bytes".to_owned(),
        },
        waits_for: None,
        estimated_ms: None,
        created_ms: 1_764_423_010_000,
        updated_ms: 1_764_423_012_500,
        error: None,
        result: None,
    }
}

fn pulled() -> JobView {
    JobView {
        progress: JobProgress {
            phase: "install".to_owned(),
            done: 91_336_080,
            total: Some(91_336_080),
            unit: "bytes".to_owned(),
        },
        result: Some(JobResult::Pull(PullOutcome {
            model: MODEL.to_owned(),
            source: Some("pypi".to_owned()),
            format: "safetensors".to_owned(),
            files: 3,
            size_bytes: 91_336_080,
        })),
        ..job(JobKind::ModelPull, JobState::Done)
    }
}

fn model() -> ModelParams {
    ModelParams {
        model: MODEL.to_owned(),
    }
}

fn job_params() -> JobParams {
    JobParams {
        job_id: "j-6b1f0c2a".to_owned(),
    }
}

fn page() -> JobPage {
    JobPage {
        fingerprint: FINGERPRINT.to_owned(),
        numeric_profile_id: PROFILE.to_owned(),
        table_epoch: 0,
        dims: 2,
        provenance: provenance(Role::Document),
        items: vec![ItemOutcome {
            id: "note-1".to_owned(),
            submitted_tokens: 7,
            effective_tokens: 7,
            truncated: false,
            error: None,
        }],
        vectors: vec![Some(Vector::encode(&[0.6, 0.8], Encoding::Base64))],
    }
}

pub fn accepted() -> JobAccepted {
    JobAccepted {
        job_id: "j-6b1f0c2a".to_owned(),
    }
}

fn failure(code: ErrorCode, message: &str) -> Failure {
    Failure {
        code,
        message: message.to_owned(),
        class: Class::Permanent,
        retry_after_ms: None,
        safe_to_retry_same_request: false,
        detail: None,
    }
}

/// Every operation with its examples.
pub fn operations() -> Vec<Documented> {
    let mut all = server();
    all.extend(embedding());
    all.extend(models());
    all.extend(jobs_and_plugins());
    all.extend(probe::operations());
    all.extend(alias::operations());
    all
}

fn server() -> Vec<Documented> {
    vec![
        document::<ServerInfo>(vec![(
            "Who is there",
            ServerInfoParams {},
            ServerInfoResult {
                name: "synapse".to_owned(),
                version: "0.1.0".to_owned(),
                api_version: API_VERSION.to_owned(),
                pid: 4711,
                started_ms: 1_764_423_000_000,
                data_dir: "/home/ada/.local/share/synapse".to_owned(),
                socket: "/run/user/1000/synapse/synapse.sock".to_owned(),
                limits: Limits {
                    max_line_bytes: 16_777_216,
                    max_depth: 64,
                    max_in_flight_per_connection: 32,
                    max_in_flight_per_process: 256,
                    max_connections: 1024,
                    line_timeout_ms: 30_000,
                    inline_items: 64,
                    inline_tokens: 8192,
                    inline_text_bytes: 8_388_608,
                    inline_item_bytes: 1_048_576,
                    rerank_candidates: 64,
                    rerank_interactive_candidates: 20,
                    rerank_tokens: 32_768,
                    job_items: 100_000,
                    job_bytes: 268_435_456,
                    open_jobs: 8,
                    open_job_bytes: 536_870_912,
                    live_jobs: 64,
                    job_ttl_ms: 86_400_000,
                    microllm_max_tokens: 512,
                    default_deadline_ms: 30_000,
                    default_max_queue_ms: 5000,
                },
                capabilities: ["embed", "encoding.base64", "generate", "rerank", "tokenize"]
                    .map(str::to_owned)
                    .to_vec(),
            },
        )]),
        document::<Health>(vec![(
            "While a model is being loaded",
            HealthParams {},
            HealthResult {
                status: HealthStatus::Degraded,
                text: "loading all-minilm-l6-v2".to_owned(),
                uptime_ms: 12_000,
                lanes: vec![LaneHealth {
                    lane: LANE.to_owned(),
                    state: ModelState::Loading,
                    queued_interactive: 0,
                    queued_bulk: 0,
                    in_flight: 0,
                    age_ms: 40,
                    certification: Some(LaneVerdict::Certified),
                }],
                models: vec![ModelHealth {
                    id: MODEL.to_owned(),
                    state: ModelState::Loading,
                }],
                plugins: PluginCounts {
                    ready: 1,
                    ..PluginCounts::default()
                },
                jobs: JobCounts { queued: 0, running: 1 },
                store_ok: true,
                workers: Vec::new(),
            },
        )]),
        document::<RequestCancel>(vec![(
            "Cancel the request whose id is 17",
            RequestCancelParams { id: Id::Number(17) },
            RequestCancelResult { found: true },
        )]),
    ]
}

fn embedding() -> Vec<Documented> {
    let numbers = [0.5, -0.5, 0.5, 0.5];
    let query = EmbedQueryParams {
        deadline_ms: Some(2000),
        ..EmbedQueryParams::new(MODEL, "How do I cancel a request?")
    };
    let batch = EmbedBatchParams {
        encoding: Some(Encoding::Base64),
        ..EmbedBatchParams::new(
            MODEL,
            vec![
                BatchItem::new("readme#1", "Send request.cancel with the id of the request."),
                BatchItem::new("readme#2", "A second passage."),
            ],
        )
    };
    let refused = ItemOutcome {
        error: Some(failure(
            ErrorCode::InvalidText,
            "the text holds half of a surrogate pair at byte 9; send whole characters",
        )),
        ..item("readme#2", 0)
    };
    vec![
        document::<EmbedQuery>(vec![(
            "One text (vector shortened to four numbers)",
            query,
            reply(
                Role::Query,
                vec![Some(Vector::encode(&numbers, Encoding::Array))],
                vec![item("0", 9)],
            ),
        )]),
        document::<EmbedBatch>(vec![
            (
                "Two texts as base64; the second one had no valid Unicode, so it alone has no vector",
                batch,
                reply(
                    Role::Document,
                    vec![Some(Vector::encode(&numbers, Encoding::Base64)), None],
                    vec![item("readme#1", 12), refused],
                )
                .into(),
            ),
            (
                "A batch over the inline caps, with a request_key (items shortened), from a daemon that makes jobs of batches",
                EmbedBatchParams {
                    request_key: Some("index-2026-02-03".to_owned()),
                    ..EmbedBatchParams::new(MODEL, vec![BatchItem::new("a", "…")])
                },
                EmbedBatchResult::Accepted(accepted()),
            ),
        ]),
        reranking(),
        generation(),
        document::<TextTokenize>(vec![(
            "Pieces of a text",
            TokenizeParams {
                model: MODEL.to_owned(),
                text: "cancel it".into(),
                role: None,
                truncate: None,
            },
            TokenizeResult {
                model: MODEL.to_owned(),
                tokenizer_digest: FILES.to_owned(),
                role: Role::Query,
                template_id: None,
                ids: vec![101, 17_542, 2009, 102],
                count: 4,
                submitted_tokens: 4,
                effective_tokens: 4,
                truncated: false,
                offsets: vec![[0, 0], [0, 6], [7, 9], [0, 0]],
            },
        )]),
    ]
}

fn reranking() -> Documented {
    const RERANKER: &str = "example-reranker";
    let candidates = vec![
        BatchItem::new("readme#1", "Send request.cancel with the id of the request."),
        BatchItem::new("readme#2", "Bread needs flour, water, salt and time."),
    ];
    let params = RerankScoreParams {
        truncate: Some(true),
        ..RerankScoreParams::new(RERANKER, "How do I cancel a request?", candidates)
    };
    let items = vec![
        item("readme#1", 21),
        ItemOutcome {
            effective_tokens: 512,
            truncated: true,
            ..item("readme#2", 640)
        },
    ];
    let reply = RerankReply {
        model: RERANKER.to_owned(),
        fingerprint: FINGERPRINT.to_owned(),
        numeric_profile_id: PROFILE.to_owned(),
        table_epoch: 0,
        score_kind: ScoreKind::Logit,
        scores: vec![Some(6.25), Some(-11.5)],
        real_token_counts: items.iter().map(|item| item.effective_tokens).collect(),
        items,
        provenance: served_by("example-reranker@ort:f32", "ort", Placement::Worker),
    };
    document::<RerankScore>(vec![(
        "Two candidates; the second one was too long and was cut",
        params,
        reply.into(),
    )])
}

fn generation() -> Documented {
    const GENERATOR: &str = "smollm2-135m-instruct";
    let params = MicrollmOneshotParams {
        system: Some("Answer in one word.".into()),
        max_tokens: Some(16),
        stop: vec!["\n".to_owned()],
        ..MicrollmOneshotParams::new(GENERATOR, "What is the capital of France?")
    };
    document::<MicrollmOneshot>(vec![(
        "A question, answered greedily up to the first line break",
        params,
        MicrollmOneshotResult {
            model: GENERATOR.to_owned(),
            text: "Paris.".to_owned(),
            finish_reason: FinishReason::Stop,
            prompt_tokens: 31,
            generated_tokens: 3,
            chat: true,
            fingerprint: FINGERPRINT.to_owned(),
            numeric_profile_id: PROFILE.to_owned(),
            table_epoch: 0,
            provenance: served_by("smollm2-135m-instruct@llama-cpp:q4_1", "llama-cpp", Placement::Worker),
        },
    )])
}

fn models() -> Vec<Documented> {
    vec![
        document::<ModelsList>(vec![(
            "The catalog",
            ModelsListParams {},
            ModelsListResult {
                models: vec![model_entry(ModelState::NotInstalled)],
                free_bytes: Some(53_687_091_200),
            },
        )]),
        document::<ModelsPull>(vec![
            (
                "From the record's first source",
                ModelsPullParams {
                    model: MODEL.to_owned(),
                    source: None,
                    path: None,
                    format: None,
                },
                accepted(),
            ),
            (
                "From a folder",
                ModelsPullParams {
                    model: MODEL.to_owned(),
                    source: Some(PullSource::Local),
                    path: Some("/home/ada/all-MiniLM-L6-v2".to_owned()),
                    format: None,
                },
                accepted(),
            ),
        ]),
        document::<ModelsRemove>(vec![(
            "Delete its files",
            model(),
            ModelsRemoveResult {
                model: MODEL.to_owned(),
                removed: true,
                freed_bytes: 91_336_080,
            },
        )]),
        document::<ModelLoad>(vec![("Load it before the first request", model(), accepted())]),
        document::<ModelStatus>(vec![(
            "A loaded model",
            model(),
            ModelStatusResult {
                model: model_entry(ModelState::Loaded),
                job: None,
            },
        )]),
        document::<ModelUnload>(vec![(
            "Free its memory",
            model(),
            ModelUnloadResult {
                model: MODEL.to_owned(),
                unloaded: true,
            },
        )]),
    ]
}

fn jobs_and_plugins() -> Vec<Documented> {
    let failed = JobView {
        error: Some(Failure {
            class: Class::Transient,
            retry_after_ms: Some(2000),
            safe_to_retry_same_request: true,
            ..failure(
                ErrorCode::DownloadFailed,
                "the connection was cut after 36700160 of 91336080 bytes",
            )
        }),
        ..job(JobKind::ModelPull, JobState::FailedTransient)
    };
    let refused = PluginEntry {
        id: "old-engine".to_owned(),
        version: Some("0.9.0".to_owned()),
        dir: "/home/ada/.local/share/synapse/plugins/old-engine".to_owned(),
        digest: Some(FILES.to_owned()),
        status: PluginStatus::Refused,
        reason: Some("abi_major".to_owned()),
        message: Some("abi_major: plugin 2, host supports 1".to_owned()),
        engines: Vec::new(),
        placement: None,
        promotable: false,
        pending: None,
    };
    let ready = PluginEntry {
        id: "owned".to_owned(),
        version: Some("0.1.0".to_owned()),
        dir: "/home/ada/.local/share/synapse/plugins/owned".to_owned(),
        digest: Some(BUNDLE.to_owned()),
        status: PluginStatus::Ready,
        reason: None,
        message: None,
        engines: vec![PluginEngine {
            engine: "owned".to_owned(),
            version: "1".to_owned(),
            kind: ModelKind::Embed,
            format: "safetensors".to_owned(),
            dtype: "f32".to_owned(),
            preempt: "checkpoint".to_owned(),
        }],
        placement: Some(Placement::InProcess),
        promotable: true,
        pending: None,
    };
    let waits = PluginEntry {
        pending: Some(PluginPending {
            version: Some("0.2.0".to_owned()),
            digest: Some(FILES.to_owned()),
            reason: "needs_restart".to_owned(),
            message: "version 0.2.0 is to run inside the daemon, where version 0.1.0 was loaded; it counts from the \
                      daemon's next start on, and version 0.1.0 goes on serving"
                .to_owned(),
        }),
        ..ready.clone()
    };
    vec![
        document::<JobCreate>(vec![(
            "A job for many texts",
            JobCreateParams {
                operation: JobOperation::EmbedBatch,
                model: MODEL.to_owned(),
                options: EmbedJobOptions::default(),
                request_key: Some("notes-2026-11".to_owned()),
                weight: None,
            },
            accepted(),
        )]),
        document::<JobAppend>(vec![(
            "The first texts",
            JobAppendParams {
                job_id: job_params().job_id,
                seq: 0,
                items: vec![BatchItem::new("note-1", "The harbour at dawn.")],
            },
            JobAppendResult {
                kept: true,
                next_seq: 1,
            },
        )]),
        document::<JobSeal>(vec![(
            "That was all",
            job_params(),
            JobView {
                progress: JobProgress {
                    phase: "embed".to_owned(),
                    done: 0,
                    total: Some(6_000),
                    unit: "items".to_owned(),
                },
                estimated_ms: Some(41_000),
                ..job(JobKind::EmbedBatch, JobState::Queued)
            },
        )]),
        document::<JobPages>(vec![(
            "The first page while the job runs",
            JobResultParams {
                job_id: job_params().job_id,
                page: 0,
                encoding: Some(Encoding::Base64),
            },
            JobPageResult {
                state: JobState::Running,
                pages: 1,
                content: Some(page()),
                scores: None,
            },
        )]),
        document::<JobStatus>(vec![
            (
                "While it runs",
                job_params(),
                job(JobKind::ModelPull, JobState::Running),
            ),
            ("After it has ended", job_params(), pulled()),
            ("After it has failed", job_params(), failed),
        ]),
        document::<JobCancel>(vec![(
            "Ask it to stop",
            job_params(),
            job(JobKind::ModelPull, JobState::Cancelled),
        )]),
        document::<JobList>(vec![(
            "What runs",
            JobListParams {},
            JobListResult {
                jobs: vec![job(JobKind::ModelPull, JobState::Running)],
            },
        )]),
        document::<AdmissionStatus>(vec![(
            "A job runs while queries are answered",
            AdmissionStatusParams {},
            AdmissionStatusResult {
                lanes: vec![LaneAdmission {
                    lane: LANE.to_owned(),
                    interactive: QueueStatus {
                        waiting: 0,
                        max_waiting: 256,
                        running: 1,
                    },
                    bulk: QueueStatus {
                        waiting: 2,
                        max_waiting: 64,
                        running: 1,
                    },
                    control: QueueStatus {
                        waiting: 0,
                        max_waiting: 16,
                        running: 0,
                    },
                    bytes: 4_718_592,
                    byte_budget: 536_870_912,
                    meeting_deadlines: true,
                    start_delay_p50_us: Some(140),
                    quantum_tokens: 2_210,
                    quantum_us: Some(QuantumTimes {
                        p50: 198_000,
                        p95: 231_000,
                        count: 128,
                    }),
                    bulk_tokens_per_s: Some(11_050),
                    certification_stale: None,
                    performance_stale: None,
                }],
                permits: PermitStatus {
                    total: 2,
                    bulk: 2,
                    others: 2,
                },
            },
        )]),
        document::<PluginsList>(vec![(
            "One bundle serves, one was refused",
            PluginsListParams {},
            PluginsListResult {
                plugins: vec![ready, refused],
            },
        )]),
        document::<PluginsRescan>(vec![(
            "New files wait for the next start",
            PluginsRescanParams {},
            PluginsRescanResult {
                changes: vec![PluginChange {
                    id: waits.id.clone(),
                    change: PluginChangeKind::Waits,
                    from: waits.digest.clone(),
                    to: waits.digest.clone(),
                    message: waits.pending.as_ref().map(|pending| pending.message.clone()),
                }],
                plugins: vec![waits],
            },
        )]),
    ]
}
