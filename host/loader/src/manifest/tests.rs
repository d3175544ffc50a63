//! What a `plugin.toml` may say, kind by kind.

use super::*;

const GOOD: &str = r#"
schema = 1
id = "owned"
version = "0.1.0"
kind = "library"
library = "lib/libsynapse_owned.so"
risk = "abort-safe"
abi = "1.0"
"#;

#[test]
fn a_whole_manifest_is_read() {
    let text = format!(
        "{GOOD}engines = [\"rerank\", \"embed\"]\nprivate_libraries = [\"lib/libfoo.so\"]\n\
         [files]\n\"lib/libfoo.so\" = \"{}\"\n[engine.config]\nthreads = 2\nfast = true\nname = \"x\"\n",
        "ab".repeat(32)
    );
    let manifest = Manifest::parse(&text).unwrap();
    assert_eq!(manifest.id, "owned");
    let library = manifest.library().unwrap();
    assert_eq!(library.risk, Risk::AbortSafe);
    assert_eq!(library.abi_major, 1);
    assert_eq!(library.private, [PathBuf::from("lib/libfoo.so")]);
    assert_eq!(manifest.main_file(), Path::new("lib/libsynapse_owned.so"));
    assert_eq!(manifest.engines, Some(vec![Offer::Embed, Offer::Rerank]));
    let config: Vec<_> = manifest
        .config
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .collect();
    assert_eq!(config, [("fast", "true"), ("name", "x"), ("threads", "2")]);
}

/// Proves ENG-05: a bundle that says nothing is taken to be able to abort.
#[test]
fn absent_risk_is_the_worse_one() {
    let manifest = Manifest::parse(&GOOD.replace("risk = \"abort-safe\"\n", "")).unwrap();
    assert_eq!(manifest.library().unwrap().risk, Risk::AbortCapable);
}

const PROGRAM: &str = r#"
schema = 1
id = "hashed"
version = "0.1.0"
kind = "executable"
program = "worker.py"
protocol = 3
"#;

#[test]
fn an_executable_names_its_program_and_its_protocol() {
    let manifest = Manifest::parse(PROGRAM).unwrap();
    let program = Main::Program {
        path: PathBuf::from("worker.py"),
        protocol: 3,
    };
    assert_eq!(manifest.main, program);
    assert_eq!(manifest.main_file(), Path::new("worker.py"));
    assert!(manifest.library().unwrap_err().message.contains("worker.py"));
}

#[test]
fn keys_of_the_other_kind_are_refused_by_name() {
    use RefusalReason::{ManifestInvalid, PathEscape};
    let table = [
        (
            PROGRAM,
            "protocol = 3",
            "protocol = 3\nlibrary = \"x.so\"",
            "library: belongs to",
        ),
        (PROGRAM, "protocol = 3", "protocol = 3\nabi = \"1\"", "abi: belongs to"),
        (
            PROGRAM,
            "protocol = 3",
            "protocol = 3\nprivate_libraries = [\"x.so\"]",
            "private_libraries: belongs",
        ),
        (
            PROGRAM,
            "protocol = 3",
            "protocol = 3\nrisk = \"abort-safe\"",
            "risk: an executable always",
        ),
        (
            PROGRAM,
            "protocol = 3",
            "",
            "protocol: expected the worker protocol's version",
        ),
        (PROGRAM, "protocol = 3", "protocol = \"3\"", "invalid type: string"),
        (PROGRAM, "program = \"worker.py\"", "", "program: expected a value"),
        (
            GOOD,
            "abi = \"1.0\"",
            "abi = \"1.0\"\nprogram = \"x\"",
            "program: belongs to",
        ),
        (
            GOOD,
            "abi = \"1.0\"",
            "abi = \"1.0\"\nprotocol = 3",
            "protocol: belongs to",
        ),
        (GOOD, "abi = \"1.0\"", "", "abi: expected a value"),
        (
            GOOD,
            "library = \"lib/libsynapse_owned.so\"",
            "",
            "library: expected a value",
        ),
    ];
    for (whole, from, to, words) in table {
        let text = whole.replacen(from, to, 1);
        assert_ne!(text, whole, "{from} is not in the text");
        let refusal = Manifest::parse(&text).unwrap_err();
        assert_eq!(refusal.reason, ManifestInvalid, "{to}: {}", refusal.message);
        assert!(refusal.message.contains(words), "{to}: {}", refusal.message);
    }
    let outside = PROGRAM.replace("worker.py", "../worker.py");
    assert_eq!(Manifest::parse(&outside).unwrap_err().reason, PathEscape);
}

#[test]
fn bad_manifests_are_refused_by_field() {
    use RefusalReason::{ManifestInvalid, ManifestSchema, PathEscape};
    let table = [
        (
            "schema = 1",
            "schema = 2",
            ManifestSchema,
            "schema: expected 1, found 2",
        ),
        ("schema = 1", "", ManifestInvalid, "schema: expected 1, found nothing"),
        ("risk =", "rsik =", ManifestInvalid, "unknown field `rsik`"),
        ("\"abort-safe\"", "\"safe\"", ManifestInvalid, "unknown variant `safe`"),
        (
            "\"library\"",
            "\"service\"",
            ManifestInvalid,
            "unknown variant `service`",
        ),
        ("id = \"owned\"", "id = \"Owned\"", ManifestInvalid, "id: expected"),
        ("id = \"owned\"", "id = \"\"", ManifestInvalid, "id: expected"),
        ("id = \"owned\"", "id = \"a/b\"", ManifestInvalid, "id: expected"),
        ("\"0.1.0\"", "\"0.1\"", ManifestInvalid, "version: expected"),
        ("\"1.0\"", "\"one\"", ManifestInvalid, "abi: expected"),
        ("\"1.0\"", "\"1.0.0\"", ManifestInvalid, "abi: expected"),
        (
            "lib/libsynapse",
            "../libsynapse",
            PathEscape,
            "library: expected a path inside",
        ),
        (
            "lib/libsynapse",
            "/lib/libsynapse",
            PathEscape,
            "library: expected a path inside",
        ),
        (
            "lib/libsynapse",
            "lib//libsynapse",
            PathEscape,
            "library: expected a path inside",
        ),
        (
            "lib/libsynapse",
            "c:/libsynapse",
            PathEscape,
            "library: expected a path inside",
        ),
        ("abi =", "engines = []\nabi =", ManifestInvalid, "engines: expected"),
        (
            "abi =",
            "engines = [\"embed\", \"embed\"]\nabi =",
            ManifestInvalid,
            "engines: expected",
        ),
        (
            "abi = \"1.0\"",
            "abi = \"1.0\"\n[engine]\nkonfig = 1",
            ManifestInvalid,
            "unknown field `konfig`",
        ),
        (
            "abi = \"1.0\"",
            "abi = \"1.0\"\n[engine.config]\n\"A b\" = 1",
            ManifestInvalid,
            "engine.config: expected",
        ),
        (
            "abi = \"1.0\"",
            "abi = \"1.0\"\n[files]\n\"x\" = \"00\"",
            ManifestInvalid,
            "64 lower-case hex",
        ),
        ("abi = \"1.0\"", "abi = \"1.0", ManifestInvalid, "line 8"),
    ];
    for (from, to, reason, words) in table {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from} is not in the text");
        let refusal = Manifest::parse(&text).unwrap_err();
        assert_eq!(refusal.reason, reason, "{to}: {}", refusal.message);
        assert!(refusal.message.contains(words), "{to}: {}", refusal.message);
        assert!(!refusal.message.contains('\n'), "{to}: {}", refusal.message);
    }
}

/// The published schema is the one of this type. `SYNAPSE_BLESS=1` writes it.
#[test]
fn the_json_schema_is_the_published_one() {
    let schema = schemars::schema_for!(Text);
    let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schemas/plugin.schema.json");
    if std::env::var_os("SYNAPSE_BLESS").is_some() {
        std::fs::create_dir_all(std::path::Path::new(file).parent().unwrap()).unwrap();
        std::fs::write(file, &text).unwrap();
    }
    let published = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        published == text,
        "docs/schemas/plugin.schema.json is old: run this test with SYNAPSE_BLESS=1"
    );
}
