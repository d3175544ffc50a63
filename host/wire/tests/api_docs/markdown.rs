//! The page `docs/api/README.md`: an introduction by hand, then every operation with tables made from its schema.
//!
//! No state. Only schemas and examples come in, so the page cannot say anything that the types do not.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use crate::{Documented, errors};

const INTRODUCTION: &str = include_str!("introduction.md");

/// The whole page.
pub fn page(operations: &[Documented], error: &Value) -> String {
    let mut page = INTRODUCTION.to_owned();
    let mut types = BTreeMap::new();
    collect(error, &mut types);
    page.push_str("\n## Operations\n\n| operation | what it does | takes a slot |\n|---|---|---|\n");
    for operation in operations {
        let name = operation.method.name();
        let slot = if operation.method.is_status() { "no" } else { "yes" };
        writeln!(
            page,
            "| [`{name}`](#{}) | {} | {slot} |",
            anchor(name),
            operation.method.summary()
        )
        .unwrap();
    }
    for operation in operations {
        collect(&operation.schema, &mut types);
        section(&mut page, operation);
    }
    errors(&mut page, error);
    page.push_str("\n## Types\n\nShared by several operations.\n");
    // Params and results have their tables above.
    for (name, schema) in types
        .iter()
        .filter(|(name, _)| !name.ends_with("Params") && !name.ends_with("Reply"))
    {
        type_section(&mut page, name, schema);
    }
    page
}

/// The heading's anchor as code hosts make it.
fn anchor(heading: &str) -> String {
    heading
        .chars()
        .filter(|character| character.is_alphanumeric() || *character == '-' || *character == '_')
        .collect::<String>()
        .to_lowercase()
}

fn collect(schema: &Value, types: &mut BTreeMap<String, Value>) {
    for (name, definition) in schema["$defs"].as_object().into_iter().flatten() {
        types.insert(name.clone(), definition.clone());
    }
}

fn section(page: &mut String, operation: &Documented) {
    let name = operation.method.name();
    write!(
        page,
        "\n### {name}\n\n{} Schema: [`{name}.schema.json`]({name}.schema.json).\n\n",
        operation.method.summary()
    )
    .unwrap();
    let params = resolve(&operation.schema, &operation.schema["properties"]["params"]);
    if fields(params).is_empty() {
        page.push_str("Params: none.\n");
    } else {
        page.push_str("Params:\n\n");
        table(page, params, "required");
    }
    page.push_str("\nResult:\n\n");
    let result = &operation.schema["properties"]["result"];
    match alternatives(result) {
        None => table(page, result, "always there"),
        Some(alternatives) => {
            for alternative in alternatives {
                let shown = resolve(&operation.schema, alternative);
                write!(page, "{}\n\n", first_sentence(alternative, shown)).unwrap();
                table(page, shown, "always there");
                page.push('\n');
            }
            page.push_str("Each with `request_id` and `module_generation`, as every result.\n");
        }
    }
    for example in &operation.examples {
        write!(
            page,
            "\n{}:\n\n```json\n{}\n{}\n```\n",
            example.title, example.request, example.response
        )
        .unwrap();
    }
}

fn first_sentence<'a>(alternative: &'a Value, shown: &'a Value) -> &'a str {
    alternative["description"]
        .as_str()
        .or(shown["description"].as_str())
        .unwrap_or_default()
}

fn errors(page: &mut String, error: &Value) {
    page.push_str(
        "\n## Errors\n\nEvery code with its integer, class and meaning: [errors.md](../errors.md). Schema: \
         [`error.schema.json`](error.schema.json).\n\n",
    );
    table(page, error, "always there");
    page.push_str("\n`data`:\n\n");
    table(page, &error["$defs"]["ErrorData"], "always there");
    for (title, id, error) in errors::all() {
        let bytes = synapse_wire::client::encode_error(id.as_ref(), &error).unwrap();
        let line = String::from_utf8(bytes).unwrap();
        write!(page, "\n{title}:\n\n```json\n{line}```\n").unwrap();
    }
}

fn type_section(page: &mut String, name: &str, schema: &Value) {
    write!(page, "\n### {name}\n\n").unwrap();
    if let Some(description) = schema["description"].as_str() {
        write!(page, "{}\n\n", flat(description)).unwrap();
    }
    if !fields(schema).is_empty() {
        table(page, schema, "always there");
    } else if let Some(values) = schema["enum"].as_array() {
        for value in values.iter().filter_map(Value::as_str) {
            writeln!(page, "- `{value}`").unwrap();
        }
    } else {
        for variant in schema["oneOf"].as_array().into_iter().flatten() {
            let Some(value) = variant["const"].as_str() else {
                continue;
            };
            writeln!(
                page,
                "- `{value}`: {}",
                flat(variant["description"].as_str().unwrap_or_default())
            )
            .unwrap();
        }
    }
}

/// The schema behind a reference.
fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let name = schema["$ref"]
        .as_str()
        .and_then(|reference| reference.strip_prefix("#/$defs/"));
    name.map_or(schema, |name| &root["$defs"][name])
}

/// The alternatives of a result that is one of several objects.
fn alternatives(schema: &Value) -> Option<&Vec<Value>> {
    schema["anyOf"].as_array()
}

/// The fields of an object, the ones that are always there first, then by name.
fn fields(schema: &Value) -> Vec<(&String, &Value)> {
    let required = required(schema);
    let mut fields: Vec<_> = schema["properties"].as_object().into_iter().flatten().collect();
    fields.sort_by_key(|(name, _)| (!required.contains(&name.as_str()), *name));
    fields
}

fn required(schema: &Value) -> Vec<&str> {
    let names = schema["required"].as_array().into_iter().flatten();
    names.filter_map(Value::as_str).collect()
}

fn table(page: &mut String, schema: &Value, required_heading: &str) {
    let required = required(schema);
    writeln!(
        page,
        "| field | type | {required_heading} | meaning |\n|---|---|---|---|"
    )
    .unwrap();
    for (name, field) in fields(schema) {
        let must = if required.contains(&name.as_str()) { "yes" } else { "" };
        let meaning = flat(field["description"].as_str().unwrap_or_default());
        writeln!(page, "| `{name}` | {} | {must} | {meaning} |", type_of(field)).unwrap();
    }
}

/// A schema's type in words, with links to the shared types.
fn type_of(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.trim_start_matches("#/$defs/");
        return format!("[{name}](#{})", anchor(name));
    }
    for key in ["anyOf", "oneOf", "allOf"] {
        if let Some(list) = schema[key].as_array() {
            let words: Vec<String> = list.iter().map(type_of).filter(|word| !word.is_empty()).collect();
            return words.join(" or ");
        }
    }
    let word = |word: &str| match word {
        "array" => format!("array of {}", type_of(&schema["items"])),
        other => other.to_owned(),
    };
    match &schema["type"] {
        Value::String(one) => word(one),
        Value::Array(several) => {
            let words: Vec<String> = several.iter().filter_map(Value::as_str).map(word).collect();
            words.join(" or ")
        }
        _ => "any".to_owned(),
    }
}

/// A description as one line of a table.
fn flat(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}
