//! The header's bytes as values, every length checked before anything is reserved for it.
//!
//! State: none beyond the call. Callers: [`super::inspect`]. Not known here: what the values mean.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Read, Seek, SeekFrom};

use super::{GgufError, invalid};

/// Longest header: metadata and tensor list. A vocabulary of a million tokens stays far below it.
const HEADER_BYTES: u64 = 256 << 20;
/// Most metadata keys and most tensors.
const KEYS: u64 = 4_096;
const TENSORS: u64 = 65_536;
/// Longest key or tensor name, and longest string value.
const NAME_BYTES: u64 = 256;
const STRING_BYTES: u64 = 4 << 20;
/// Most dimensions of a tensor, as ggml has them.
const DIMENSIONS: u32 = 4;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// Either float.
    Float(f64),
    /// A flag.
    Bool(bool),
    /// A string. GGUF says UTF-8; some vocabularies are not.
    String(Vec<u8>),
    /// An array of integers or flags.
    Integers(Vec<i64>),
    /// An array of floats.
    Floats(Vec<f32>),
    /// An array of strings.
    Strings(Vec<Vec<u8>>),
}

/// One tensor as the header describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its dimensions, the contiguous one first.
    pub dims: Vec<u64>,
    /// The number of its type.
    pub kind: u32,
    /// Where its bytes begin, from the start of the data.
    pub offset: u64,
}

/// A header.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gguf {
    /// The metadata.
    pub metadata: BTreeMap<String, Value>,
    /// The tensors in file order.
    pub tensors: Vec<Tensor>,
    /// Bytes of the header, before the padding to the data.
    pub header_bytes: u64,
}

struct Source<R> {
    inner: R,
    /// Bytes that may still be read.
    left: u64,
    read: u64,
}

/// Reads the header of a file of `length` bytes.
///
/// # Errors
/// [`GgufError`] naming the field.
pub fn read(file: &mut (impl Read + Seek), length: u64) -> Result<Gguf, GgufError> {
    file.seek(SeekFrom::Start(0))?;
    let mut source = Source {
        inner: BufReader::new(file),
        left: length.min(HEADER_BYTES),
        read: 0,
    };
    check_magic(&mut source)?;
    let (tensors, keys) = (source.u64("the number of tensors")?, source.u64("the number of keys")?);
    if keys > KEYS || tensors > TENSORS {
        return invalid(format!(
            "{keys} keys and {tensors} tensors, at most {KEYS} and {TENSORS} are read"
        ));
    }
    let mut gguf = Gguf::default();
    for _ in 0..keys {
        let key = source.name("a metadata key")?;
        let kind = source.u32(&key)?;
        let value = source.value(&key, kind)?;
        if gguf.metadata.insert(key.clone(), value).is_some() {
            return invalid(format!("the key {key} stands twice"));
        }
    }
    let mut names = BTreeSet::new();
    for _ in 0..tensors {
        let tensor = source.tensor()?;
        if !names.insert(tensor.name.clone()) {
            return invalid(format!("the tensor {} stands twice", tensor.name));
        }
        gguf.tensors.push(tensor);
    }
    gguf.header_bytes = source.read;
    Ok(gguf)
}

fn check_magic(source: &mut Source<impl Read>) -> Result<(), GgufError> {
    let magic = source.array::<4>("the magic")?;
    if magic.trim_ascii_start().first() == Some(&b'<') {
        return invalid("the file looks like HTML, not like GGUF: was a web page saved?");
    }
    if &magic != b"GGUF" {
        return invalid(format!(
            "the file begins with {:?}, not with GGUF",
            String::from_utf8_lossy(&magic)
        ));
    }
    match source.u32("the version")? {
        2 | 3 => Ok(()),
        version if version.swap_bytes() <= 16 => invalid("the file is big-endian; only little-endian files are read"),
        version => invalid(format!("GGUF version {version}, only 2 and 3 are read")),
    }
}

impl<R: Read> Source<R> {
    fn bytes(&mut self, count: u64, what: &str) -> Result<Vec<u8>, GgufError> {
        if count > self.left {
            return invalid(format!(
                "{what}: {count} bytes, but the header has only {} left",
                self.left
            ));
        }
        // The count is below what the file holds, so the reservation is.
        let mut bytes = vec![0; usize::try_from(count).map_err(|_| GgufError::Invalid(format!("{what} is too long")))?];
        self.inner.read_exact(&mut bytes)?;
        self.left -= count;
        self.read += count;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let bytes = self.bytes(N as u64, what)?;
        bytes
            .try_into()
            .map_err(|_| GgufError::Invalid(format!("{what} is cut short")))
    }

    fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn string(&mut self, what: &str, most: u64) -> Result<Vec<u8>, GgufError> {
        let length = self.u64(what)?;
        if length > most {
            return invalid(format!("{what}: a string of {length} bytes, at most {most} are read"));
        }
        self.bytes(length, what)
    }

    fn name(&mut self, what: &str) -> Result<String, GgufError> {
        let bytes = self.string(what, NAME_BYTES)?;
        match String::from_utf8(bytes) {
            Ok(name) if !name.is_empty() && !name.contains(char::is_control) => Ok(name),
            _ => invalid(format!("{what} is empty or not printable UTF-8")),
        }
    }

    fn value(&mut self, key: &str, kind: u32) -> Result<Value, GgufError> {
        Ok(match kind {
            0 => Value::Unsigned(self.array::<1>(key)?[0].into()),
            1 => Value::Signed(i8::from_le_bytes(self.array(key)?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array(key)?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array(key)?).into()),
            4 => Value::Unsigned(self.u32(key)?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array(key)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array(key)?).into()),
            7 => Value::Bool(self.flag(key)?),
            8 => Value::String(self.string(key, STRING_BYTES)?),
            9 => self.values(key)?,
            10 => Value::Unsigned(self.u64(key)?),
            11 => Value::Signed(i64::from_le_bytes(self.array(key)?)),
            12 => Value::Float(f64::from_le_bytes(self.array(key)?)),
            other => return invalid(format!("{key}: unknown type {other}")),
        })
    }

    fn flag(&mut self, key: &str) -> Result<bool, GgufError> {
        match self.array::<1>(key)?[0] {
            0 => Ok(false),
            1 => Ok(true),
            other => invalid(format!("{key}: {other} is no flag")),
        }
    }

    fn values(&mut self, key: &str) -> Result<Value, GgufError> {
        let (kind, count) = (self.u32(key)?, self.u64(key)?);
        let least: u64 = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => return invalid(format!("{key}: arrays of arrays are not read")),
            other => return invalid(format!("{key}: array of unknown type {other}")),
        };
        if count.checked_mul(least).is_none_or(|bytes| bytes > self.left) {
            return invalid(format!(
                "{key}: {count} values, but the header has only {} bytes left",
                self.left
            ));
        }
        if kind == 8 {
            return (0..count)
                .map(|_| self.string(key, STRING_BYTES))
                .collect::<Result<_, _>>()
                .map(Value::Strings);
        }
        let floats = matches!(kind, 6 | 12);
        let (mut integers, mut reals) = (Vec::new(), Vec::new());
        for _ in 0..count {
            match self.value(key, kind)? {
                Value::Unsigned(value) => integers.push(i64::try_from(value).unwrap_or(i64::MAX)),
                Value::Signed(value) => integers.push(value),
                Value::Bool(value) => integers.push(value.into()),
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "scores are stored as f32; a wider one may round"
                )]
                Value::Float(value) => reals.push(value as f32),
                _ => return invalid(format!("{key}: not a number")),
            }
        }
        Ok(if floats {
            Value::Floats(reals)
        } else {
            Value::Integers(integers)
        })
    }

    fn tensor(&mut self) -> Result<Tensor, GgufError> {
        let name = self.name("a tensor's name")?;
        let count = self.u32(&name)?;
        if count == 0 || count > DIMENSIONS {
            return invalid(format!("tensor {name}: {count} dimensions, expected 1 to {DIMENSIONS}"));
        }
        let dims = (0..count).map(|_| self.u64(&name)).collect::<Result<Vec<_>, _>>()?;
        let (kind, offset) = (self.u32(&name)?, self.u64(&name)?);
        Ok(Tensor {
            name,
            dims,
            kind,
            offset,
        })
    }
}

impl Gguf {
    /// A string value as text.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key) {
            Some(Value::String(bytes)) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// An integer value that is not negative.
    #[must_use]
    pub fn unsigned(&self, key: &str) -> Option<u64> {
        match self.metadata.get(key) {
            Some(Value::Unsigned(value)) => Some(*value),
            Some(Value::Signed(value)) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    /// A flag.
    #[must_use]
    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.metadata.get(key) {
            Some(Value::Bool(value)) => Some(*value),
            _ => None,
        }
    }

    /// Rows of the token table, where it is a matrix: no token id may reach it.
    #[must_use]
    pub fn embedding_rows(&self) -> Option<u32> {
        let rows = self.tensor("token_embd.weight")?.dims.get(1)?;
        u32::try_from(*rows).ok()
    }

    /// The tensor of a name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}
