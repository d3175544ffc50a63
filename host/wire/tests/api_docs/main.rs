//! Writes and checks `docs/api/`: schemas, examples and the page made from them.
//!
//! Everything under `docs/api/` comes from the types of this crate and from the examples in `examples.rs`. This test
//! fails where the committed files differ; `SYNAPSE_BLESS=1 cargo test -p synapse-wire` rewrites them, so a change of
//! the wire is visible in review. The examples are typed values, so they cannot name a field that does not exist.

mod alias;
mod errors;
mod examples;
mod markdown;
mod probe;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};
use synapse_wire::client::{
    EmbedBatch, EmbedQuery, ErrorObject, Id, Method, MicrollmOneshot, Operation, RerankScore, Stamp, Stamped,
    encode_error, encode_request, encode_result, parse_params, parse_request, parse_response,
};

/// One operation with everything that is published about it.
struct Documented {
    method: Method,
    /// A schema of `{params, result}`.
    schema: Value,
    examples: Vec<Example>,
}

/// A request and its answer, as lines.
struct Example {
    title: &'static str,
    request: String,
    response: String,
}

fn stamp() -> Stamp {
    Stamp {
        request_id: "7c-000012".to_owned(),
        module_generation: 1_764_423_000,
    }
}

fn line(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap().trim_end().to_owned()
}

fn document<O: Operation>(examples: Vec<(&'static str, O::Params, O::Result)>) -> Documented {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let params = generator.subschema_for::<O::Params>();
    let result = generator.root_schema_for::<Stamped<O::Result>>();
    let examples = examples
        .into_iter()
        .map(|(title, params, result)| {
            let id = Id::Number(1);
            Example {
                title,
                request: line(encode_request(&id, O::METHOD.name(), &params).unwrap()),
                response: line(encode_result(&id, &stamp(), &result).unwrap()),
            }
        })
        .collect();
    Documented {
        method: O::METHOD,
        schema: operation_schema(O::METHOD, generator, params.to_value(), result.to_value()),
        examples,
    }
}

/// One document for both: the shared types stand under `$defs` once.
fn operation_schema(method: Method, mut generator: SchemaGenerator, params: Value, mut result: Value) -> Value {
    let mut defs = generator.take_definitions(true);
    if let Some(Value::Object(more)) = result.as_object_mut().and_then(|result| result.remove("$defs")) {
        defs.extend(more);
    }
    if let Some(result) = result.as_object_mut() {
        result.remove("$schema");
        result.remove("title");
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": method.name(),
        "description": method.summary(),
        "type": "object",
        "properties": {"params": params, "result": result},
        "$defs": defs,
    })
}

fn error_schema() -> Value {
    let mut schema = SchemaSettings::draft2020_12()
        .into_generator()
        .into_root_schema_for::<ErrorObject>()
        .to_value();
    schema["title"] = json!("error");
    schema
}

fn validator(schema: &Value) -> jsonschema::Validator {
    jsonschema::draft202012::new(schema).unwrap()
}

/// The files of `docs/api/` by name.
fn files() -> BTreeMap<String, String> {
    let operations = examples::operations();
    let mut files = BTreeMap::new();
    for operation in &operations {
        let name = operation.method.name();
        files.insert(format!("{name}.schema.json"), pretty(&operation.schema));
        let lines: String = operation
            .examples
            .iter()
            .map(|example| format!("{}\n{}\n", example.request, example.response))
            .collect();
        files.insert(format!("examples/{name}.jsonl"), lines);
    }
    files.insert("error.schema.json".to_owned(), pretty(&error_schema()));
    let errors: String = errors::all()
        .iter()
        .map(|(_, id, error)| line(encode_error(id.as_ref(), error).unwrap()) + "\n")
        .collect();
    files.insert("examples/error.jsonl".to_owned(), errors);
    files.insert("README.md".to_owned(), markdown::page(&operations, &error_schema()));
    files
}

/// Indented, with keys in the order of their names whatever the features of serde_json in this build.
fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(&sorted(value)).unwrap() + "\n"
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let by_name: BTreeMap<&String, Value> = fields.iter().map(|(name, field)| (name, sorted(field))).collect();
            json!(by_name)
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        other => other.clone(),
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api")
}

/// The names of the files under a folder, relative, with `/`.
fn names(folder: &Path, prefix: &str) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let entry = entry.unwrap();
        let name = format!("{prefix}{}", entry.file_name().into_string().unwrap());
        if entry.file_type().unwrap().is_dir() {
            names.extend(self::names(&entry.path(), &format!("{name}/")));
        } else {
            names.push(name);
        }
    }
    names
}

#[test]
fn the_committed_documents_are_those_of_the_types() {
    let (folder, files) = (folder(), files());
    if std::env::var_os("SYNAPSE_BLESS").is_some_and(|value| value == "1") {
        for name in names(&folder, "").iter().filter(|name| !files.contains_key(*name)) {
            fs::remove_file(folder.join(name)).unwrap();
        }
        for (name, text) in &files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }
    let mut wrong: Vec<String> = names(&folder, "")
        .into_iter()
        .filter(|name| !files.contains_key(name))
        .collect();
    for (name, text) in &files {
        if fs::read_to_string(folder.join(name)).unwrap_or_default() != *text {
            wrong.push(name.clone());
        }
    }
    assert!(
        wrong.is_empty(),
        "docs/api differs from the types in {wrong:?}; SYNAPSE_BLESS=1 cargo test -p synapse-wire --test api_docs rewrites it"
    );
}

#[test]
fn every_operation_is_documented_with_an_example() {
    let documented: Vec<Method> = examples::operations()
        .iter()
        .map(|operation| operation.method)
        .collect();
    assert_eq!(documented, Method::ALL);
    for operation in examples::operations() {
        assert!(!operation.examples.is_empty(), "{} has no example", operation.method);
    }
}

/// The schemas are checked by an independent implementation (`jsonschema`).
///
/// Proves API-12, API-13, API-14.
#[test]
fn the_examples_are_what_the_schemas_say() {
    for operation in examples::operations() {
        let validator = validator(&operation.schema);
        for example in &operation.examples {
            let request: Value = serde_json::from_str(&example.request).unwrap();
            let response: Value = serde_json::from_str(&example.response).unwrap();
            let pair = json!({"params": request["params"], "result": response["result"]});
            let problems: Vec<String> = validator.iter_errors(&pair).map(|error| error.to_string()).collect();
            assert!(problems.is_empty(), "{}: {problems:?}", operation.method);
            for field in ["module_generation", "request_id"] {
                assert!(!response["result"][field].is_null(), "{}: no {field}", operation.method);
            }
            assert!(parse_request(example.request.as_bytes()).is_ok());
            assert!(parse_response(example.response.as_bytes()).is_ok());
        }
        if matches!(operation.method, Method::EmbedQuery) {
            let required: Vec<&str> = operation.schema["properties"]["result"]["required"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(Value::as_str)
                .collect();
            for field in [
                "fingerprint",
                "table_epoch",
                "dims",
                "provenance",
                "vectors",
                "real_token_counts",
                "module_generation",
                "equivalent_to",
                "items",
            ] {
                assert!(required.contains(&field), "embed.query may leave out {field}");
            }
        }
    }
    let validator = validator(&error_schema());
    for (title, _, error) in errors::all() {
        assert!(validator.is_valid(&serde_json::to_value(&error).unwrap()), "{title}");
    }
}

/// A result that lacks what every reply carries, or a request with a field too many, does not pass.
#[test]
fn the_schemas_refuse_what_the_wire_refuses() {
    for operation in examples::operations() {
        let validator = validator(&operation.schema);
        let example = &operation.examples[0];
        let request: Value = serde_json::from_str(&example.request).unwrap();
        let response: Value = serde_json::from_str(&example.response).unwrap();
        let mut extra = json!({"params": request["params"]});
        extra["params"]["colour"] = json!(1);
        assert!(
            !validator.is_valid(&extra),
            "{} takes an unknown field",
            operation.method
        );
        let mut unstamped = json!({"result": response["result"]});
        assert!(validator.is_valid(&unstamped), "{}", operation.method);
        unstamped["result"].as_object_mut().unwrap().remove("module_generation");
        assert!(
            !validator.is_valid(&unstamped),
            "{} needs no module_generation",
            operation.method
        );
        let mut newer = json!({"result": response["result"]});
        newer["result"]["from_a_newer_daemon"] = json!([1]);
        assert!(
            validator.is_valid(&newer),
            "{} forbids fields to come",
            operation.method
        );
    }
}

/// The refusal of an operation's params with one more field, or nothing where they are taken.
fn refusal<O: Operation>(line: &str, field: &str, value: &Value) -> Option<String> {
    let mut request: Value = serde_json::from_str(line).unwrap();
    request["params"][field] = value.clone();
    let request = parse_request(request.to_string().as_bytes()).unwrap();
    parse_params::<O::Params>(request.params.as_deref())
        .err()
        .map(|error| error.0)
}

/// Each common field is taken with a value of its type and refused with another, by the types and by the schema, in
/// every operation that needs an engine.
///
/// Proves API-04.
#[test]
fn the_common_fields_stand_in_every_engine_operation() {
    type Refusal = fn(&str, &str, &Value) -> Option<String>;
    let engine_operations: [(Method, Refusal); 4] = [
        (Method::EmbedQuery, refusal::<EmbedQuery>),
        (Method::EmbedBatch, refusal::<EmbedBatch>),
        (Method::RerankScore, refusal::<RerankScore>),
        (Method::MicrollmOneshot, refusal::<MicrollmOneshot>),
    ];
    let fields = [
        ("deadline_ms", json!(2000), json!("soon")),
        ("max_queue_ms", json!(1), json!(-1)),
        ("fail_if_not_ready", json!(true), json!(1)),
        ("required_fingerprint", json!("ab"), json!(7)),
        ("allow_equivalent", json!(true), json!("yes")),
        ("required_epoch", json!(3), json!(0.5)),
        ("require_device", json!("cpu"), json!(["cpu"])),
    ];
    let documented = examples::operations();
    for (method, refusal) in engine_operations {
        let operation = documented.iter().find(|operation| operation.method == method).unwrap();
        let validator = validator(&operation.schema);
        let request = &operation.examples[0].request;
        let by_schema = |field: &str, value: &Value| {
            let request: Value = serde_json::from_str(request).unwrap();
            let mut params = request["params"].clone();
            params[field] = value.clone();
            validator.is_valid(&json!({"params": params}))
        };
        for (field, right, wrong) in &fields {
            assert_eq!(refusal(request, field, right), None, "{method}: {field}");
            assert!(by_schema(field, right), "{method}: {field}");
            assert!(
                refusal(request, field, wrong).is_some(),
                "{method}: {field} takes {wrong}"
            );
            assert!(!by_schema(field, wrong), "{method}: {field} takes {wrong}");
        }
        let named = refusal(request, "deadline", &json!(1)).unwrap();
        assert!(named.contains("`deadline`"), "{method}: {named}");
        assert!(!by_schema("deadline", &json!(1)), "{method}");
    }
}
