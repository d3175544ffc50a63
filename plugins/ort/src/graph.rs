//! What an ONNX file says about itself, read from its protobuf with bounds before the runtime sees it.
//!
//! Owns nothing. Callers: [`crate::encoder`] at load. Only what decides is read: operators, their domains and opsets,
//! and files outside the model (the ONNX specification's `onnx.proto`, field numbers in the code). The runtime checks
//! the rest.

use std::collections::BTreeSet;

use synapse_plugin_sdk::Error;

/// The newest operator set of the default domain that the bundled runtime knows.
pub const NEWEST_OPSET: u64 = 26;

/// Domains whose operators the runtime brings itself. Another domain needs a library of its own, which is never loaded.
const DOMAINS: [&str; 6] = [
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "com.microsoft",
    "com.microsoft.nchwc",
    "ai.onnx.preview",
];

/// Graphs inside graphs.
const MAX_DEPTH: usize = 16;

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Operator types of the graph and its subgraphs.
    pub operators: BTreeSet<String>,
    /// Names of files outside the model that hold initializers.
    pub external: BTreeSet<String>,
}

impl Facts {
    /// Activations are quantised with a scale taken from the whole tensor, so that an item's vector depends on what
    /// else is in the batch.
    #[must_use]
    pub fn quantises_dynamically(&self) -> bool {
        self.operators.contains("DynamicQuantizeLinear") || self.operators.contains("DynamicQuantizeMatMul")
    }
}

/// Reads a model.
///
/// # Errors
/// ARTIFACT_INVALID that says what was wrong; UNSUPPORTED for operators that need a library of their own.
pub fn read(bytes: &[u8]) -> Result<Facts, Error> {
    if bytes.trim_ascii_start().first() == Some(&b'<') {
        return Err(Error::artifact_invalid(
            "the model looks like HTML, not like ONNX: was a web page saved?",
        ));
    }
    let mut facts = Facts::default();
    let (mut graphs, mut opsets) = (0, 0);
    for field in Fields(bytes) {
        match field? {
            Field {
                number: 7,
                value: Value::Bytes(graph),
            } => {
                graphs += 1;
                read_graph(graph, 0, &mut facts)?;
            }
            Field {
                number: 8,
                value: Value::Bytes(opset),
            } => {
                opsets += 1;
                check_opset(opset)?;
            }
            _ => {}
        }
    }
    if graphs != 1 || opsets == 0 {
        let found = format!("{graphs} graphs and {opsets} operator sets");
        return Err(Error::artifact_invalid(format!(
            "the model holds {found}, expected one graph and its operator set"
        )));
    }
    Ok(facts)
}

fn check_opset(bytes: &[u8]) -> Result<(), Error> {
    let (mut domain, mut version) = (String::new(), 0);
    for field in Fields(bytes) {
        match field? {
            Field {
                number: 1,
                value: Value::Bytes(name),
            } => domain = text(name)?,
            Field {
                number: 2,
                value: Value::Number(number),
            } => version = number,
            _ => {}
        }
    }
    if (domain.is_empty() || domain == "ai.onnx") && version > NEWEST_OPSET {
        return Err(Error::artifact_invalid(format!(
            "the model needs operator set {version}, this runtime knows up to {NEWEST_OPSET}"
        )));
    }
    Ok(())
}

fn read_graph(bytes: &[u8], depth: usize, facts: &mut Facts) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::artifact_invalid(format!(
            "graphs are nested deeper than {MAX_DEPTH}"
        )));
    }
    for field in Fields(bytes) {
        match field? {
            Field {
                number: 1,
                value: Value::Bytes(node),
            } => read_node(node, depth, facts)?,
            Field {
                number: 5,
                value: Value::Bytes(tensor),
            } => read_tensor(tensor, facts)?,
            _ => {}
        }
    }
    Ok(())
}

fn read_node(bytes: &[u8], depth: usize, facts: &mut Facts) -> Result<(), Error> {
    let (mut operator, mut domain) = (String::new(), String::new());
    for field in Fields(bytes) {
        match field? {
            Field {
                number: 4,
                value: Value::Bytes(name),
            } => operator = text(name)?,
            Field {
                number: 7,
                value: Value::Bytes(name),
            } => domain = text(name)?,
            Field {
                number: 5,
                value: Value::Bytes(attribute),
            } => read_attribute(attribute, depth, facts)?,
            _ => {}
        }
    }
    if !DOMAINS.contains(&domain.as_str()) {
        return Err(Error::unsupported(format!(
            "operator {domain}.{operator} needs a library of custom operators, which is never loaded"
        )));
    }
    facts.operators.insert(operator);
    Ok(())
}

fn read_attribute(bytes: &[u8], depth: usize, facts: &mut Facts) -> Result<(), Error> {
    for field in Fields(bytes) {
        match field? {
            Field {
                number: 5 | 10,
                value: Value::Bytes(tensor),
            } => read_tensor(tensor, facts)?,
            Field {
                number: 6 | 11,
                value: Value::Bytes(graph),
            } => read_graph(graph, depth + 1, facts)?,
            _ => {}
        }
    }
    Ok(())
}

fn read_tensor(bytes: &[u8], facts: &mut Facts) -> Result<(), Error> {
    for field in Fields(bytes) {
        let Field {
            number: 13,
            value: Value::Bytes(entry),
        } = field?
        else {
            continue;
        };
        let (mut key, mut value) = (String::new(), String::new());
        for field in Fields(entry) {
            match field? {
                Field {
                    number: 1,
                    value: Value::Bytes(bytes),
                } => key = text(bytes)?,
                Field {
                    number: 2,
                    value: Value::Bytes(bytes),
                } => value = text(bytes)?,
                _ => {}
            }
        }
        if key == "location" {
            facts.external.insert(plain_name(value)?);
        }
    }
    Ok(())
}

/// A file beside the model; nothing else is ever opened for it.
fn plain_name(name: String) -> Result<String, Error> {
    let odd = name.is_empty() || name == ".." || name == "." || name.contains(['/', '\\', '\0']) || name.len() > 255;
    if odd {
        let name = name.escape_debug();
        return Err(Error::artifact_invalid(format!(
            "external data `{name}` leaves the model's folder"
        )));
    }
    Ok(name)
}

fn text(bytes: &[u8]) -> Result<String, Error> {
    std::str::from_utf8(bytes)
        .map(str::to_owned)
        .map_err(|_| Error::artifact_invalid("a name in the model is not UTF-8"))
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Other,
}

struct Field<'a> {
    number: u64,
    value: Value<'a>,
}

/// The fields of one protobuf message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Result<u64, Error> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or_else(cut)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::artifact_invalid(
            "the model is no protobuf: a number has more than ten bytes",
        ))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], Error> {
        let length = usize::try_from(length).map_err(|_| cut())?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or_else(cut)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn field(&mut self) -> Result<Field<'a>, Error> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.take(8).map(|_| Value::Other)?,
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Other)?,
            wire => {
                return Err(Error::artifact_invalid(format!(
                    "the model is no protobuf: wire type {wire}"
                )));
            }
        };
        Ok(Field {
            number: tag >> 3,
            value,
        })
    }
}

fn cut() -> Error {
    Error::artifact_invalid("the model is cut short, or no protobuf")
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(fields: &[(u8, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, payload) in fields {
            bytes.push(number << 3 | 2);
            bytes.push(u8::try_from(payload.len()).unwrap());
            bytes.extend_from_slice(payload);
        }
        bytes
    }

    fn model(graph: &[u8]) -> Vec<u8> {
        message(&[(7, graph), (8, &[0x10, 17])])
    }

    #[test]
    fn operators_of_subgraphs_and_external_files_are_found() {
        let external = message(&[(13, &message(&[(1, b"location"), (2, b"weights.bin")]))]);
        let inner = message(&[(1, &message(&[(4, b"DynamicQuantizeLinear")]))]);
        let node = message(&[(4, b"If"), (5, &message(&[(6, &inner)]))]);
        let facts = read(&model(&message(&[(1, &node), (5, &external)]))).unwrap();
        assert!(facts.quantises_dynamically());
        assert_eq!(facts.operators.len(), 2);
        assert_eq!(facts.external.into_iter().collect::<Vec<_>>(), ["weights.bin"]);
    }

    #[test]
    fn what_no_runtime_should_see_is_refused() {
        let custom = message(&[(4, b"Evil"), (7, b"com.evil")]);
        let outside = |name: &[u8]| message(&[(5, &message(&[(13, &message(&[(1, b"location"), (2, name)]))]))]);
        for (bytes, words) in [
            (Vec::new(), "0 graphs"),
            (b"<!doctype html>".to_vec(), "HTML"),
            (vec![0x3a, 0x7f, 0], "cut short"),
            (vec![0xff; 12], "ten bytes"),
            (message(&[(7, b""), (8, &[0x10, 0xe7, 0x07])]), "operator set 999"),
            (model(&message(&[(1, &custom)])), "com.evil.Evil"),
            (model(&outside(b"../x")), "leaves the model's folder"),
            (model(&outside(b"/etc/passwd")), "leaves the model's folder"),
        ] {
            let error = read(&bytes).unwrap_err();
            assert!(error.message.contains(words), "{words}: {}", error.message);
        }
    }
}
