//! What a chat template can call: Jinja's filters and tests that templates use, a few methods of Python's strings and
//! dictionaries, `namespace`, `range` and `raise_exception`.
//!
//! State: none. Callers: [`super::ChatTemplate`]. No loader, so nothing can be included; no clock and no randomness
//! (`strftime_now` is undefined, and templates that know it ask first), so a prompt depends on its messages only; no
//! `tojson`, because no tools are handed in and a message written as JSON would be altered.

use std::collections::BTreeMap;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior, filters, functions};

use super::guard::{SCALAR, SLICED, SMALL};

/// What a template may spend: instructions, and 64 bytes of any text or list for each. A conversation of a hundred
/// messages is rendered with it (a test has one), and an endless loop ends after some milliseconds.
const FUEL: u64 = 100_000;
/// Deepest nesting of calls, as the library counts it: a macro's call counts several times.
const MAX_RECURSION: usize = 100;
/// Most parts of a split text.
const MAX_PARTS: usize = 1_000;
/// Most values in a list or map that a template makes, those inside its parts counted each time they are there.
const MAX_VALUES: usize = 2_048;
/// Deepest nesting of such a value: a list of messages has three levels.
const MAX_LEVELS: usize = 6;
/// The library's filters that no chat template needs: those that build lists of lists, format numbers or escape HTML.
const REMOVED_FILTERS: [&str; 21] = [
    "abs", "attr", "batch", "bool", "chain", "dictsort", "escape", "e", "float", "format", "groupby", "lines", "max",
    "min", "pprint", "round", "slice", "split", "sum", "unique", "zip",
];

/// The template's own refusal (`raise_exception`), so that it can be told from a failure.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Raised(pub String);

/// Everything that a template can call.
pub fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(MAX_RECURSION);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    for filter in REMOVED_FILTERS {
        environment.remove_filter(filter);
    }
    for name in ["debug", "dict"] {
        environment.remove_global(name);
    }
    environment.add_filter(SCALAR, scalar);
    environment.add_filter(SLICED, sliced);
    environment.add_filter(SMALL, small);
    environment.add_function("namespace", namespace);
    environment.add_function("raise_exception", raise);
    environment.set_unknown_method_callback(method);
    environment
}

fn is_scalar(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Undefined | ValueKind::None | ValueKind::Bool | ValueKind::Number | ValueKind::String
    )
}

fn refused(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.to_owned())
}

fn scalar(value: Value) -> Result<Value, Error> {
    if is_scalar(&value) {
        Ok(value)
    } else {
        Err(refused("only texts and numbers are multiplied here"))
    }
}

/// A scalar, or a list or map of few values; a list that is only described becomes one that is there.
fn small(state: &State, value: Value) -> Result<Value, Error> {
    if is_scalar(&value) {
        return Ok(value);
    }
    let value = sliced(state, value)?;
    let mut left = MAX_VALUES;
    count(&value, MAX_LEVELS, &mut left)?;
    state.consume_fuel(u64::try_from(MAX_VALUES - left).unwrap_or(u64::MAX))?;
    Ok(value)
}

/// Counts a value with all that it holds.
fn count(value: &Value, levels: usize, left: &mut usize) -> Result<(), Error> {
    *left = left
        .checked_sub(1)
        .ok_or_else(|| refused("a list or map of too many values"))?;
    if is_scalar(value) {
        return Ok(());
    }
    let levels = levels
        .checked_sub(1)
        .ok_or_else(|| refused("lists or maps too deep in each other"))?;
    match value.kind() {
        ValueKind::Seq => value.try_iter()?.try_for_each(|item| count(&item, levels, left)),
        // Of all maps only a plain one: a namespace could come to hold itself.
        ValueKind::Map => value
            .downcast_object_ref::<BTreeMap<Value, Value>>()
            .ok_or_else(|| refused("an object inside a list, a map or a namespace"))?
            .values()
            .try_for_each(|item| count(item, levels, left)),
        _ => Err(refused("an object inside a list, a map or a namespace")),
    }
}

fn sliced(state: &State, value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => filters::list(state, value),
        _ => Ok(value),
    }
}

fn namespace(state: &State, values: Kwargs) -> Result<Value, Error> {
    for name in values.args() {
        small(state, values.peek(name)?)?;
    }
    functions::namespace(Some(Value::from(values).into()))
}

fn raise(message: &str) -> Result<Value, Error> {
    let message = super::shorten(message);
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// Methods of Python's `str` and `dict` that templates call.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        return string_method(state, value, text, name, args);
    }
    if value.kind() != ValueKind::Map {
        return Err(Error::from(ErrorKind::UnknownMethod));
    }
    match (name, args) {
        ("get", [key] | [key, _]) => {
            let found = value.get_item(key)?;
            Ok(match args.get(1) {
                _ if !found.is_undefined() => found,
                Some(default) => default.clone(),
                None => Value::from(()),
            })
        }
        ("keys", []) => value.try_iter().map(Iterator::collect),
        ("items", []) => state.apply_filter("items", std::slice::from_ref(value)),
        ("values", []) => value
            .try_iter()?
            .map(|key| value.get_item(&key))
            .collect::<Result<Value, Error>>(),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

fn string_method(state: &mut State, value: &Value, text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let word = |index: usize| args.get(index).and_then(Value::as_str);
    let set = |chars: &str| chars.chars().collect::<Vec<char>>();
    Ok(match (name, args.len()) {
        ("strip", 0) => text.trim().into(),
        ("lstrip", 0) => text.trim_start().into(),
        ("rstrip", 0) => text.trim_end().into(),
        ("strip", 1) => text.trim_matches(set(word(0).unwrap_or_default()).as_slice()).into(),
        ("lstrip", 1) => text
            .trim_start_matches(set(word(0).unwrap_or_default()).as_slice())
            .into(),
        ("rstrip", 1) => text
            .trim_end_matches(set(word(0).unwrap_or_default()).as_slice())
            .into(),
        ("startswith", 1) => word(0).is_some_and(|start| text.starts_with(start)).into(),
        ("endswith", 1) => word(0).is_some_and(|end| text.ends_with(end)).into(),
        ("split", 0) => parts(text.split_whitespace())?,
        ("split", 1) => match word(0) {
            Some(separator) if !separator.is_empty() => parts(text.split(separator))?,
            _ => return Err(Error::from(ErrorKind::UnknownMethod)),
        },
        ("upper" | "lower" | "title" | "capitalize", 0) => state.apply_filter(name, std::slice::from_ref(value))?,
        ("replace", 2) => state.apply_filter("replace", &[value.clone(), args[0].clone(), args[1].clone()])?,
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    })
}

fn parts<'t>(parts: impl Iterator<Item = &'t str>) -> Result<Value, Error> {
    let parts: Vec<&str> = parts.take(MAX_PARTS + 1).collect();
    if parts.len() > MAX_PARTS {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a text split into more than {MAX_PARTS} parts"),
        ));
    }
    Ok(parts.into_iter().collect())
}
