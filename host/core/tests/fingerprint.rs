//! Golden vectors and the flip table of the fingerprint.
//!
//! The vectors in `testdata/fingerprint.json` are written by `testdata/fingerprint.py`, which shares no code with the
//! crate. They are public: whoever stores vectors may compute a fingerprint by the same rules.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;
use synapse_core::canon::{self, Value, config_digest};
use synapse_core::digest::{Sha256Digest, sha256};
use synapse_core::engine::EngineIdentity;
use synapse_core::fingerprint::{
    EnvelopeBounds, NumericProfile, ServedShape, ThreadPolicy, fingerprint, model_digest, numeric_profile_id,
};

fn golden() -> Json {
    serde_json::from_str(include_str!("../testdata/fingerprint.json")).expect("the golden file is JSON")
}

fn text(json: &Json) -> String {
    json.as_str().expect("a string").to_owned()
}

fn digest(json: &Json) -> Sha256Digest {
    text(json).parse().expect("a digest")
}

fn number(json: &Json) -> u32 {
    u32::try_from(json.as_u64().expect("a number")).expect("a 32-bit number")
}

fn profile(json: &Json) -> NumericProfile {
    let envelope = &json["envelope"];
    let flags = json["engine"]["build_flags"].as_array().expect("a list");
    let templates = json["templates"].as_object().expect("an object");
    NumericProfile {
        model_digest: digest(&json["model_digest"]),
        quant: text(&json["quant"]),
        engine: EngineIdentity {
            engine: text(&json["engine"]["engine"]),
            version: text(&json["engine"]["version"]),
            build_flags: flags.iter().map(text).collect(),
        },
        tokenizer_digest: json["tokenizer_digest"].as_str().map(|t| t.parse().expect("a digest")),
        pooling: text(&json["pooling"]),
        normalize: json["normalize"].as_bool().expect("a flag"),
        dtype: text(&json["dtype"]),
        flash_attention: json["flash_attention"].as_bool().expect("a flag"),
        envelope: EnvelopeBounds {
            max_tokens: number(&envelope["max_tokens"]),
            max_batch: number(&envelope["max_batch"]),
            max_batch_tokens: number(&envelope["max_batch_tokens"]),
            max_sequences: number(&envelope["max_sequences"]),
        },
        templates: templates
            .iter()
            .map(|(role, template)| (role.clone(), text(template)))
            .collect(),
        thread_policy: match json["thread_class"].as_str() {
            Some(class) => ThreadPolicy::Class(class.to_owned()),
            None => ThreadPolicy::Invariant,
        },
        shape_class: json["shape_class"].as_str().map(str::to_owned),
    }
}

fn canon_value(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(flag) => Value::Bool(*flag),
        Json::Number(number) => match number.as_i64() {
            Some(integer) => Value::Int(integer),
            None => Value::Number(number.as_f64().expect("a double")),
        },
        Json::String(text) => Value::Str(text.clone()),
        Json::Array(items) => Value::Array(items.iter().map(canon_value).collect()),
        Json::Object(map) => Value::object(map.iter().map(|(key, item)| (key.clone(), canon_value(item)))),
    }
}

/// Proves FPR-02. Expected values: `testdata/fingerprint.py`.
#[test]
fn golden_vectors() {
    let golden = golden();
    let cases = golden["cases"].as_array().expect("a list");
    assert!(cases.len() >= 5);
    let mut seen = BTreeSet::new();
    for case in cases {
        let name = text(&case["name"]);
        let profile = profile(&case["profile"]);
        let served = ServedShape {
            dims: number(&case["served"]["dims"]),
            normalized: case["served"]["normalized"].as_bool().expect("a flag"),
        };
        // The stated form is what is hashed, so that a reader can follow the vector by hand.
        let form = text(&case["profile_form"]);
        let by_hand = sha256(format!("synapse.numeric_profile.v1\0{form}").as_bytes());
        assert_eq!(by_hand, digest(&case["numeric_profile_id"]), "{name}");
        assert_eq!(
            numeric_profile_id(&profile),
            digest(&case["numeric_profile_id"]),
            "{name}"
        );
        assert_eq!(fingerprint(&profile, &served), digest(&case["fingerprint"]), "{name}");
        seen.insert(fingerprint(&profile, &served));
    }
    assert_eq!(seen.len(), cases.len(), "every case is a space of its own");
}

/// Expected values: `testdata/fingerprint.py`.
#[test]
fn golden_digests_of_model_and_config() {
    let golden = golden();
    let config = canon_value(&golden["config_digest"]["config"]);
    assert_eq!(config_digest(&config), Ok(digest(&golden["config_digest"]["digest"])));
    let files = golden["model_digest"]["files"].as_array().expect("a list");
    let pairs: Vec<(String, Sha256Digest)> = files
        .iter()
        .map(|file| (text(&file["role"]), digest(&file["sha256"])))
        .collect();
    let expected = digest(&golden["model_digest"]["digest"]);
    assert_eq!(model_digest(pairs.clone()), expected);
    assert_eq!(
        model_digest(pairs.into_iter().rev()),
        expected,
        "the order of the files does not count"
    );
}

fn base() -> NumericProfile {
    NumericProfile {
        model_digest: sha256(b"model"),
        quant: "f32".to_owned(),
        engine: EngineIdentity {
            engine: "owned".to_owned(),
            version: "1".to_owned(),
            build_flags: vec!["a".to_owned(), "b".to_owned()],
        },
        tokenizer_digest: Some(sha256(b"tokenizer")),
        pooling: "mean".to_owned(),
        normalize: true,
        dtype: "f32".to_owned(),
        flash_attention: false,
        envelope: EnvelopeBounds {
            max_tokens: 512,
            max_batch: 64,
            max_batch_tokens: 16_384,
            max_sequences: 64,
        },
        templates: BTreeMap::from([
            ("document".to_owned(), "passage: {text}".to_owned()),
            ("query".to_owned(), "query: {text}".to_owned()),
        ]),
        thread_policy: ThreadPolicy::Invariant,
        shape_class: None,
    }
}

type Flip = (&'static str, fn(&mut NumericProfile));

/// One flip per input; some inputs have several.
const FLIPS: &[Flip] = &[
    ("model digest", |p| p.model_digest = sha256(b"another model")),
    ("quant", |p| p.quant = "f16".to_owned()),
    ("engine name", |p| p.engine.engine = "ort".to_owned()),
    ("engine version", |p| p.engine.version = "2".to_owned()),
    ("a build flag more", |p| p.engine.build_flags.push("c".to_owned())),
    ("a build flag less", |p| drop(p.engine.build_flags.pop())),
    ("another build flag", |p| p.engine.build_flags[0] = "x".to_owned()),
    ("tokenizer", |p| p.tokenizer_digest = Some(sha256(b"another tokenizer"))),
    ("no tokenizer", |p| p.tokenizer_digest = None),
    ("pooling", |p| p.pooling = "cls".to_owned()),
    ("normalisation", |p| p.normalize = false),
    ("dtype bf16", |p| p.dtype = "bf16".to_owned()),
    ("dtype f16", |p| p.dtype = "f16".to_owned()),
    ("flash attention", |p| p.flash_attention = true),
    ("envelope: tokens", |p| p.envelope.max_tokens = 256),
    ("envelope: batch", |p| p.envelope.max_batch = 32),
    ("envelope: batch tokens", |p| p.envelope.max_batch_tokens = 8_192),
    ("envelope: sequences", |p| p.envelope.max_sequences = 1),
    ("a template's text", |p| {
        drop(p.templates.insert("query".to_owned(), "q: {text}".to_owned()))
    }),
    ("a template less", |p| drop(p.templates.remove("document"))),
    ("templates exchanged", |p| {
        let query = p
            .templates
            .insert("query".to_owned(), "passage: {text}".to_owned())
            .expect("present");
        p.templates.insert("document".to_owned(), query);
    }),
    ("thread class 1", |p| {
        p.thread_policy = ThreadPolicy::Class("1".to_owned())
    }),
    ("thread class 2", |p| {
        p.thread_policy = ThreadPolicy::Class("2".to_owned())
    }),
    ("shape class", |p| p.shape_class = Some("batch<=8".to_owned())),
];

/// Proves FPR-01, FPR-03, FPR-06. Each flip gives an id of its own, and no two flips the same one.
#[test]
fn every_input_changes_the_id() {
    // A new field of the profile does not compile here until somebody has put it into the table above.
    let NumericProfile {
        model_digest: _,
        quant: _,
        engine: EngineIdentity {
            engine: _,
            version: _,
            build_flags: _,
        },
        tokenizer_digest: _,
        pooling: _,
        normalize: _,
        dtype: _,
        flash_attention: _,
        envelope:
            EnvelopeBounds {
                max_tokens: _,
                max_batch: _,
                max_batch_tokens: _,
                max_sequences: _,
            },
        templates: _,
        thread_policy: _,
        shape_class: _,
    } = base();
    let served = ServedShape {
        dims: 384,
        normalized: true,
    };
    let mut ids = BTreeMap::from([(numeric_profile_id(&base()), "base")]);
    let mut prints = BTreeSet::from([fingerprint(&base(), &served)]);
    for (name, flip) in FLIPS {
        let mut profile = base();
        flip(&mut profile);
        let other = ids.insert(numeric_profile_id(&profile), name);
        assert_eq!(other, None, "{name} gives the id of {other:?}");
        assert!(
            prints.insert(fingerprint(&profile, &served)),
            "{name} gives a fingerprint twice"
        );
    }
}

/// What must not move the space: the order in which sets are written, and a flag said twice.
#[test]
fn order_and_repetition_do_not_change_the_id() {
    let unmoved: &[Flip] = &[
        ("build flags in another order", |p| p.engine.build_flags.reverse()),
        ("a build flag twice", |p| p.engine.build_flags.push("a".to_owned())),
        ("templates written in another order", |p| {
            let pairs: Vec<_> = std::mem::take(&mut p.templates).into_iter().rev().collect();
            p.templates.extend(pairs);
        }),
    ];
    for (name, flip) in unmoved {
        let mut profile = base();
        flip(&mut profile);
        assert_eq!(numeric_profile_id(&profile), numeric_profile_id(&base()), "{name}");
    }
}

/// The two hashes: what a request chooses about its output moves the fingerprint and not the profile.
#[test]
fn the_served_shape_moves_the_fingerprint_only() {
    let of = |dims, normalized| fingerprint(&base(), &ServedShape { dims, normalized });
    let all = BTreeSet::from([of(384, true), of(384, false), of(128, true), of(128, false)]);
    assert_eq!(all.len(), 4);
}

/// A hash input cannot hold what has two forms in two implementations.
#[test]
fn hash_inputs_are_strict() {
    let hash = |value: Value| canon::domain_hash("test.v1", &value);
    assert!(hash(Value::object([("a", Value::Int(1)), ("b", Value::text("ü"))])).is_ok());
    assert!(matches!(
        hash(Value::Number(1.0)),
        Err(canon::CanonError::FloatInHashInput(_))
    ));
    assert!(matches!(
        hash(Value::object([("ü", Value::Int(1))])),
        Err(canon::CanonError::KeyNotAscii(_))
    ));
    assert_ne!(
        hash(Value::Null),
        canon::domain_hash("test.v2", &Value::Null),
        "the domain is part of the hash"
    );
    let absent = Value::object::<&str>([]);
    assert_ne!(
        hash(Value::object([("a", Value::Null)])),
        hash(absent),
        "absent is not null"
    );
}
