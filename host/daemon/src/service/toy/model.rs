//! The toy models: their files, their records, their rows.
//!
//! State: none; a test's data directory gets them.

use std::path::Path;

use synapse_core::digest::sha256;

/// Words of the toy tokenizer; a word's id is its place. `[CLS]` and `[SEP]` stand around every text.
pub const WORDS: [&str; 8] = ["[UNK]", "[CLS]", "[SEP]", "one", "two", "three", "four", "five"];

/// The content of every toy model's weights.
pub const WEIGHTS: &[u8] = b"the toy has no weights";

/// The chat template of `toy-chat`: `one SYSTEM two USER three`.
const CHAT: &str = "{% for message in messages %}{% if message.role == \"system\" %}one {% else %}two {% endif %}\
                    {{ message.content }} {% endfor %}{% if add_generation_prompt %}three{% endif %}";

/// The toy's files, records and rows: `toy` with templates and Matryoshka lengths, `toy-two` that normalises itself, the
/// `toy-pair` with two lanes, whose envelopes and so whose spaces differ, the
/// reranker `toy-rank`, the generators `toy-chat` with a chat template and `toy-raw` without, and models that nothing
/// here can serve.
pub fn write(dir: &Path) {
    let vocabulary: Vec<String> = WORDS
        .iter()
        .enumerate()
        .map(|(id, word)| format!("\"{word}\":{id}"))
        .collect();
    let special = |word: &str, id: u32| {
        format!(
            r#"{{"id":{id},"content":"{word}","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}}"#
        )
    };
    let tokenizer = format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{},{},{}],"normalizer":null,
            "pre_tokenizer":{{"type":"Whitespace"}},
            "post_processor":{{"type":"BertProcessing","sep":["[SEP]",2],"cls":["[CLS]",1]}},"decoder":null,
            "model":{{"type":"WordLevel","vocab":{{{}}},"unk_token":"[UNK]"}}}}"#,
        special("[UNK]", 0),
        special("[CLS]", 1),
        special("[SEP]", 2),
        vocabulary.join(","),
    );
    let source = dir.join("source");
    let records = dir.join("data/catalog");
    std::fs::create_dir_all(&source).unwrap();
    std::fs::create_dir_all(&records).unwrap();
    std::fs::write(source.join("toy.bin"), WEIGHTS).unwrap();
    std::fs::write(source.join("tokenizer.json"), &tokenizer).unwrap();
    // The kind's own fields stand in `head`, tables in `tables`.
    let record = |id: &str, head: &str, tables: &str| {
        format!(
            "schema = 1\nid = \"{id}\"\ntitle = \"Toy\"\nfamily = \"toy\"\nlicence = \"MIT\"\n\
             truncate_default = true\n{head}\n\
             {tables}\n[tokenizer]\npath = \"tokenizer.json\"\nsha256 = \"{}\"\nsize = {}\n\
             [[formats]]\nformat = \"bytes\"\nquant = \"f32\"\n[[formats.files]]\nrole = \"weights\"\npath = \"toy.bin\"\n\
             sha256 = \"{}\"\nsize = {}\n[[sources]]\nkind = \"local\"\n",
            sha256(tokenizer.as_bytes()),
            tokenizer.len(),
            sha256(WEIGHTS),
            WEIGHTS.len(),
        )
    };
    let embedder = |more: &str| {
        format!(
            "kind = \"embed\"\ndims = 4\ncontext = 10\nmax_tokens = 8\npooling = \"mean\"\nnormalize = true\n{more}"
        )
    };
    let generator = |more: &str| format!("kind = \"generate\"\ncontext = 20\nmax_tokens = 20\n{more}");
    let row = |model: &str, engine: &str, variant: &str, version: &str, dtype: &str| {
        let generates = ["toy-chat", "toy-raw"].contains(&model);
        let (max_tokens, max_batch_tokens) = match variant {
            _ if generates => (20, 20),
            "second" => (9, 18),
            _ => (9, 12),
        };
        format!(
            "[[row]]\nmodel = \"{model}\"\nengine = \"{engine}\"\nengine_version = \"{version}\"\nvariant = \"{variant}\"\n\
             format = \"bytes\"\nquant = \"f32\"\ndtype = \"{dtype}\"\nmax_tokens = {max_tokens}\nmax_batch = 3\n\
             max_batch_tokens = {max_batch_tokens}\nmax_sequences = 3\n"
        )
    };
    let files = [
        (
            "toy.toml",
            record(
                "toy",
                &embedder("dimensions = [2]"),
                "[templates]\nquery = \"one {text}\"",
            ),
        ),
        ("pair.toml", record("toy-pair", &embedder(""), "")),
        ("two.toml", record("toy-two", &embedder("output_normalized = true"), "")),
        (
            "rank.toml",
            record(
                "toy-rank",
                "kind = \"rerank\"\nscore_kind = \"logit\"\ncontext = 10\nmax_tokens = 9",
                "",
            ),
        ),
        (
            "chat.toml",
            record("toy-chat", &generator(&format!("chat_template = '{CHAT}'")), ""),
        ),
        ("raw.toml", record("toy-raw", &generator(""), "")),
        ("no-row.toml", record("no-row", &embedder(""), "")),
        ("no-engine.toml", record("no-engine", &embedder(""), "")),
        (
            "rows.toml",
            [
                "schema = 1\n".to_owned(),
                row("toy", "absent", "f32", ">=1", "f32"),
                row("toy", "toy", "f32", ">=1, <2", "f32"),
                row("toy-pair", "toy", "first", ">=1, <2", "f32"),
                row("toy-pair", "toy", "second", ">=1, <2", "f32"),
                row("toy-two", "toy", "f32", ">=1, <2", "f32"),
                row("toy-rank", "toy", "f32", ">=1, <2", "f32"),
                row("toy-chat", "toy", "f32", ">=1, <2", "f32"),
                row("toy-raw", "toy", "f32", ">=1, <2", "f32"),
                row("no-engine", "absent", "f32", ">=1", "f32"),
                row("no-engine", "toy", "old", "<1", "f32"),
                row("no-engine", "toy", "f16", ">=1", "f16"),
                row("no-engine", "toy", "bf16", ">=1", "bf16"),
            ]
            .concat(),
        ),
    ];
    for (name, text) in files {
        std::fs::write(records.join(name), text).unwrap();
    }
}
