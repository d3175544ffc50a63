//! What a model folder says about itself, accepted or refused by name.
//!
//! `testdata/layouts.json` holds the JSON files of real and of broken folders: name → path → text. They come from the
//! project's model zoo (made with transformers and sentence-transformers; each broken one states its defect by its
//! name) and, for `minilm`, from the published all-MiniLM-L6-v2.

use std::cell::RefCell;
use std::collections::BTreeMap;

use synapse_catalog::layout::{DenseActivation, Layout, LayoutError, check_record, check_sentence_transformers};
use synapse_catalog::{Catalog, Format, ModelFile, Pooling, Record, check};

type Folder = BTreeMap<String, String>;

fn folders() -> BTreeMap<String, Folder> {
    serde_json::from_str(include_str!("../testdata/layouts.json")).expect("the test data is JSON")
}

/// Runs the check over one folder, and sees to it that no path leaves the folder on the way.
fn run(folder: &Folder) -> Result<Layout, LayoutError> {
    let asked = RefCell::new(Vec::new());
    let result = check_sentence_transformers(|path| {
        asked.borrow_mut().push(path.to_owned());
        folder.get(path).map(|text| text.as_bytes().to_vec())
    });
    for path in asked.into_inner() {
        assert!(!path.starts_with('/') && !path.contains(".."), "asked for {path}");
    }
    result
}

/// Every broken folder, and what the refusal names. An empty text: the defect lies in tensors or tokenizers, or is
/// harmless, so the folder is accepted here and judged by the engine or the tokenizer.
const BROKEN: [(&str, &str); 24] = [
    ("cfg-act-unknown", "config.json: hidden_act is \"swish7\""),
    ("cfg-ctx-over-table", ""),
    ("cfg-eps-nan", "config.json: not acceptable JSON"),
    (
        "cfg-heads-not-dividing",
        "config.json: num_attention_heads is 3 with hidden_size 16",
    ),
    ("cfg-layers-2pow31", "config.json: num_hidden_layers is 2147483648"),
    ("cfg-negative-hidden", "config.json: hidden_size is -16"),
    ("cfg-not-json", "config.json: not acceptable JSON"),
    ("cfg-remote-code", ""),
    ("cfg-string-number", "config.json: hidden_size is \"16\""),
    ("cfg-tokenizer-vocab-larger", ""),
    ("cfg-unknown-arch", ""),
    ("cfg-vocab-over-table", ""),
    ("cfg-zero-heads", "config.json: num_attention_heads is 0"),
    ("mod-dense-missing", "2_Dense/config.json is missing"),
    (
        "mod-dense-unknown-activation",
        "2_Dense/config.json: activation_function is \"os.system\"",
    ),
    ("mod-dense-wrong-shape", ""),
    ("mod-not-list", "modules.json: the file is an object"),
    ("mod-path-absolute", "modules.json: the path \"/etc\" is absolute"),
    ("mod-path-traversal", "modules.json: the path \"../../../../etc\""),
    ("mod-pooling-config-missing", "1_Pooling/config.json is missing"),
    (
        "mod-pooling-dim-mismatch",
        "1_Pooling/config.json: word_embedding_dimension is 999",
    ),
    ("mod-pooling-none", "1_Pooling/config.json: no pooling mode"),
    (
        "mod-pooling-two",
        "1_Pooling/config.json: several pooling modes are set (cls_token, mean_tokens)",
    ),
    (
        "mod-unknown-type",
        "modules.json: module 2 has the unknown type \"my_pkg.Evil\"",
    ),
];

#[test]
fn broken_folders_meet_their_verdict() {
    let folders = folders();
    let named: Vec<&str> = folders
        .keys()
        .map(String::as_str)
        .filter(|n| n.starts_with("cfg-") || n.starts_with("mod-"))
        .collect();
    assert_eq!(named, BROKEN.map(|(name, _)| name), "the table has every broken folder");
    for (name, expected) in BROKEN {
        match (run(&folders[name]), expected) {
            (Ok(_), "") => {}
            (Err(error), expected) if !expected.is_empty() => {
                let message = error.to_string();
                assert!(message.starts_with(expected), "{name}: {message}");
            }
            (result, expected) => panic!("{name}: expected {expected:?}, found {result:?}"),
        }
    }
}

/// The sound folders: pooling, length, Normalize and number of Dense modules, as the zoo's README lists them.
#[test]
fn sound_folders_are_understood() {
    let folders = folders();
    let table = [
        ("bert-embed", Pooling::Mean, 48, true, 0, "bert"),
        ("bert-embed-cls", Pooling::Cls, 48, false, 0, "bert"),
        ("distilbert-embed", Pooling::Mean, 48, true, 0, "distilbert"),
        ("embeddinggemma-embed", Pooling::Mean, 48, true, 2, "gemma3_text"),
        ("good-control-bert", Pooling::Mean, 16, false, 0, "bert"),
        ("gte-embed", Pooling::Cls, 48, true, 0, "gte"),
        ("minilm", Pooling::Mean, 384, true, 0, "bert"),
        ("modernbert-embed", Pooling::Cls, 48, true, 0, "modernbert"),
        ("mpnet-embed", Pooling::Mean, 48, true, 0, "mpnet"),
        ("nomic-bert-embed", Pooling::Mean, 48, true, 0, "nomic_bert"),
        ("qwen3-embed", Pooling::Last, 48, true, 0, "qwen3"),
        ("roberta-embed", Pooling::Mean, 48, true, 0, "roberta"),
        ("xlm-roberta-embed", Pooling::Mean, 48, true, 0, "xlm-roberta"),
    ];
    assert_eq!(
        table.len() + BROKEN.len(),
        folders.len(),
        "the tables have every folder"
    );
    for (name, pooling, dims, normalize, dense, family) in table {
        let layout = run(&folders[name]).unwrap_or_else(|error| panic!("{name}: {error}"));
        let found = (
            layout.pooling,
            layout.dims,
            layout.normalize,
            layout.dense.len(),
            layout.config.family.as_str(),
        );
        assert_eq!(found, (pooling, dims, normalize, dense, family), "{name}");
    }
    let gemma = run(&folders["embeddinggemma-embed"]).expect("sound");
    assert_eq!((gemma.dense[0].in_features, gemma.dense[0].out_features), (48, 96));
    assert!(
        gemma
            .dense
            .iter()
            .all(|dense| !dense.bias && dense.activation == DenseActivation::Identity)
    );
    assert_eq!(run(&folders["minilm"]).expect("sound").config.positions, Some(512));
}

fn minilm() -> (Record, Format, Layout) {
    let record = Catalog::builtin().record("all-minilm-l6-v2").expect("built in").clone();
    let format = record.formats[0].clone();
    (record, format, run(&folders()["minilm"]).expect("sound"))
}

/// The record and the published folder agree, and each way to disagree is named.
#[test]
fn records_and_folders_agree() {
    let (record, format, layout) = minilm();
    assert_eq!(check_record(&record, &format, &layout), Ok(()));
    let disagree =
        |field: &str, record: &Record, format: &Format, layout: &Layout| match check_record(record, format, layout) {
            Err(LayoutError::Record { field: found, .. }) => assert_eq!(found, field),
            other => panic!("{field}: {other:?}"),
        };
    disagree(
        "family",
        &Record {
            family: "roberta".to_owned(),
            ..record.clone()
        },
        &format,
        &layout,
    );
    disagree(
        "dims",
        &Record {
            dims: 383,
            ..record.clone()
        },
        &format,
        &layout,
    );
    disagree(
        "pooling",
        &Record {
            pooling: Pooling::Cls,
            ..record.clone()
        },
        &format,
        &layout,
    );
    disagree(
        "normalize",
        &Record {
            normalize: false,
            ..record.clone()
        },
        &format,
        &layout,
    );
    disagree(
        "context",
        &Record {
            context: 513,
            ..record.clone()
        },
        &format,
        &layout,
    );

    let dense = |index: usize, path: &str| ModelFile {
        role: format!("dense.{index}.weights"),
        path: path.to_owned(),
        sha256: format.files[0].sha256,
        size: 1,
    };
    let mut surplus = format.clone();
    surplus.files.push(dense(0, "2_Dense/model.safetensors"));
    disagree("formats", &record, &surplus, &layout);

    // A Dense module whose weights the engine would not get.
    let gemma = run(&folders()["embeddinggemma-embed"]).expect("sound");
    let record = Record {
        family: "gemma3_text".to_owned(),
        dims: 48,
        context: 128,
        max_tokens: 128,
        ..record
    };
    disagree("formats", &record, &format, &gemma);
    let mut full = format.clone();
    full.files.push(dense(0, "2_Dense/model.safetensors"));
    disagree("formats", &record, &full, &gemma);
    full.files.push(dense(1, "elsewhere/model.safetensors"));
    disagree("formats", &record, &full, &gemma);
    full.files.pop();
    full.files.push(dense(1, "3_Dense/model.safetensors"));
    assert_eq!(check_record(&record, &full, &gemma), Ok(()));
}

/// Orders and settings that no folder above has.
#[test]
fn modules_are_never_skipped_or_guessed() {
    let base = folders()["bert-embed"].clone();
    let module =
        |kind: &str, path: &str| format!(r#"{{"path":"{path}","type":"sentence_transformers.models.{kind}"}}"#);
    let transformer = module("Transformer", "");
    let pooling = module("Pooling", "1_Pooling");
    let normalize = module("Normalize", "2_Normalize");
    let with_modules = |list: &[&String]| {
        let list: Vec<&str> = list.iter().map(|text| text.as_str()).collect();
        let mut folder = base.clone();
        folder.insert("modules.json".to_owned(), format!("[{}]", list.join(",")));
        run(&folder)
    };
    assert!(with_modules(&[&transformer, &pooling, &normalize]).is_ok());
    for wrong in [
        &[][..],
        &[&transformer],
        &[&pooling, &transformer],
        &[&transformer, &normalize, &pooling],
        &[&transformer, &pooling, &normalize, &normalize],
        &[&transformer, &pooling, &pooling],
    ] {
        assert!(
            matches!(with_modules(wrong), Err(LayoutError::ModuleOrder(_))),
            "{wrong:?}"
        );
    }
    let seventeen = vec![&normalize; 17];
    assert!(matches!(with_modules(&seventeen), Err(LayoutError::Field { .. })));
    for path in ["a/../b", "a//b", "./a", "a\\\\b", "c:", ".."] {
        let odd = module("Pooling", path);
        assert!(
            matches!(with_modules(&[&transformer, &odd]), Err(LayoutError::ModulePath { .. })),
            "{path}"
        );
    }
    let with_pooling = |text: &str| {
        let mut folder = base.clone();
        folder.insert("1_Pooling/config.json".to_owned(), text.to_owned());
        run(&folder)
    };
    let dims = r#""word_embedding_dimension": 48"#;
    assert!(with_pooling(&format!(r#"{{{dims}, "pooling_mode_mean_tokens": true}}"#)).is_ok());
    let max = with_pooling(&format!(r#"{{{dims}, "pooling_mode_max_tokens": true}}"#));
    assert!(matches!(max, Err(LayoutError::PoolingMode { .. })), "{max:?}");
    for odd in [
        r#""pooling_mode_mean_tokens": 1"#,
        r#""pooling_mode_mean_tokens": true, "include_prompt": false"#,
        r#""pooling_mode_mean_tokens": true, "include_prompt": null"#,
    ] {
        let result = with_pooling(&format!("{{{dims}, {odd}}}"));
        assert!(matches!(result, Err(LayoutError::Field { .. })), "{odd}: {result:?}");
    }
    let twice = with_pooling(&format!(
        r#"{{{dims}, "pooling_mode_mean_tokens": false, "pooling_mode_mean_tokens": true}}"#
    ));
    assert!(matches!(twice, Err(LayoutError::Json { .. })), "{twice:?}");
}

/// The test records beside the project's integration tests describe the zoo's folders.
#[test]
fn test_records_describe_their_folders() {
    for (name, text) in [
        (
            "bert-embed",
            include_str!("../../tests/fixtures/catalog/models/bert-embed.toml"),
        ),
        (
            "bert-embed-cls",
            include_str!("../../tests/fixtures/catalog/models/bert-embed-cls.toml"),
        ),
    ] {
        let record = check(text).unwrap_or_else(|problems| panic!("{name}: {problems:?}"));
        let layout = run(&folders()[name]).expect("sound");
        assert_eq!(check_record(&record, &record.formats[0], &layout), Ok(()), "{name}");
    }
}
